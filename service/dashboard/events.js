// Events: what happened in the run, newest first, live; a line opens its details.

import { request } from "./api.js";
import { byId, h, isInactive, notice, setInactive, setText, toast } from "./dom.js";
import { changeInWords, clock, integer, knobValue } from "./format.js";
import { on, readOnlyReason, store } from "./store.js";

const SHOWN = 300;
const LABELS = {
  started: "started", knobs: "knobs", reclassified: "reclassified", split: "whole or split", checkpoint: "checkpoint", evaluation: "evaluation",
  paused: "paused", resumed: "resumed", stopping: "stopping", branched: "branched", warning: "warning", sidecar: "sidecar", failed: "failed", finished: "finished", suspended: "suspended",
  saving: "checkpoint started", checkpoint_failed: "checkpoint failed", guard: "quality guard", memory: "memory", arranged: "arranged", nan: "batch skipped",
  watchdog: "watchdog", stopped_early: "stopped early", scored: "scored",
  evicted: "ids lost rows", overfit: "losses parted", going_back: "going back", rolled_back: "went back", settings: "settings", left_out: "data left out",
};
const list = h("ol", { class: "events card" });
const filters = h("div", { class: "filters", role: "group", "aria-label": "Kinds of events" });
const message = h("div", {}, notice("Loading the events …"));
const chips = new Map();
const hidden = new Set();
const lines = new Map();
const undos = new Map(); // event id -> the button that undoes its change of knobs
let shown = false;

export function start() {
  byId("screen-events").append(filters, message, list);
  on("events", () => shown && render());
  on("snapshot", () => shown && showUndos());
}

export function show() {
  shown = true;
  render();
}

export const hide = () => { shown = false; };

function render() {
  const { events } = store;
  showFilters(events);
  const wanted = events.filter((event) => !hidden.has(event.kind)).slice(-SHOWN).reverse();
  list.hidden = wanted.length === 0;
  const known = new Set(wanted.map((event) => event.id));
  for (const [id, line] of lines) if (!known.has(id)) { line.remove(); lines.delete(id); undos.delete(id); }
  let before = list.firstElementChild;
  for (const event of wanted) {
    const old = lines.get(event.id);
    if (old) { before = old.nextElementSibling; continue; }
    const line = make(event);
    lines.set(event.id, line);
    list.insertBefore(line, before);
  }
  showUndos();
  const loading = !store.status || (store.connection !== "lost" && events.length === 0 && store.status.live);
  message.replaceChildren(...(wanted.length ? [] : [notice(events.length ? "No events of the chosen kinds." : loading ? "No events yet." : "This run recorded no events.")]));
}

/** One chip per kind seen, with how many there are; pressed is shown. */
function showFilters(events) {
  const counts = new Map();
  for (const { kind } of events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const [kind, number] of counts) {
    if (!chips.has(kind)) {
      const total = h("span", { class: "muted" });
      const chip = h("button", { type: "button", class: "chip kind", "data-kind": kind, "aria-pressed": "true", onclick: () => toggle(kind) }, h("i"), LABELS[kind] ?? kind, " ", total);
      chips.set(kind, { chip, total });
      filters.append(chip);
    }
    setText(chips.get(kind).total, integer(number));
  }
}

function toggle(kind) {
  if (!hidden.delete(kind)) hidden.add(kind);
  chips.get(kind).chip.setAttribute("aria-pressed", String(!hidden.has(kind)));
  render();
}

function make(event) {
  const text = [h("span", { class: "kind", "data-kind": event.kind }, h("i"), LABELS[event.kind] ?? event.kind), h("span", { class: "event-text" }, event.kind === "knobs" ? changeInWords(event) : event.text)];
  const when = [h("time", { datetime: event.time, title: event.time }, clock(event.time)), h("span", { class: "muted step" }, event.step === null ? "" : `step ${integer(event.step)}`)];
  const entries = Object.entries(event.details ?? {});
  if (!entries.length) return h("li", {}, h("div", { class: "event" }, ...when, ...text));
  return h("li", {}, h("details", {}, h("summary", { class: "event" }, ...when, ...text),
    h("dl", {}, entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, detail(name, value))]))), undoButton(event));
}

/** The button that sets the knobs of a change back; none for other events, and for undos. */
function undoButton(event) {
  if (event.kind !== "knobs" || event.details?.undoes !== undefined) return null;
  const label = `Undo the change at step ${integer(event.step)}: ${changeInWords(event)}`;
  const button = h("button", { type: "button", class: "undo", "aria-label": label, onclick: () => undo(event, button) }, "Undo");
  undos.set(event.id, button);
  return button;
}

/** Shows the buttons of changes that can be undone: the run takes commands, and they were not undone yet. */
function showUndos() {
  const undone = new Set(store.events.map((event) => event.details?.undoes));
  for (const [id, button] of undos) button.hidden = Boolean(readOnlyReason()) || undone.has(id);
}

async function undo(event, button) {
  if (isInactive(button)) return;
  setInactive(button, true);
  try {
    const { data } = await request("POST", `/knobs/undo?event=${event.id}`);
    const back = changeInWords({ text: "", details: { changed: data.changed } });
    toast(data.applied_at_step === null ? `The undo is pending: ${data.reason}.` : `${back}: took effect at step ${integer(data.applied_at_step)}.`);
  } catch (error) {
    toast(error.message, "bad");
  }
  setInactive(button, false);
}

/** A detail as text; changed knobs as old → new. */
function detail(name, value) {
  if (name === "changed" && value && typeof value === "object") return changeInWords({ text: "", details: { changed: value } });
  if (typeof value === "number") return knobValue(value, name.endsWith("_bytes") ? "bytes" : "");
  return typeof value === "string" ? value : JSON.stringify(value);
}
