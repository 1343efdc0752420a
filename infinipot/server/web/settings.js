// The settings: of answers, and of the pot. An empty field leaves the server's own.

import { root, storage } from "./server.js";

const store = storage("localStorage");
const PLACE = `infinipot-settings ${root.pathname}`;

function valueOf(field) {
  return field.type === "number" ? Number(field.value) : field.value;
}

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.fields = [...dialog.querySelectorAll("[name]")];
    dialog.querySelector("form").addEventListener("submit", () => this.save());
    dialog.querySelector("#settings-defaults").addEventListener("click", () => this.fields.forEach((field) => { field.value = ""; }));
  }

  get values() { return JSON.parse(store.getItem(PLACE) || "{}"); }

  // model: the server's description of its model, with its defaults.
  show(model) {
    const defaults = { ...model?.sampling, ...model?.pot.options, distill_to: model?.pot.distill_to };
    const { values } = this;
    for (const field of this.fields) {
      if (field.list) this.suggest(field.list, model?.pot.policies || []);
      field.value = values[field.name] ?? "";
      if (field.localName === "input") field.placeholder = defaults[field.name] ?? "";
    }
    this.dialog.showModal();
  }

  suggest(list, names) {
    list.replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
  }

  save() {
    const given = this.fields.filter((field) => field.value.trim() !== "");
    const values = Object.fromEntries(given.map((field) => [field.name, valueOf(field)]));
    store.setItem(PLACE, JSON.stringify(values));
  }

  of(group) {
    const names = this.fields.filter((field) => field.closest("fieldset").name === group).map((field) => field.name);
    return Object.fromEntries(Object.entries(this.values).filter(([name]) => names.includes(name)));
  }

  get sampling() { return this.of("answers"); }

  get system() { return this.values.system; }

  get retention() { return this.of("retention"); }
}
