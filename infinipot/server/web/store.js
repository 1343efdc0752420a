// Conversations that stay in this browser: in "chats" one record each, in "texts" the texts that they speak of.

import { root, storage } from "./server.js";

const TAB = `infinipot-chat ${root.pathname}`;

export const fresh = () => [...crypto.getRandomValues(new Uint32Array(3))].map((part) => part.toString(36)).join("-");

const session = storage("sessionStorage");

export const tab = {
  get: () => session.getItem(TAB),
  set: (id) => session.setItem(TAB, id),
};

export function conversation() {
  return { id: fresh(), revision: 0, changed: 0, messages: [], draft: "", question: "", sources: [], pot: null };
}

// The value of a request, or the end of a transaction.
function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = request.oncomplete = () => resolve(request.result);
    request.onerror = request.onabort = () => reject(request.error || new Error("the browser has stopped it"));
  });
}

function database() {
  const request = indexedDB.open(`infinipot ${root.pathname}`, 1);
  request.onupgradeneeded = () => ["chats", "texts"].forEach((name) => request.result.createObjectStore(name));
  return result(request);
}

export class Store {
  #database = null;

  // Throws where the browser keeps nothing.
  async open() {
    this.#database = await database();
    await this.remove([]);
  }

  // Change both stores in one transaction.
  async #change(act) {
    const change = this.#database.transaction(["chats", "texts"], "readwrite");
    const over = result(change);
    over.catch(() => {});
    await act(change.objectStore("chats"), change.objectStore("texts"));
    await over;
  }

  // If another tab has written this conversation meanwhile, this one goes on as a copy: nothing is lost.
  async save(record) {
    await this.#change(async (chats, texts) => {
      const known = await result(chats.get(record.id));
      if (known && known.revision !== record.revision) Object.assign(record, { id: fresh(), revision: 0 });
      Object.assign(record, { revision: record.revision + 1, changed: Date.now() });
      for (const { key, text } of record.sources) if (!(await result(texts.count(key)))) texts.put(text, key);
      const sources = record.sources.map(({ key, name, characters }) => ({ key, name, characters }));
      chats.put(structuredClone({ ...record, sources }), record.id);
    });
    tab.set(record.id);
  }

  async load(id) {
    const look = this.#database.transaction(["chats", "texts"]);
    const record = await result(look.objectStore("chats").get(id));
    if (!record) return null;
    const texts = look.objectStore("texts");
    const found = await Promise.all(record.sources.map(({ key }) => result(texts.get(key))));
    record.sources.forEach((source, place) => { source.text = found[place] ?? ""; });
    return { ...conversation(), ...record };
  }

  // All conversations without their texts, the newest first.
  async list() {
    const all = await result(this.#database.transaction("chats").objectStore("chats").getAll());
    return all.sort((one, other) => other.changed - one.changed);
  }

  // Also deletes the texts of which no conversation speaks.
  async remove(ids) {
    await this.#change(async (chats, texts) => {
      ids.forEach((id) => chats.delete(id));
      const used = new Set((await result(chats.getAll())).flatMap(({ sources }) => sources.map((source) => source.key)));
      for (const key of await result(texts.getAllKeys())) if (!used.has(key)) texts.delete(key);
    });
  }
}
