// Whether the server is there. It is asked again until it answers.

import { Lost, call, json } from "./server.js";

const FIRST_MS = 500, LONGEST_MS = 5000;

export class Connection {
  // tell: called with what to show, and whether the server answers. lock: called when the key is wrong or missing.
  constructor(tell, lock) {
    Object.assign(this, { tell, lock, model: null, waiting: [], timer: 0, pause: FIRST_MS });
    addEventListener("online", () => this.timer && this.connect());
    document.addEventListener("visibilitychange", () => this.timer && !document.hidden && this.connect());
  }

  get up() { return this.model !== null; }

  async connect() {
    clearTimeout(this.timer);
    this.timer = 0;
    try {
      await call("/ready").catch((failure) => { if (failure.status !== 429) throw failure; }); // a full queue will pass
      const { data: [model] } = await json("/v1/models");
      this.model = model;
      this.pause = FIRST_MS;
      const { size, policy } = model.pot;
      this.tell(`${model.id} · pot of ${size.toLocaleString("en")} entries, ${policy}`, true);
      this.waiting.splice(0).forEach((go) => go());
    } catch (failure) {
      this.model = null;
      if (failure.status === 401) {
        this.tell("The server asks for a key", false);
        this.lock(failure.message);
      } else this.again(failure);
    }
  }

  again(failure) {
    this.tell(failure instanceof Lost ? `${failure.message} (trying again …)` : failure.message, false);
    this.timer = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(2 * this.pause, LONGEST_MS);
  }

  // After a failed request: look whether the server is there.
  lost(failure) {
    this.model = null;
    if (failure.status === 401) this.connect();
    else if (!this.timer) this.again(failure);
  }

  // Until the server answers. Throws the signal's AbortError.
  async ready(signal) {
    if (this.up) return;
    await new Promise((resolve, reject) => {
      this.waiting.push(resolve);
      signal?.addEventListener("abort", () => reject(signal.reason));
    });
  }
}
