// Files as text. The server decides what can be read, and converts documents.

import { json } from "./server.js";
import { fresh } from "./store.js";

export const named = (file) => (file.name || "text without a name").replace(/[\0-\x1f\x7f]+/g, " ");

// Throws with the reason, for what cannot be read.
export async function sourceOf(file) {
  const name = named(file);
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Error("the browser cannot read it; of a folder, choose the files");
  }
  const headers = { "Content-Type": "application/octet-stream" };
  const { text } = await json(`/v1/documents?name=${encodeURIComponent(name)}`, { method: "POST", headers, body: file });
  if (!text) throw new Error("it is empty");
  return { key: fresh(), name, text };
}

// Several texts stand behind marks with their names, as on the command line.
export function joined(sources) {
  if (sources.length === 1) return sources[0].text;
  return sources.map(({ name, text }) => `[file: ${name}]\n\n${text}`).join("\n\n");
}

// What has been dropped: files, or a piece of text.
export function dropped(data) {
  const text = data.files.length ? "" : data.getData("text/plain");
  return text ? [new File([text], "dropped text")] : [...data.files];
}
