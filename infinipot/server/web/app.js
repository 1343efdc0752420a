import { call, events, key, post } from "./api.js";
import { Shaded, pieces, units } from "./shaded.js";

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const bytes = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${(value / 1e6).toFixed(1)} MB`);
const state = { model: "", messages: [], pot: null, asking: null, reading: null, shaded: null };

// ---------------------------------------------------------------- the server

async function connect() {
  for (;;) {
    try {
      const { data: [model] } = await (await call("/v1/models")).json();
      state.model = model.id;
      $("model").textContent = `${model.id} · pot of ${number(model.pot.size)} entries, ${model.pot.policy}`;
      allow();
      return;
    } catch (problem) {
      $("model").textContent = problem.message;
      if (problem.status === 401) { $("key-dialog").showModal(); return; }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

function allow() {
  $("send").disabled = !state.model || (state.reading !== null && !state.asking);
  $("send").textContent = state.asking ? "Stop" : "Send";
}

// ---------------------------------------------------------------- a text

// The text of files. The server converts documents, and says what is wrong with binaries. Several files stand behind marks
// with their names, as on the command line.
async function textOf(files) {
  const texts = [];
  for (const file of files) {
    let text = await file.text();
    if (!text) throw new Error(`${file.name} is empty`);
    const start = text.slice(0, 4096);
    if (/[\0\ufffd]|^%PDF-|^PK\x03|^\s*<(!doctype html|html)/i.test(start) || /\.(html?|xhtml|eml)$/i.test(file.name)) {
      const reply = await call(`/v1/documents?name=${encodeURIComponent(file.name)}`, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
      ({ text } = await reply.json());
    }
    texts.push(text);
  }
  if (texts.length === 1) return texts[0];
  return texts.map((text, place) => `[file: ${files[place].name}]\n\n${text}`).join("\n\n");
}

async function read(files) {
  let text;
  try { text = await textOf(files); } catch (problem) { say("error", problem.message); return; }
  if (state.reading) state.reading.abort();
  if (state.asking) state.asking.abort();
  if (state.shaded) state.shaded.close();
  forgetPot();
  const stop = state.reading = new AbortController();
  const name = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  $("drop").hidden = true;
  $("reading").hidden = false;
  $("file-name").textContent = files.map((file) => file.name).join(", ");
  $("stop-reading").textContent = "Stop";
  $("progress").value = 0;
  $("counts").textContent = "waiting for a place …";
  newChat();
  allow();
  const shaded = state.shaded = new Shaded($("text"), $("map"), text);
  const view = { total: 0 };
  const upload = call(`/v1/pots/${name}?expendable=true`, { method: "PUT", body: new Blob([text], { type: "text/plain" }), signal: stop.signal }).then((reply) => reply.json());
  const places = locate(text, shaded, view, stop.signal);
  watch(name, shaded, view, upload, stop.signal).catch(() => {});
  try {
    await upload;
    await places;
    state.pot = name;
    show(await (await call(`/v1/pots/${name}?places=true`)).json(), shaded, view);
    $("progress").value = 1;
    $("question").focus({ preventScroll: true });
  } catch (problem) {
    if (problem.name !== "AbortError") say("error", problem.message);
    $("counts").textContent = problem.name === "AbortError" ? "stopped" : problem.message;
  } finally {
    if (state.reading === stop) state.reading = null;
    $("stop-reading").textContent = "Close";
    allow();
  }
}

// Where each token begins: asked piece by piece, so that a long text does not hold the page up.
async function locate(text, shaded, view, signal) {
  for (const { from, piece } of pieces(text, 100_000)) {
    const { count, offsets } = await (await post("/tokenize", { prompt: piece, offsets: true }, { signal })).json();
    if (offsets) shaded.starts = shaded.starts.concat(units(piece, offsets, from));
    view.total = view.total + count;
  }
}

async function watch(name, shaded, view, upload, signal) {
  let over = false;
  upload.catch(() => {}).finally(() => { over = true; });
  while (!over) {
    const { data } = await (await call("/v1/pots", { signal })).json();
    if (data.some((pot) => pot.name === name)) {
      for await (const event of events(await call(`/v1/pots/${name}/events`, { signal }))) show(event, shaded, view);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 100)); // it has not arrived yet
  }
}

function show(about, shaded, view) {
  if (!about.pot || shaded !== state.shaded) return;
  const first = about.first_place || 0, read = about.tokens_read - first, { pot } = about;
  const total = Math.max(view.total, read);
  if (view.total) $("progress").value = read / total;
  $("counts").textContent =
    `${number(read)}${view.total ? ` of ${number(total)}` : ""} tokens read · ${number(pot.kept)} of ${number(pot.size)} entries kept · ` +
    `${number(pot.distillations)} distillation${pot.distillations === 1 ? "" : "s"}`;
  const most = Math.max(pot.bytes, pot.full_cache_bytes);
  $("bar-pot").style.width = `${(100 * pot.bytes) / most}%`;
  $("bar-full").style.width = `${(100 * pot.full_cache_bytes) / most}%`;
  $("bytes-pot").textContent = bytes(pot.bytes);
  $("bytes-full").textContent = bytes(pot.full_cache_bytes);
  if (about.places) {
    const from = about.places.findIndex((place) => place >= first);
    shaded.update(from < 0 ? [] : about.places.slice(from).map((place) => place - first), from < 0 ? [] : about.shares.slice(from), read);
  }
}

function forgetPot() {
  if (state.pot) call(`/v1/pots/${state.pot}`, { method: "DELETE", keepalive: true }).catch(() => {});
  state.pot = null;
}

function closeText() {
  if (state.reading) { state.reading.abort(); return; }
  if (state.shaded) state.shaded.close();
  state.shaded = null;
  forgetPot();
  newChat();
  $("reading").hidden = true;
  $("drop").hidden = false;
  $("file").value = "";
  $("file").focus();
}

// ---------------------------------------------------------------- talking

function say(role, text) {
  $("welcome").hidden = true;
  const message = document.createElement("div");
  message.className = `message ${role}`;
  const said = document.createElement("span");
  said.textContent = text;
  message.append(said);
  $("messages").append(message);
  $("messages").scrollTop = $("messages").scrollHeight;
  return message;
}

function newChat() {
  if (state.asking) state.asking.abort();
  state.messages = [];
  document.querySelectorAll(".message").forEach((message) => message.remove());
  $("welcome").hidden = false;
}

async function ask(question) {
  const stop = state.asking = new AbortController();
  const history = state.messages;
  history.push({ role: "user", content: question });
  say("user", question);
  const message = say("assistant", ""), said = message.firstChild;
  message.classList.add("waiting");
  allow();
  try {
    const body = { model: state.model, messages: history, stream: true, stream_options: { include_usage: true } };
    if (state.pot) body.pot = state.pot;
    for await (const event of events(await post("/v1/chat/completions", body, { signal: stop.signal }))) {
      if (event.error) throw new Error(event.error.message);
      if (event.comment) { message.title = event.comment; continue; }
      const log = $("messages"), follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      said.textContent += event.choices[0]?.delta.content || "";
      if (event.usage) note(message, event.usage);
      if (follow) log.scrollTop = log.scrollHeight;
    }
    history.push({ role: "assistant", content: said.textContent });
  } catch (problem) {
    history.pop();
    if (problem.name === "AbortError") { if (!said.textContent) said.textContent = "(stopped)"; } else { message.remove(); say("error", problem.message); }
  } finally {
    message.classList.remove("waiting");
    if (state.asking === stop) state.asking = null;
    allow();
  }
}

function note(message, { prompt_tokens, prompt_tokens_details: { cached_tokens }, pot }) {
  const small = document.createElement("small");
  const fresh = prompt_tokens - cached_tokens;
  small.textContent =
    `${number(fresh)} token${fresh === 1 ? "" : "s"} read now, ${number(cached_tokens)} known · pot ${number(pot.kept)} of ${number(pot.size)} · ` +
    `${number(pot.distillations)} distillation${pot.distillations === 1 ? "" : "s"}`;
  message.append(small);
}

// ---------------------------------------------------------------- hands on

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (state.asking) { state.asking.abort(); return; }
  const question = $("question").value.trim();
  if (!question || $("send").disabled) return;
  $("question").value = "";
  ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (!state.asking) $("ask").requestSubmit(); }
});
$("new-chat").addEventListener("click", () => { newChat(); $("question").focus(); });
$("file").addEventListener("change", () => { if ($("file").files[0]) read([...$("file").files]); });
$("stop-reading").addEventListener("click", closeText);
$("key-button").addEventListener("click", () => { $("key").value = key.get(); $("key-dialog").showModal(); });
$("key-dialog").addEventListener("close", () => { if ($("key-dialog").returnValue === "ok") { key.set($("key").value); connect(); } });
for (const kind of ["dragenter", "dragover"]) addEventListener(kind, (event) => { event.preventDefault(); $("over").hidden = false; });
for (const kind of ["dragleave", "drop"]) addEventListener(kind, (event) => { event.preventDefault(); if (kind === "drop" || !event.relatedTarget) $("over").hidden = true; });
addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) read([...event.dataTransfer.files]); });
addEventListener("resize", () => state.shaded?.drawMap());
addEventListener("pagehide", forgetPot);
allow();
connect();
