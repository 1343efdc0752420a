// Files as text. The server decides what can be read, and converts documents.

import { json } from "./server.js";
import { fresh } from "./store.js";

const TOO_LARGE = 413;
const START_BYTES = 1 << 16;

export const nameOf = (file) => (file.name || "text without a name").replace(/[\0-\x1f\x7f]+/g, " ");

async function convert(name, body) {
  const headers = { "Content-Type": "application/octet-stream" };
  return (await json(`/v1/documents?name=${encodeURIComponent(name)}`, { method: "POST", headers, body })).text;
}

// A file larger than a document may be. If its beginning comes back as it is, it is plain text, which needs no conversion.
async function largeText(file, name, refusal) {
  const start = await file.slice(0, START_BYTES).arrayBuffer();
  try {
    const beginning = new TextDecoder("utf-8", { fatal: true }).decode(start, { stream: true });
    if ((await convert(name, new Blob([beginning]))) !== beginning) throw refusal;
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (failure) {
    throw failure instanceof TypeError ? refusal : failure; // not UTF-8
  }
}

// Throws with the reason, for what cannot be read.
export async function sourceOf(file) {
  const name = nameOf(file);
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw new Error("the browser cannot read it; of a folder, choose the files");
  }
  const text = await convert(name, file).catch((failure) => {
    if (failure.status !== TOO_LARGE) throw failure;
    return largeText(file, name, failure);
  });
  if (!text) throw new Error("it is empty");
  const pairs = text.match(/[\ud800-\udbff]/g)?.length || 0; // a character beyond U+FFFF has two units
  return { key: fresh(), name, text, characters: text.length - pairs };
}

// Several texts stand behind marks with their names, as on the command line.
export function textOf(sources) {
  if (sources.length === 1) return sources[0].text;
  return sources.map(({ name, text }) => `[file: ${name}]\n\n${text}`).join("\n\n");
}

// What has been dropped or pasted: files, or a piece of text of at least so many characters.
export function filesOf(data, name, least) {
  if (data.files.length) return [...data.files];
  const text = data.getData("text/plain");
  return text.length >= least ? [new File([text], name)] : [];
}
