// Markdown of an answer as elements. HTML in it is shown as it stands, nothing is loaded, and links lead only to
// http(s) and mail.

import { Marked } from "./vendor/marked.js";
import "./vendor/purify.js";

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (sign) => ENTITIES[sign]);
const marked = new Marked({
  renderer: {
    html: ({ text, block }) => (block ? `<p class="raw">${escape(text)}</p>` : escape(text)),
    image: ({ raw }) => escape(raw),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});
const ALLOWED = {
  ALLOWED_TAGS: "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul".split(" "),
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

function asItStands(text) {
  const whole = document.createElement("p");
  whole.className = "raw";
  whole.textContent = text;
  return whole;
}

// A bar with the language and a button above a block of code.
function addBar(block) {
  const bar = document.createElement("div"), language = document.createElement("span"), copy = document.createElement("button");
  const named = /language-(\S+)/.exec(block.firstElementChild?.className || "");
  bar.className = "code-bar";
  language.textContent = named ? named[1] : "";
  Object.assign(copy, { type: "button", className: "copy-code", textContent: "Copy" });
  bar.append(language, copy);
  block.before(bar);
}

export function render(text) {
  let fragment;
  try {
    fragment = globalThis.DOMPurify.sanitize(marked.parse(text), ALLOWED);
  } catch { // nested too deep to be parsed
    return asItStands(text);
  }
  fragment.querySelectorAll("a").forEach((link) => Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" }));
  fragment.querySelectorAll("pre").forEach(addBar);
  return fragment;
}

export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = Object.assign(document.createElement("textarea"), { value: text }); // without https there is no clipboard
  document.body.append(field);
  field.select();
  const worked = document.execCommand("copy");
  field.remove();
  if (!worked) throw new Error("the browser does not allow it");
}
