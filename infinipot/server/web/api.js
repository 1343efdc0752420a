// The server, as this page uses it. Its paths are taken from where the page is: a proxy may show the server under some/path/.

const root = new URL(".", document.baseURI);

export const key = {
  get: () => sessionStorage.getItem(`infinipot-key ${root.pathname}`) || "",
  set: (value) => sessionStorage.setItem(`infinipot-key ${root.pathname}`, value),
};

// path: from the server's root, "/v1/..."
export async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const reply = await fetch(new URL(`.${path}`, root), { ...options, headers });
  if (reply.ok) return reply;
  let message = `${reply.status} ${reply.statusText}`;
  try { message = (await reply.json()).error.message; } catch { /* not the server's own words */ }
  throw Object.assign(new Error(message), { status: reply.status });
}

export async function post(path, body, options = {}) {
  return call(path, { ...options, method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

// Server-sent events of a reply: objects, until [DONE]. Comments are given as {comment}.
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(":")) yield { comment: block.slice(1).trim() };
      else if (block === "data: [DONE]") return;
      else if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
    }
  }
}
