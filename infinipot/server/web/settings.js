// The settings: of answers, and of the pot. An empty field leaves the server's own.

import { root } from "./server.js";

const PLACE = `infinipot-settings ${root.pathname}`;

function valueOf(field) {
  return field.type === "number" ? Number(field.value) : field.value;
}

export class Settings {
  constructor(dialog) {
    this.dialog = dialog;
    this.fields = [...dialog.querySelectorAll("[name]")];
    this.values = JSON.parse(localStorage.getItem(PLACE) || "{}");
    dialog.addEventListener("close", () => dialog.returnValue === "ok" && this.save());
    dialog.querySelector("#settings-defaults").addEventListener("click", () => this.fields.forEach((field) => { field.value = ""; }));
  }

  // model: the server's description of its model, with its defaults.
  show(model) {
    const defaults = { ...model?.sampling, ...model?.pot.options, distill_to: model?.pot.distill_to };
    for (const field of this.fields) {
      if (field.list) this.suggest(field.list, model?.pot.policies || []);
      field.value = this.values[field.name] ?? "";
      if (field.localName === "input") field.placeholder = defaults[field.name] ?? "";
    }
    this.dialog.returnValue = "";
    this.dialog.showModal();
  }

  suggest(list, names) {
    list.replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
  }

  save() {
    const given = this.fields.filter((field) => field.value.trim() !== "");
    this.values = Object.fromEntries(given.map((field) => [field.name, valueOf(field)]));
    localStorage.setItem(PLACE, JSON.stringify(this.values));
  }

  of(group) {
    const names = this.fields.filter((field) => field.closest("fieldset").name === group).map((field) => field.name);
    return Object.fromEntries(names.filter((name) => name in this.values).map((name) => [name, this.values[name]]));
  }

  get sampling() { return this.of("answers"); }

  get system() { return this.values.system; }

  get retention() { return this.of("retention"); }
}
