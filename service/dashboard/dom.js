// Builds elements. Text only ever goes in as text nodes, and printable: table names and event texts come from outside.

import { printable } from "./format.js";

const SEEN = ["title", "aria-label", "placeholder"]; // attributes that people read

/** An element: `h("td", {class: "n", onclick: f}, "text", child)`. Attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : SEEN.includes(name) ? printable(String(value)) : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (typeof child === "string" ? printable(child) : child)));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An element of a drawing: `svg("line", {x1: 0}, child)`. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** An icon of the sprite in index.html. */
export const icon = (name) => svg("svg", { "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));

export const byId = (id) => document.getElementById(id);

/** Writes text only where it changed, so that nothing is laid out again for it. */
export function setText(element, text) {
  const seen = printable(String(text ?? ""));
  if (element.textContent !== seen) element.textContent = seen;
}

/** Makes a button inactive for a while. Unlike one that is `disabled`, it keeps the keyboard's focus; its handler asks `isInactive`. */
export const setInactive = (button, inactive) => button.setAttribute("aria-disabled", String(inactive));

export const isInactive = (button) => button.getAttribute("aria-disabled") === "true";

/** Calls `run` once, `milliseconds` after the last call. */
export function debounce(run, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}

/** A message in the corner that goes away; errors stay longer. */
export function toast(text, kind = "good") {
  const note = h("div", { class: `toast ${kind}` }, h("span", {}, text),
    h("button", { class: "icon", type: "button", "aria-label": "Dismiss", onclick: () => dismiss(note) }, icon("close")));
  byId("toasts").append(note);
  while (byId("toasts").childElementCount > 4) dismiss(byId("toasts").firstElementChild);
  setTimeout(() => dismiss(note), kind === "bad" ? 12000 : 6000);
}

/** Takes a message away. The keyboard's focus goes to the next message, or to the page's content where there is none. */
function dismiss(note) {
  const focused = note.contains(document.activeElement);
  const next = note.nextElementSibling ?? note.previousElementSibling;
  note.remove();
  if (focused) (next?.querySelector("button") ?? byId("content")).focus({ preventScroll: true });
}

/** A line in place of content: loading, empty or failed. */
export const notice = (text, kind = "") => h("p", { class: `notice ${kind}` }, text);
