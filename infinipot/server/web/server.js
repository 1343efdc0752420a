// The server, as this page uses it. Its paths are taken from where the page is: a proxy may show the server under some/path/.

import { createParser } from "./vendor/eventsource-parser.js";

export const root = new URL(".", document.baseURI);
const KEY = `infinipot-key ${root.pathname}`;

// The browser's own storage; where it is forbidden, one that lasts as long as the page.
export function storage(name) {
  try {
    return globalThis[name];
  } catch {
    const values = new Map();
    return { getItem: (place) => values.get(place) ?? null, setItem: (place, value) => values.set(place, value) };
  }
}

const session = storage("sessionStorage");

export const key = {
  get: () => session.getItem(KEY) || "",
  set: (value) => session.setItem(KEY, value),
};

// The server did not answer, or broke off: the same request may work later.
export class Lost extends Error {}

// The server answered that it will not do this. status: of HTTP. code: of the server.
export class Refused extends Error {
  constructor(status, { message, code }) {
    super(message);
    Object.assign(this, { status, code });
  }
}

// What to say of a failure.
export const failureOf = (failure) => (failure.name === "AbortError" ? "Stopped" : failure.message);

const AWAY = "The server does not answer";
const PASSING = ["loading", "shutting_down", "failed"]; // codes of a server that comes or goes

function problem(status, error) {
  return PASSING.includes(error.code) ? new Lost(error.message) : new Refused(status, error);
}

// path: from the server's root, "/v1/...". Throws Lost, Refused, or the signal's AbortError.
export async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let reply;
  try {
    reply = await fetch(new URL(`.${path}`, root), { ...options, headers });
  } catch (failure) {
    throw failure.name === "AbortError" ? failure : new Lost(AWAY);
  }
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  if (body?.error?.message) throw problem(reply.status, body.error);
  if ([502, 503, 504].includes(reply.status)) throw new Lost(`${AWAY} (${reply.status} from the proxy before it)`);
  throw new Refused(reply.status, { message: `${reply.status} ${reply.statusText}`.trim() });
}

export async function json(path, options) {
  const reply = await call(path, options);
  try {
    return await reply.json();
  } catch (failure) {
    throw failure.name === "AbortError" ? failure : new Lost(AWAY);
  }
}

export function body(content) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) };
}

// The server-sent events of a reply, until [DONE]: objects, and comments as {comment}. Throws Lost if it ends before.
export async function* events(reply) {
  const ready = [];
  const parser = createParser({
    onEvent: ({ data }) => ready.push(data),
    onComment: (comment) => ready.push({ comment }),
  });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Lost("The server broke off");
      parser.feed(value);
      for (const event of ready.splice(0)) {
        if (event === "[DONE]") return;
        const content = typeof event === "string" ? JSON.parse(event) : event;
        if (content.error) throw problem(500, content.error);
        yield content;
      }
    }
  } catch (failure) {
    throw failure instanceof TypeError ? new Lost("The server broke off") : failure;
  } finally {
    reader.cancel().catch(() => {});
  }
}
