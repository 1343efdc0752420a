// The conversation. What stands on the screen is what the model is told, or it is marked.

import { Lost, body, call, events, failureOf } from "./server.js";
import { View } from "./messages.js";

const $ = (id) => document.getElementById(id);
const KEEP_MS = 500;
const CUT = "Cut off: the page was closed or loaded anew";
const NEAR_PX = 60; // so near to its end the log follows an answer

// Change the log, and stay at its end if it is in view.
function following(act) {
  const log = $("messages"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
  act();
  if (follow) log.scrollTop = log.scrollHeight;
}

// What to say about an answer without text.
const emptyOf = ({ cut, reasoning }) =>
  reasoning ? [cut, "The model has ended within its reasoning: there is no answer"].filter(Boolean).join(" · ") : "The model has ended at once: the answer is empty";

// The messages that the model is told: answers without their reasoning.
const history = (messages) =>
  messages.filter((message) => !message.unread).map(({ role, content }) => ({ role, content }));

export class Chat {
  // page: the record, the connection and the settings that all parts share.
  constructor(page) {
    Object.assign(this, { page, views: new Map(), stop: null });
  }

  get busy() { return this.stop !== null; }

  abort() { this.stop?.abort(); }

  // Bring the log in line with the record. waiting: the message that waits, and for what.
  show(waiting = null) {
    const { messages } = this.page.record, log = $("messages");
    const all = waiting && !messages.includes(waiting.message) ? [...messages, waiting.message] : messages;
    for (const message of this.views.keys()) if (!all.includes(message)) this.views.delete(message);
    const elements = all.map((message, place) => {
      const view = this.views.get(message) || new View(message, { again: (own) => this.again(own), edit: (own, text) => this.edit(own, text) });
      this.views.set(message, view);
      view.decorate(place === all.length - 1, waiting?.message === message ? waiting.reason : null);
      return view.element;
    });
    $("welcome").hidden = all.length > 0;
    document.body.classList.toggle("talking", all.length > 0);
    elements.forEach((element, place) => {
      const here = log.children[place + 1]; // the first is the welcome
      if (here !== element) log.insertBefore(element, here || null);
    });
    while (log.children.length > elements.length + 1) log.lastElementChild.remove();
  }

  // A question to which the page saw no answer.
  mend({ messages }) {
    const last = messages.at(-1);
    if (last?.role === "user") last.unread ||= CUT;
  }

  end() { $("messages").scrollTop = $("messages").scrollHeight; }

  async ask(content) {
    this.page.record.messages.push({ role: "user", content });
    await this.answer();
  }

  // Another answer to the last question, or the same question again.
  async again(message) {
    const { messages } = this.page.record, place = messages.indexOf(message);
    if (this.busy || !this.page.connection.up || place < 0) return;
    if (message.role === "assistant") {
      messages.splice(place);
      await this.answer(message);
      return;
    }
    messages.splice(place, 1);
    delete message.unread;
    messages.push(message);
    await this.answer();
  }

  // Returns whether the message has been taken.
  edit(message, content) {
    const { messages } = this.page.record;
    if (this.busy || !this.page.connection.up) return false;
    messages.splice(messages.indexOf(message));
    this.ask(content);
    return true;
  }

  // Answer the last message. earlier: an answer that comes back if there is no new one.
  async answer(earlier = null) {
    const { page } = this, { record } = page, question = record.messages.at(-1);
    const message = { role: "assistant", content: "" }, { signal } = (this.stop = new AbortController());
    this.show({ message, reason: "" });
    this.end();
    page.allow();
    page.keep(record);
    try {
      if (record.pot && !record.pot.ready) await this.read(record, message, signal);
      await this.reach(record, message, signal);
    } catch (failure) {
      this.broken(message, failure);
      if (!message.content && earlier) record.messages.push({ ...earlier, cut: failureOf(failure) });
      else if (!message.content) question.unread = failureOf(failure);
    } finally {
      if (this.stop?.signal === signal) this.stop = null;
      page.keep(record);
      if (page.record === record) following(() => this.show());
      page.allow();
    }
  }

  read(record, message, signal) {
    this.wait(message, "the server has this pot no longer: reading the text again …");
    return this.page.panel.read(record, signal);
  }

  // Answer, after reading the text again if its pot is gone.
  async reach(record, message, signal) {
    try {
      await this.stream(record, message, signal);
    } catch (failure) {
      if (failure.code !== "pot_not_found" || !record.pot) throw failure;
      record.pot.ready = false;
      await this.read(record, message, signal);
      await this.stream(record, message, signal);
    }
  }

  broken(message, failure) {
    if (failure instanceof Lost || failure.status === 401) this.page.connection.lost(failure);
    else if (failure.name !== "AbortError" && !failure.status) console.error(failure);
    if (message.content) message.cut = failureOf(failure);
  }

  async stream(record, message, signal) {
    const { settings, connection } = this.page, { messages } = record;
    const request = { model: connection.model?.id || "", messages: history(messages), stream: true, stream_options: { include_usage: true } };
    Object.assign(request, settings.sampling);
    if (record.pot) request.pot = record.pot.name;
    else Object.assign(request, settings.retention);
    if (!record.pot && settings.system) request.messages.unshift({ role: "system", content: settings.system });
    const painter = new Painter(this.views.get(message));
    let saved = 0;
    for await (const event of events(await call("/v1/chat/completions", { ...body(request), signal }))) {
      signal.throwIfAborted();
      if (event.comment) this.wait(message, event.comment);
      const [choice] = event.choices || [];
      if (choice?.delta.reasoning_content) {
        message.reasoning = (message.reasoning || "") + choice.delta.reasoning_content;
        painter.paint();
      }
      if (choice?.delta.content) {
        if (!message.content) messages.push(Object.assign(message, { cut: CUT }));
        message.content += choice.delta.content;
        painter.paint();
        if (Date.now() - saved > KEEP_MS) { saved = Date.now(); this.page.keep(record); }
      }
      if (choice?.finish_reason) message.cut = choice.finish_reason === "length" ? "Cut at the limit of tokens (Settings)" : "";
      if (event.usage) message.usage = event.usage;
    }
    if (!message.content) messages.push(Object.assign(message, { cut: emptyOf(message) }));
    painter.end();
  }

  wait(message, reason) {
    const view = this.views.get(message);
    if (view) view.element.dataset.waiting = reason;
  }
}

// Draws a growing answer, seldom enough to leave the browser most of its time.
class Painter {
  constructor(view) { Object.assign(this, { view, timer: 0, cost_ms: 5 }); }

  paint() {
    if (!this.timer) this.timer = setTimeout(() => this.draw(), Math.max(30, 5 * this.cost_ms));
  }

  draw() {
    const start = performance.now();
    this.timer = 0;
    following(() => this.view.draw());
    this.cost_ms = performance.now() - start;
  }

  end() {
    clearTimeout(this.timer);
    this.draw();
  }
}
