// The text: its files, the question that the pot is to know, and what the pot keeps.

import { Lost, failureOf } from "./server.js";
import { about, fill, locate, watch } from "./pot.js";
import { nameOf, sourceOf, textOf } from "./sources.js";
import { button } from "./messages.js";
import { Shaded } from "./shaded.js";
import { fresh } from "./store.js";

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const bytes = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${(value / 1e6).toFixed(1)} MB`);
const MOST_TRIES = 3;
const length = (count) => (count >= 1e6 ? `${(count / 1e6).toFixed(1)} M` : count >= 1e4 ? `${Math.round(count / 1000)} k` : number(count));

function row(parts, kind = "") {
  const line = document.createElement("li");
  line.className = kind;
  line.append(...parts);
  return line;
}

function removal(name, act) {
  const element = button("Remove", act);
  element.setAttribute("aria-label", `Remove ${name}`);
  return element;
}

export class Panel {
  // page: as the chat's.
  constructor(page) {
    Object.assign(this, { page, shaded: null, stop: null, queue: [], failures: [] });
  }

  get busy() { return this.stop !== null; }

  get ready() { return this.page.record.sources.length > 0 && this.queue.length === 0; }

  abort() { this.stop?.abort(); }

  // ---------------------------------------------------------------- files and question

  // Show a record's text, or the place for one.
  show() {
    const { record } = this.page;
    this.failures = [];
    this.queue = [];
    $("first-question").value = record.question;
    this.stage();
    if (record.pot) this.open(record);
  }

  stage(problem = "") {
    const { record } = this.page;
    $("stage").hidden = record.pot !== null;
    $("reading").hidden = record.pot === null;
    $("back").hidden = !this.page.previous;
    $("stage-problem").textContent = problem;
    const sources = record.sources.map((source) => row(
      [source.name, ` · ${length(source.characters)} character${source.characters === 1 ? "" : "s"} `, removal(source.name, () => this.remove(source))]));
    const queue = this.queue.map((file) => row([file.name, " · being converted …"]));
    const failures = this.failures.map((failure) => row([`${failure.reason} `, removal(failure.name, () => this.dismiss(failure))], "failure"));
    $("files").replaceChildren(...sources, ...queue, ...failures);
    document.body.classList.toggle("staging", !record.pot && $("files").children.length > 0);
    this.page.allow();
  }

  dismiss(failure) {
    this.failures = this.failures.filter((other) => other !== failure);
    this.stage();
  }

  remove(source) {
    const { record } = this.page;
    record.sources = record.sources.filter((other) => other !== source);
    this.page.keep(record);
    this.stage();
  }

  // Convert files one after the other. Each stands in the list at once, and stays there with what came of it.
  async add(files) {
    const { page } = this;
    if (page.record.pot || page.record.messages.length) page.begin();
    const { record } = page;
    this.queue.push(...files);
    this.stage();
    for (const file of files) {
      try {
        const source = await this.patiently(() => sourceOf(file));
        record.sources = [...record.sources, source];
        page.keep(record);
      } catch (failure) {
        const name = nameOf(file), { message } = failure;
        this.failures.push({ name, reason: message.includes(name) ? message : `${name}: ${message}` });
      }
      this.queue = this.queue.filter((other) => other !== file);
      if (page.record === record) this.stage();
    }
  }

  // Try again if the server goes away meanwhile: three times at most, since what is tried might be the reason.
  async patiently(act, signal) {
    for (let tries = 1; ; tries += 1) {
      signal?.throwIfAborted();
      await this.page.connection.ready(signal);
      try {
        return await act();
      } catch (failure) {
        if (!(failure instanceof Lost || failure.status === 401)) throw failure;
        this.page.connection.lost(failure);
        if (failure instanceof Lost && tries === MOST_TRIES) throw failure;
      }
    }
  }

  // Read what is staged.
  async begin() {
    const { page } = this, { record } = page;
    if (this.busy || !this.ready || !page.connection.up) return;
    const options = { ...page.settings.retention };
    if (page.settings.system) options.system = page.settings.system;
    if (record.question.trim()) options.question = record.question.trim();
    record.pot = { name: "", options, ready: false, asked: false };
    page.keep(record);
    this.stage();
    await this.open(record);
  }

  // ---------------------------------------------------------------- reading

  // Show the text of a record, and read it if its reading has not come to its end.
  async open(record) {
    const { page } = this;
    try {
      if (record.pot.ready) await this.look(record);
      else await this.read(record);
    } catch (failure) {
      if (failure.name !== "AbortError" && page.record === record) $("counts").textContent = failure.message;
      return;
    }
    if (page.record !== record || !record.pot?.ready || record.pot.asked || !record.pot.options.question) return;
    record.pot.asked = true;
    await page.chat.ask(record.pot.options.question);
  }

  prepare(record) {
    const text = textOf(record.sources);
    this.close();
    $("file-name").textContent = record.sources.map((source) => source.name).join(", ");
    $("known-question").textContent = record.pot.options.question ? `Question known: ${record.pot.options.question}` : "";
    $("progress").value = 0;
    $("counts").textContent = "waiting for a place …";
    this.shaded = new Shaded($("text"), $("map"), text);
    return text;
  }

  close() {
    this.shaded?.close();
    this.shaded = null;
  }

  // Where the tokens of a shown text begin.
  locate(text, view, signal) {
    view.length = text.length;
    return locate(text, (starts, count, end) => {
      for (const start of starts) view.shaded.starts.push(start);
      view.count += count;
      view.end = end;
    }, signal);
  }

  // A text that has been read before: what its pot keeps.
  async look(record) {
    const { page } = this, { signal } = (this.stop = new AbortController());
    const text = this.prepare(record), view = { count: 0, end: 0, shaded: this.shaded };
    page.allow();
    try {
      const found = await this.patiently(() => about(record.pot.name, signal), signal);
      $("progress").value = 1;
      this.update(found, view);
      await this.patiently(() => { view.count = 0; view.shaded.starts = []; return this.locate(text, view, signal); }, signal);
      this.update(found, view);
    } catch (failure) {
      if (failure.code !== "pot_not_found") throw failure;
      record.pot.ready = false;
      page.keep(record);
      if (page.record === record) $("counts").textContent = "The server has this pot no longer: the text will be read again with the next question.";
    } finally {
      this.over(signal);
    }
  }

  // Read a record's text into a new pot, again if the server goes away meanwhile. outer: a signal that ends it, too.
  async read(record, outer) {
    const { page } = this, { signal } = (this.stop = new AbortController());
    const own = this.stop;
    outer?.addEventListener("abort", () => own.abort());
    page.allow();
    try {
      await this.patiently(() => this.attempt(record, signal), signal);
      record.pot.ready = true;
      page.keep(record);
      $("progress").value = 1;
    } catch (failure) {
      if (!record.messages.length) this.unread(record, failure);
      else if (page.record === record) $("counts").textContent = `${failureOf(failure)}: the text will be read again with the next question.`;
      throw failure;
    } finally {
      this.over(signal);
    }
  }

  async attempt(record, signal) {
    const text = this.prepare(record), view = { count: 0, end: 0, shaded: this.shaded }, end = new AbortController();
    const both = AbortSignal.any([signal, end.signal]);
    record.pot.name = `page-${fresh()}`;
    this.page.keep(record);
    watch(record.pot.name, (now) => this.update(now, view), both).catch(() => {});
    const places = this.locate(text, view, both);
    places.catch(() => {});
    try {
      await fill(record.pot.name, text, record.pot.options, both);
      await places;
      const found = await about(record.pot.name, both);
      this.update(found, view);
    } catch (failure) {
      if (failure instanceof Lost) $("counts").textContent = `${failure.message}: the text will be read again.`;
      throw failure;
    } finally {
      end.abort();
    }
  }

  // What has not been read stands among the files again.
  unread(record, failure) {
    if (this.page.record !== record) return; // it will be read when it is opened
    record.pot = null;
    this.page.keep(record);
    this.stage(`${failureOf(failure)}. The text has not been read.`);
  }

  over(signal) {
    if (this.stop?.signal === signal) this.stop = null;
    this.page.allow();
  }

  update(now, view) {
    if (!now.pot || view.shaded !== this.shaded) return;
    const first = now.first_place || 0, read = now.tokens_read - first, { pot } = now, { count, end } = view;
    const total = Math.max(read, end ? Math.round((count * view.length) / end) : 0);
    if (end) $("progress").value = read / total;
    $("counts").textContent = [
      `${number(read)}${end ? ` of ${end < view.length ? "about " : ""}${number(total)}` : ""} tokens read`,
      `${number(pot.kept)} of ${number(pot.size)} entries kept`,
      `${number(pot.distillations)} distillation${pot.distillations === 1 ? "" : "s"}`,
    ].join(" · ");
    const most = Math.max(pot.bytes, pot.full_cache_bytes);
    for (const [name, value] of [["pot", pot.bytes], ["full", pot.full_cache_bytes]]) {
      $(`bar-${name}`).style.width = `${(100 * value) / most}%`;
      $(`bytes-${name}`).textContent = bytes(value);
    }
    if (!now.places) return;
    const from = now.places.findIndex((place) => place >= first), start = from < 0 ? now.places.length : from;
    view.shaded.update(now.places.slice(start).map((place) => place - first), now.shares.slice(start), read);
  }
}
