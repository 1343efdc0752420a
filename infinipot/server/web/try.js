// A form below each operation that sends its request and shows the reply.

import { key, root } from "./server.js";

const MOST_SHOWN = 100_000; // characters of a reply
const BODIES = { // what is in the form at first
  ChatRequest: { messages: [{ role: "user", content: "Hello" }], max_tokens: 50 },
  CompletionRequest: { prompt: "Once upon a time", max_tokens: 50 },
  NewPot: { name: "book", text: "The keeper hid the letter under the third step." },
  TokenizeRequest: { prompt: "Hello" },
};

const made = (tag, fields) => Object.assign(document.createElement(tag), fields);

// A body to begin with: of a known schema, else its required fields.
function first(reference, schema) {
  const known = BODIES[(reference || "").split("/").pop()];
  const required = Object.fromEntries((schema.required || []).map((name) => {
    const { enum: values, examples } = schema.properties[name];
    return [name, values?.[0] ?? examples?.[0] ?? null];
  }));
  return JSON.stringify({ ...required, ...known }, null, 2);
}

function field(name, element) {
  const label = made("label", { textContent: `${name} ` });
  label.append(element);
  return label;
}

// The address that the form asks. values: of the parameters, by name.
function address(path, parameters, values) {
  const query = new URLSearchParams();
  let filled = path;
  for (const { name, in: place } of parameters) {
    if (place === "path") filled = filled.replace(`{${name}}`, encodeURIComponent(values[name]));
    else if (values[name]) query.set(name, values[name]);
  }
  return new URL(`.${filled}${query.size ? `?${query}` : ""}`, root);
}

async function show(reply, output) {
  output.textContent = `${reply.status} ${reply.statusText}\n\n`;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    output.textContent += value;
    if (output.textContent.length < MOST_SHOWN) continue;
    output.textContent = `${output.textContent.slice(0, MOST_SHOWN)}\n\n… cut after ${MOST_SHOWN.toLocaleString("en")} characters`;
    await reader.cancel();
    return;
  }
}

// meant: gives the schema behind a reference.
export function trial(path, method, operation, meant) {
  const form = made("form", { className: "try" }), output = made("pre", { hidden: true }), send = made("button", { textContent: "Send", className: "main" });
  const parameters = operation.parameters || [];
  const inputs = parameters.map((one) => made("input", { name: one.name, required: Boolean(one.required) }));
  const [[media, content] = []] = Object.entries(operation.requestBody?.content || {});
  const body = made("textarea", { rows: 6, spellcheck: false });
  form.append(made("h3", { textContent: "Try it" }), ...inputs.map((input) => field(input.name, input)));
  if (media === "application/json") body.value = first(content.schema.$ref, meant(content.schema));
  if (media) form.append(field("Body", body));
  form.append(send, output);
  let stop = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (stop) { stop.abort(); return; }
    stop = new AbortController();
    Object.assign(output, { hidden: false, textContent: "…" });
    send.textContent = "Stop";
    const headers = { ...(media && { "Content-Type": media }), ...(key.get() && { Authorization: `Bearer ${key.get()}` }) };
    const values = Object.fromEntries(inputs.map(({ name, value }) => [name, value]));
    const options = { method: method.toUpperCase(), headers, body: media && body.value, signal: stop.signal };
    try {
      await show(await fetch(address(path, parameters, values), options), output);
    } catch (problem) {
      output.textContent += `\n\n${problem.name === "AbortError" ? "stopped" : problem.message}`;
    } finally {
      stop = null;
      send.textContent = "Send";
    }
  });
  return form;
}
