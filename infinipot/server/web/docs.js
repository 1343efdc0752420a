// The interface as openapi.json describes it. Nothing here comes from elsewhere.

import { key } from "./server.js";
import { trial } from "./try.js";

const made = (tag, text = "", kind = "") => Object.assign(document.createElement(tag), { textContent: text, className: kind });
let schemas = {};

const meant = (schema) => (schema.$ref ? schemas[schema.$ref.split("/").pop()] : schema);

// A schema's kind in a few words: "whole number, 2 to 2147483648, or null".
function kindOf(schema) {
  const own = meant(schema);
  const several = own.anyOf || own.oneOf;
  if (several) return several.map(kindOf).join(" or ");
  if ("const" in own) return JSON.stringify(own.const);
  if (own.enum) return own.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (own.type === "array") return `list of ${own.items && Object.keys(own.items).length ? kindOf(own.items) : "anything"}`;
  if (own.type === "object" && own.properties) return `{${Object.keys(own.properties).join(", ")}}`;
  const least = own.minimum ?? own.exclusiveMinimum, most = own.maximum ?? own.exclusiveMaximum;
  const range = least === undefined && most === undefined ? "" : `, ${least ?? "…"} to ${most ?? "…"}`;
  return `${own.type || "anything"}${range}`;
}

function row(name, schema, required, told) {
  const line = made("tr"), first = made("td"), own = meant(schema);
  first.append(made("code", name), made("span", required ? " required" : "", "note"));
  const usual = own.default === undefined || own.default === null ? "" : ` (default ${JSON.stringify(own.default)})`;
  line.append(first, made("td", kindOf(schema) + usual), made("td", told || own.description || ""));
  return line;
}

function table(title, rows) {
  const whole = made("table");
  whole.append(...rows);
  return rows.length ? [made("h3", title), whole] : [];
}

function bodyOf(operation) {
  return Object.entries(operation.requestBody?.content || {}).flatMap(([media, { schema }]) => {
    const own = meant(schema), required = own.required || [];
    if (!own.properties) return [made("h3", `Body: ${media}`), made("p", kindOf(schema), "note")];
    return table(`Body: ${media}`, Object.entries(own.properties).map(([name, one]) => row(name, one, required.includes(name))));
  });
}

function responsesOf(operation) {
  return table("Answers", Object.entries(operation.responses).map(([status, { description, content }]) => {
    const line = made("tr");
    line.append(made("td", status), made("td", Object.keys(content || {}).join(", ")), made("td", description));
    return line;
  }));
}

function section(path, method, operation) {
  const whole = made("details"), head = made("summary");
  head.append(made("span", method.toUpperCase(), "method"), made("code", path), made("span", ` ${operation.description || operation.summary}`, "note"));
  const given = (operation.parameters || []).map((one) => row(`${one.name} (${one.in})`, one.schema, one.required, one.description));
  whole.append(head, ...table("Parameters", given), ...bodyOf(operation), ...responsesOf(operation), trial(path, method, operation, meant));
  return whole;
}

async function show() {
  const place = document.getElementById("paths");
  const reply = await fetch("openapi.json");
  if (!reply.ok) throw new Error(`openapi.json: ${reply.status}`);
  const { paths, components, info } = await reply.json();
  schemas = components.schemas;
  place.replaceChildren(made("p", `${info.title} ${info.version}. ${info.summary}`));
  for (const [path, operations] of Object.entries(paths))
    for (const [method, operation] of Object.entries(operations)) place.append(section(path, method, operation));
}

const field = document.getElementById("key");
field.value = key.get();
field.addEventListener("input", () => key.set(field.value.trim()));
show().catch((problem) => { document.getElementById("paths").textContent = problem.message; });
