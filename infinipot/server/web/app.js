// The page: what its parts share, and its buttons and keys.

import { Chat } from "./chat.js";
import { Connection } from "./connection.js";
import { Earlier } from "./earlier.js";
import { copyFrom, sends } from "./messages.js";
import { Panel } from "./panel.js";
import { key } from "./server.js";
import { Settings } from "./settings.js";
import { filesOf } from "./sources.js";
import { Store, conversation, tab } from "./store.js";

const LONG_PASTE = 100_000; // characters of a pasted text that is read like a file, not asked

const $ = (id) => document.getElementById(id);

class Page {
  record = conversation();
  previous = null; // the conversation before a new one that has not begun
  store = new Store();
  settings = new Settings($("settings"));
  connection = new Connection((text, up) => this.tell(text, up), (reason) => this.lock(reason));
  chat = new Chat(this);
  panel = new Panel(this);
  earlier = new Earlier($("earlier"), this);
  #changed = new Set();
  #saving = null;

  async start() {
    try {
      await this.store.open();
      const found = tab.get() && (await this.store.load(tab.get()));
      if (found) this.record = found;
      this.chat.mend(this.record);
    } catch (problem) {
      this.store = null;
      this.warn(`This browser keeps nothing: a reload loses what is here (${problem.message}).`);
    }
    $("show-earlier").hidden = !this.store;
    this.open(this.record);
    await this.connection.connect();
  }

  tell(text, up) {
    $("model").textContent = text;
    $("model").classList.toggle("away", !up);
    this.allow();
  }

  warn(text) {
    $("warning").textContent = text;
    $("warning").hidden = !text;
  }

  lock(reason) {
    if ($("key-dialog").open) return;
    $("key-problem").textContent = key.get() ? `The server does not take this key: ${reason}` : "";
    $("key").value = key.get();
    $("key-dialog").showModal();
  }

  allow() {
    const { connection, chat, panel } = this, asking = chat.busy;
    $("send").textContent = asking ? "Stop" : "Send";
    $("send").disabled = !asking && (!connection.up || panel.busy);
    $("send").title = panel.busy && !asking ? "The text is being read" : "";
    $("read").disabled = !connection.up || !panel.ready;
    $("stop-reading").textContent = panel.busy ? "Stop" : "Close";
    $("again").hidden = panel.busy;
    $("messages").classList.toggle("busy", asking || !connection.up || panel.busy);
  }

  // ---------------------------------------------------------------- conversations

  open(record) {
    this.chat.abort();
    this.panel.abort();
    this.record = record;
    if (record.revision) tab.set(record.id);
    $("question").value = record.draft;
    this.chat.show();
    this.panel.show();
    this.chat.end();
    this.allow();
  }

  // A new conversation; what has been typed goes with it. back: whether one may go back to the one before.
  begin(fields = {}, back = true) {
    const before = this.record, record = { ...conversation(), draft: before.draft, ...fields };
    before.draft = "";
    this.keep(before);
    this.previous = back ? before : null;
    this.open(record);
  }

  // ---------------------------------------------------------------- keeping

  keep(record) {
    this.#changed.add(record);
    this.#saving ||= this.#save().finally(() => { this.#saving = null; });
  }

  // Until all is written.
  async idle() { while (this.#saving) await this.#saving; }

  async #save() {
    await null; // what one action changes is written once
    while (this.#changed.size && this.store) {
      const [record] = this.#changed;
      this.#changed.delete(record);
      const { messages, sources, question, draft, revision } = record;
      if (!revision && !messages.length && !sources.length && !question && !draft) continue;
      try {
        await this.store.save(record);
        if (record === this.record) tab.set(record.id);
      } catch (problem) {
        this.warn(`The browser could not keep this conversation (${problem.message}): a reload loses what is new.`);
      }
    }
  }
}

// ---------------------------------------------------------------- hands on

const page = new Page();
const { chat, panel } = page;

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.busy) { chat.abort(); return; }
  const question = $("question").value.trim();
  if (!question || $("send").disabled) return;
  page.record.draft = $("question").value = "";
  chat.ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (sends(event)) { event.preventDefault(); if (!chat.busy) $("ask").requestSubmit(); }
});
$("question").addEventListener("input", () => { page.record.draft = $("question").value; page.keep(page.record); });
$("new-chat").addEventListener("click", () => {
  const { record } = page;
  const pot = record.pot && { ...record.pot, asked: true };
  if (record.messages.length) page.begin({ sources: record.sources, question: record.question, pot }, false);
  $("question").focus();
});

$("file").addEventListener("change", () => { panel.add([...$("file").files]); $("file").value = ""; });
$("first-question").addEventListener("input", () => { page.record.question = $("first-question").value; page.keep(page.record); });
$("first-question").addEventListener("keydown", (event) => { if (sends(event)) { event.preventDefault(); panel.begin(); } });
$("read").addEventListener("click", () => panel.begin());
$("back").addEventListener("click", () => { const before = page.previous; page.previous = null; page.open(before); });
$("again").addEventListener("click", () => { page.begin({ sources: page.record.sources }); $("first-question").focus(); });
$("stop-reading").addEventListener("click", () => {
  if (panel.busy) { panel.abort(); return; }
  page.begin();
  $("file").focus();
});
$("show-text").addEventListener("click", () => {
  const open = $("reading").classList.toggle("open");
  $("show-text").setAttribute("aria-expanded", String(open));
  panel.shaded?.drawMap();
});

$("show-earlier").addEventListener("click", () => page.earlier.show());
$("show-settings").addEventListener("click", () => page.settings.show(page.connection.model));
$("key-button").addEventListener("click", () => { $("key-problem").textContent = ""; $("key").value = key.get(); $("key-dialog").showModal(); });
$("key").addEventListener("input", () => {
  $("key").setCustomValidity(/^[\x20-\x7e]*$/.test($("key").value.trim()) ? "" : "A key has letters, digits and signs of ASCII only");
});
$("key-dialog").querySelector("form").addEventListener("submit", () => {
  key.set($("key").value.trim());
  page.connection.connect();
});
for (const dialog of document.querySelectorAll("dialog"))
  dialog.querySelector(".leave").addEventListener("click", () => dialog.close());

$("messages").addEventListener("click", ({ target }) => {
  if (target.className === "copy-code") copyFrom(target, target.parentElement.nextElementSibling.textContent);
});

for (const kind of ["dragenter", "dragover"]) addEventListener(kind, (event) => { event.preventDefault(); $("over").hidden = false; });
for (const kind of ["dragleave", "drop"]) addEventListener(kind, (event) => {
  event.preventDefault();
  if (kind === "drop" || !event.relatedTarget) $("over").hidden = true;
});
addEventListener("drop", (event) => { const files = filesOf(event.dataTransfer, "dropped text", 1); if (files.length) panel.add(files); });
addEventListener("paste", (event) => {
  const files = filesOf(event.clipboardData, "pasted text", LONG_PASTE);
  if (files.length) { event.preventDefault(); panel.add(files); }
});
addEventListener("resize", () => panel.shaded?.drawMap());
addEventListener("pagehide", () => page.keep(page.record));
page.start();
