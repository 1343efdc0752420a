// Messages as elements.

import { copyText, render } from "./markdown.js";

const number = (value) => value.toLocaleString("en");
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const LONGEST = 20_000; // characters of a question on the screen: a browser takes long to lay out millions

export function noteOf({ usage, cut, unread }) {
  const parts = [];
  if (unread) parts.push(`The model has not read this: ${unread}`);
  if (cut) parts.push(cut);
  if (usage) {
    const { prompt_tokens, prompt_tokens_details: { cached_tokens }, pot } = usage;
    parts.push(`${plural(prompt_tokens - cached_tokens, "token")} read now, ${number(cached_tokens)} known`);
    parts.push(`pot ${number(pot.kept)} of ${number(pot.size)}`, plural(pot.distillations, "distillation"));
  }
  return parts.join(" · ");
}

export function button(label, act) {
  const element = Object.assign(document.createElement("button"), { type: "button", textContent: label });
  element.addEventListener("click", () => act(element));
  return element;
}

// Copy a text, and say so on the button.
export async function copyFrom(element, text) {
  try {
    await copyText(text);
    element.textContent = "Copied";
  } catch (problem) {
    element.textContent = `Not copied: ${problem.message}`;
  }
  setTimeout(() => { element.textContent = "Copy"; }, 1500);
}

export class View {
  // acts: {edit, again}, called with the message.
  constructor(message, acts) {
    Object.assign(this, { message, acts });
    this.element = document.createElement("div");
    this.said = document.createElement("div");
    this.note = document.createElement("small");
    this.bar = document.createElement("div");
    this.thought = document.createElement("details");
    this.said.className = "said";
    this.bar.className = "actions";
    this.thought.className = "thought";
    this.thought.append(Object.assign(document.createElement("summary"), { textContent: "Reasoning" }), document.createElement("div"));
    this.element.append(this.said, this.bar);
    this.draw();
  }

  draw() {
    const { role, content } = this.message;
    this.drawReasoning();
    if (role === "assistant") this.said.replaceChildren(render(content));
    else this.said.textContent = content.slice(0, LONGEST);
    const more = role === "user" ? content.length - LONGEST : 0;
    if (more > 0) this.said.append(` … and ${plural(more, "character")} that the model is told, too`);
  }

  // Open while the model reasons, closed when it answers; afterwards as the reader leaves it.
  drawReasoning() {
    const { thought, said, message: { content, reasoning } } = this, stage = content ? "answers" : "reasons";
    if (!reasoning) return;
    if (!thought.isConnected) said.before(thought);
    if (thought.dataset.stage !== stage) Object.assign(thought, { open: !content }).dataset.stage = stage;
    thought.lastElementChild.textContent = reasoning;
  }

  // last: whether the conversation ends with it. waiting: what it waits for; null if for nothing.
  decorate(last, waiting = null) {
    const { message, element, bar } = this, { role, unread } = message;
    element.className = `message ${role}${unread ? " unread" : ""}${waiting === null ? "" : " waiting"}`;
    element.dataset.waiting = waiting || "…";
    element.setAttribute("aria-busy", String(waiting !== null));
    const buttons = [button("Copy", (element) => copyFrom(element, message.content))];
    if (role === "user") buttons.push(button("Edit", () => this.edit()));
    if (unread) buttons.push(button("Try again", () => this.acts.again(message)));
    if (role === "assistant" && last) {
      const again = button("Regenerate", () => this.acts.again(message));
      again.title = "With temperature 0 the answer is the same again";
      buttons.push(again);
    }
    bar.replaceChildren(...buttons);
    bar.hidden = waiting !== null;
    this.note.textContent = noteOf(message);
    if (this.note.textContent && waiting === null) bar.before(this.note); else this.note.remove();
  }

  edit() {
    const form = document.createElement("form"), field = document.createElement("textarea"), row = document.createElement("div");
    Object.assign(field, { value: this.message.content, rows: Math.min(12, this.message.content.split("\n").length + 1) });
    field.setAttribute("aria-label", "Message; what follows it will be replaced");
    const save = Object.assign(document.createElement("button"), { type: "submit", textContent: "Send", className: "main" });
    row.className = "row";
    row.append(button("Cancel", () => this.leave(form)), save);
    form.append(field, row);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text && this.acts.edit(this.message, text)) form.remove();
    });
    field.addEventListener("keydown", (event) => {
      if (sends(event)) { event.preventDefault(); form.requestSubmit(); }
      if (event.key === "Escape") this.leave(form);
    });
    for (const part of [this.said, this.bar]) part.hidden = true;
    this.element.classList.add("editing");
    this.element.prepend(form);
    field.focus();
  }

  leave(form) {
    form.remove();
    for (const part of [this.said, this.bar]) part.hidden = false;
    this.element.classList.remove("editing");
  }
}

// Whether a key sends what has been typed: Enter, but neither with Shift nor while a character is being composed.
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}
