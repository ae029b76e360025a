// Knobs: a form made from what GET /knobs describes. Edits are collected, checked by a dry run, and sent as one change.

import { request } from "./api.js";
import { byId, debounce, h, notice, setInactive, setText, toast } from "./dom.js";
import { integer, knobValue } from "./format.js";
import { KnobField } from "./knob_field.js";
import { on, readOnlyReason, store } from "./store.js";

const GROUPS = [
  ["Policy", "Which rows are on the device, and what is skipped for stale rows.", ["policy", "action"]],
  ["Skipping", "When a hot row counts as stale, and how much work is skipped for it.",
    ["stale_threshold", "target_skip_ratio", "alpha", "keep_probability", "stale_metric", "probe_ratio", "min_probe_touches", "min_touch_ratio"]],
  ["Guarding quality", "Limits of the policy adaptive: how much quality skipping may cost.", ["guard_ratio", "guard_max_logloss_increase"]],
  ["Placement", "How much memory the hot rows get, and how often they are chosen again.", ["hot_budget_bytes", "reclassify_every", "max_moved_bytes", "hysteresis"]],
  ["Tracking", "How the popularity of rows is counted.", ["sample_ratio", "decay"]],
  ["Learning", "Factors of the learning rates, and a limit of gradients.", ["lr_factor", "embedding_lr_factor", "schedule_offset", "clip_norm"]],
  ["Loop", "Reading ahead, reporting, evaluations and checkpoints.",
    ["prefetch_depth", "lookahead_batches", "admit_after", "evict_ratio", "evict_after", "report_every", "eval_every_steps", "checkpoint_every_steps", "checkpoint_every_seconds"]],
];
const OTHER = ["More", "", []];
const fields = new Map();
const form = h("form", { class: "knobs", novalidate: true });
const message = h("div", {}, notice("Loading the knobs …"));
const conflict = h("div", { class: "notice warn", role: "alert", hidden: true });
const staged = h("p");
const apply = h("button", { type: "submit", class: "primary" }, "Apply");
const why = h("input", { type: "text", class: "why", maxlength: 500, placeholder: "Why? (for the journal)", "aria-label": "Why? (for the journal)", autocomplete: "off" });
const dock = h("div", { class: "dock", hidden: true }, staged, why, h("div", { class: "buttons" }, h("button", { type: "button", onclick: discard }, "Discard"), apply));
let etag = null;
let pending = false; // whether a change waits, anybody's
let sending = false;
let lastEdited = null; // the field
let lockedOut = null; // the control that had the keyboard's focus when the fields were locked
let checks = 0;
const waitingFor = new Map(); // knobs sent and still pending: name -> the value that was accepted

export function start() {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("screen-knobs").append(message, conflict, form);
  on("knobs", () => load());
  on("snapshot", lock);
  on("connection", () => { lock(); if (store.connection === "live") load(); });
}

export function show() { if (!fields.size) load(); }

async function load() {
  try {
    const { data, etag: tag } = await request("GET", "/knobs");
    etag = tag;
    pending = data.pending;
    if (!fields.size) build(data.knobs);
    const others = editedFields().filter((field) => data.knobs[field.name].desired !== field.knob.desired);
    for (const [name, knob] of Object.entries(data.knobs)) fields.get(name)?.update(knob, data.reason);
    if (others.length && !sending) sayChanged(others);
    if (!data.pending && waitingFor.size) settled(data);
    showStaged();
    return data;
  } catch (error) {
    if (!fields.size) message.replaceChildren(notice(`The knobs could not be read: ${error.message}`, "bad"));
    return null;
  }
}

function build(knobs) {
  const placed = new Set(GROUPS.flatMap(([, , names]) => names));
  const rest = Object.keys(knobs).filter((name) => !placed.has(name));
  for (const [title, about, names] of [...GROUPS, [OTHER[0], OTHER[1], rest]]) {
    const present = names.filter((name) => Object.hasOwn(knobs, name));
    if (!present.length) continue;
    for (const name of present) fields.set(name, new KnobField(name, knobs[name], edited));
    form.append(h("fieldset", { class: "card" }, h("legend", {}, title), h("p", { class: "muted about" }, about), present.map((name) => fields.get(name).element)));
  }
  form.append(dock);
  lock();
}

let lockedFor = null;
function lock() {
  const reason = readOnlyReason() || (store.connection === "lost" ? "No connection to the sidecar." : "");
  if (reason === lockedFor || !fields.size) return;
  lockedFor = reason;
  if (reason && form.contains(document.activeElement)) lockedOut = document.activeElement;
  for (const field of fields.values()) field.setDisabled(reason);
  if (!reason && document.activeElement === document.body) lockedOut?.focus();
  if (!reason) lockedOut = null;
  message.replaceChildren(...(reason ? [notice(reason)] : []));
}

const editedFields = () => [...fields.values()].filter((field) => field.edited);

/** The edits as one merge patch; null where one of them cannot be sent, which its field then says. */
function patch() {
  const changes = {};
  let good = true;
  for (const field of editedFields()) {
    const { value } = field;
    if (value === undefined) { field.setError(field.fault); good = false; } else changes[field.name] = value;
  }
  return good ? changes : null;
}

function edited(field) {
  lastEdited = field;
  showStaged();
  check();
}

function showStaged() {
  const list = editedFields();
  if (!list.length && dock.contains(document.activeElement)) lastEdited?.focus();
  dock.hidden = list.length === 0;
  form.classList.toggle("docked", list.length > 0);
  setText(staged, `${list.length === 1 ? "1 change" : `${list.length} changes`}: ${list.map((field) => field.summary()).join(", ")}`);
  if (!list.length) conflict.hidden = true;
}

/** Checks the edits with a dry run; an error is shown at its field. */
const check = debounce(async () => {
  const asked = (checks += 1);
  if (!editedFields().length || sending) return;
  const changes = patch();
  if (!changes) return;
  try {
    await request("PATCH", "/knobs?dry_run=1", { body: changes, etag });
    if (asked === checks) for (const field of editedFields()) field.setError("");
  } catch (error) {
    if (asked === checks && (error.status === 422 || error.status === 409)) showErrors(error);
  }
}, 350);

function showErrors(error) {
  let said = false;
  for (const { knob, detail } of error.errors) {
    const field = fields.get(knob);
    if (field) { field.setError(detail.replace(/^knobs\./, "")); said = true; }
  }
  const only = editedFields();
  if (!said && only.length === 1) only[0].setError(error.message);
  else if (!said) toast(error.message, "bad");
}

async function send() {
  if (sending || !editedFields().length) return;
  const changes = patch();
  if (!changes) return;
  const sent = editedFields().map((field) => [field, field.text, field.reset]);
  sending = true;
  setInactive(apply, true);
  setText(apply, "Applying …");
  try {
    const reason = why.value.trim();
    const { status, data } = await request("PATCH", reason ? `/knobs?why=${encodeURIComponent(reason)}` : "/knobs", { body: changes, etag });
    why.value = "";
    await accepted(status, data, sent);
  } catch (error) {
    if (error.status === 412) await changedElsewhere();
    else { showErrors(error); if (error.errors.length === 0 && error.status !== 422) toast(error.message, "bad"); }
  }
  sending = false;
  setInactive(apply, false);
  setText(apply, "Apply");
}

async function accepted(status, data, sent) {
  for (const [field, text, reset] of sent) if (field.text === text && field.reset === reset) field.discard(); // else edited meanwhile
  const names = sent.map(([field]) => field.name);
  conflict.hidden = true;
  if (status === 202 || data.applied_at_step === null) {
    for (const name of names) waitingFor.set(name, data.desired[name]);
    toast(`Accepted and pending: ${data.reason}.`, "");
  } else {
    for (const name of names) fields.get(name)?.took(data.applied_at_step);
    toast(`${names.join(", ")}: took effect at step ${integer(data.applied_at_step)}.`);
  }
  await load();
}

/** Nothing is pending any more: what was accepted is in effect, or the run refused it, or something else came after it. */
function settled({ knobs, effective_since_step: step }) {
  const names = [...waitingFor.keys()];
  const took = names.filter((name) => knobs[name].effective === waitingFor.get(name));
  const not = names.filter((name) => !took.includes(name));
  waitingFor.clear();
  for (const name of took) fields.get(name)?.took(step);
  if (took.length) toast(`${took.join(", ")}: took effect at step ${integer(step)}.`);
  const now = (name) => `${name} is ${knobValue(knobs[name].effective, knobs[name].unit)}`;
  if (not.length) toast(`The change did not take effect: ${not.map(now).join(", ")}. See Events for the reason.`, "bad");
}

/** A refused If-Match: the new values are shown, the edits kept. */
async function changedElsewhere() {
  const before = new Map([...fields].map(([name, field]) => [name, field.knob.desired]));
  await load();
  sayChanged([...fields.values()].filter((field) => field.knob.desired !== before.get(field.name)));
}

function sayChanged(list) {
  const what = list.map(({ name, knob }) => `${name} is now ${knobValue(knob.desired, knob.unit)}`).join(", ");
  setText(conflict, `Someone else changed the knobs meanwhile${what ? `: ${what}` : ""}. Your edits are kept; check them and apply again.`);
  conflict.hidden = false;
  conflict.scrollIntoView({ block: "nearest" });
}

function discard() {
  for (const field of editedFields()) field.discard();
  showStaged();
}

setInterval(() => { if ((waitingFor.size || pending) && store.connection !== "lost") load(); }, 1000);
