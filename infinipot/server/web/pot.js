// A text on its way into a pot of the server, and what the pot keeps of it.

import { body, call, events, json } from "./server.js";
import { pieces, units } from "./shaded.js";

const LONGEST_FIELD = 1000; // characters of a field in a URL
const LONGEST_QUERY = 10_000; // of the 16,384 bytes that a head may have
const POLL_MS = 100;
const PIECE = 100_000; // characters that are tokenized in one request

// Read a text into a new pot. options: of the server's pots, and its question.
export async function fill(name, text, options, signal) {
  const fields = { expendable: true, ...options };
  const query = new URLSearchParams(fields).toString();
  const short = Object.values(fields).every((value) => String(value).length <= LONGEST_FIELD) && query.length <= LONGEST_QUERY;
  if (!short) return json("/v1/pots", { ...body({ ...fields, name, text }), signal });
  return json(`/v1/pots/${name}?${query}`, { method: "PUT", body: new Blob([text], { type: "text/plain" }), signal });
}

// Tell what the pot keeps, from the moment when the server knows its name until it is ready.
export async function watch(name, told, signal) {
  while (!signal.aborted) {
    const { data } = await json("/v1/pots", { signal });
    if (data.some((pot) => pot.name === name)) {
      for await (const about of events(await call(`/v1/pots/${name}/events`, { signal }))) told(about);
      return;
    }
    await new Promise((go) => setTimeout(go, POLL_MS));
  }
}

// A pot that has been read before. Throws Refused (404) if the server has it no longer.
export async function about(name, signal) {
  const found = await json(`/v1/pots/${name}?places=true`, { signal });
  if (found.state !== "on disk") return found;
  await json(`/v1/pots/${name}/restore`, { method: "POST", signal });
  return json(`/v1/pots/${name}?places=true`, { signal });
}

// Where each token begins: asked piece by piece, so that a long text does not hold the page up. told: gets the starts
// of a piece, in UTF-16 units, how many tokens it has, and where it ends.
export async function locate(text, told, signal) {
  for (const { from, piece } of pieces(text, PIECE)) {
    const { count, offsets } = await json("/tokenize", { ...body({ prompt: piece, offsets: true }), signal });
    told(offsets ? units(piece, offsets, from) : [], count, from + piece.length);
  }
}
