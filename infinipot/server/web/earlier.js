// Earlier conversations, to be opened again or deleted.

import { call } from "./server.js";

const title = ({ sources, messages, question, draft }) =>
  [sources.map((source) => source.name).join(", "), (messages[0]?.content || question || draft).slice(0, 100)].filter(Boolean).join(": ") || "empty";

// The server need not keep pots of which no conversation speaks.
export function forget(records, others) {
  const used = new Set(others.map(({ pot }) => pot?.name));
  for (const { pot } of records) if (pot?.name && !used.has(pot.name)) call(`/v1/pots/${pot.name}`, { method: "DELETE" }).catch(() => {});
}

export class Earlier {
  // page: as the chat's.
  constructor(dialog, page) {
    Object.assign(this, { dialog, page, list: dialog.querySelector("ul") });
    dialog.querySelector("#delete-all").addEventListener("click", () => this.remove(this.records));
  }

  async show() {
    await this.page.idle();
    this.records = await this.page.store.list();
    this.list.replaceChildren(...this.records.map((record) => this.row(record)));
    this.dialog.querySelector("#delete-all").hidden = this.records.length === 0;
    this.dialog.querySelector("#none-earlier").hidden = this.records.length > 0;
    if (!this.dialog.open) this.dialog.showModal();
  }

  row(record) {
    const line = document.createElement("li"), open = document.createElement("button"), remove = document.createElement("button");
    const when = document.createElement("small"), count = record.messages.length;
    const current = record.id === this.page.record.id;
    open.textContent = title(record);
    when.textContent = `${new Date(record.changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })} · ${count} message${count === 1 ? "" : "s"}${current ? " · open now" : ""}`;
    open.append(when);
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete ${title(record)}`);
    open.className = "open-earlier";
    open.addEventListener("click", async () => {
      this.dialog.close();
      const whole = current ? null : await this.page.store.load(record.id);
      if (!whole) return;
      this.page.chat.mend(whole);
      this.page.open(whole);
    });
    remove.addEventListener("click", () => this.remove([record]));
    line.append(open, remove);
    return line;
  }

  async remove(records) {
    const ids = records.map(({ id }) => id);
    if (ids.includes(this.page.record.id)) this.page.begin({}, false);
    await this.page.idle();
    await this.page.store.remove(ids);
    forget(records, this.records.filter((record) => !records.includes(record)));
    await this.show();
  }
}
