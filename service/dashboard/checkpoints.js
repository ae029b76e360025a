// Checkpoints: those that the run can go back to, newest first, each with the evaluation before it; and the way back.

import { get, request } from "./api.js";
import { byId, h, isInactive, notice, setInactive, setText, toast } from "./dom.js";
import { bytes, clock, fixed, integer } from "./format.js";
import { ENDED, mayWrite, on, readOnlyReason, refreshStatus, store } from "./store.js";

const REFRESH_MS = 5000;
const PAGE = 50;
const HEADS = ["Checkpoint", "Step", "Written", "AUC", "Log loss", "Size", "Rows"];
const KINDS = ["checkpoint", "checkpoint_failed", "rolled_back", "started"];
const body = h("tbody");
const found = h("span", { class: "muted", role: "status" });
const message = h("div", {}, notice("Looking for checkpoints …"));
const card = h("div", { class: "card runs-card checkpoint-card", hidden: true }, h("table", { class: "grid run-list" }, h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)), h("td", {}))), body));
const more = h("button", { type: "button", hidden: true, onclick: () => { wanted = 200; refresh(); } }, "Show more");
const skip = h("input", { type: "checkbox", id: "rollback-skip" });
const why = h("input", { type: "text", class: "why", maxlength: 500, placeholder: "Reason, for the journal (optional)", "aria-label": "Reason, for the journal" });
const title = h("h2", { id: "rollback-title" });
const about = h("p", {});
const dialog = h("dialog", { class: "rollback", "aria-labelledby": "rollback-title", onclose: decided }, h("form", { method: "dialog" }, title, about,
  h("label", { class: "check" }, skip, " Do not train again on the samples seen since then"), why,
  h("div", { class: "buttons" }, h("button", { value: "no", type: "submit" }, "Cancel"), h("button", { value: "back", type: "submit", class: "danger" }, "Roll back"))));
let buttons = []; // of the lines, each with its checkpoint
let wanted = PAGE;
let shown = false;
let timer = 0;
let asked = 0;
let seen = ""; // what is in the table
let chosen = null; // the checkpoint that the dialog asks about
let going = null; // {name, after}: a rollback that was sent, and the newest event then
let lastEvent = 0;

export function start() {
  byId("screen-checkpoints").append(
    h("p", { class: "muted screen-about" }, "A run can go on from an earlier checkpoint of its own: its tables, its optimizer and its place in the data are what they were then. Checkpoints written since are removed."),
    h("div", { class: "bar" }, found), message, card, more);
  document.body.append(dialog);
  on("snapshot", showButtons);
  on("connection", showButtons);
  on("events", takeEvents);
}

export function show() {
  shown = true;
  refresh();
}

export function hide() {
  shown = false;
  clearTimeout(timer);
}

async function refresh() {
  clearTimeout(timer);
  const number = (asked += 1);
  try {
    const listed = await get(`/checkpoints?limit=${wanted}`);
    if (number === asked) render(listed);
  } catch (error) {
    if (number === asked) message.replaceChildren(notice(error.message, "bad"));
  }
  if (shown && number === asked) timer = setTimeout(refresh, REFRESH_MS);
}

function render(listed) {
  const text = JSON.stringify(listed);
  if (text === seen) return; // a button under the pointer stays the same
  seen = text;
  const { checkpoints, total } = listed;
  const focused = document.activeElement?.dataset?.checkpoint;
  buttons = [];
  body.replaceChildren(...checkpoints.map(line));
  body.querySelector(`[data-checkpoint="${focused}"]`)?.focus({ preventScroll: true });
  card.hidden = !checkpoints.length;
  more.hidden = checkpoints.length >= total || wanted > PAGE;
  const few = checkpoints.length < total ? `the newest ${integer(checkpoints.length)} of ` : "";
  setText(found, `${few}${integer(total)} ${total === 1 ? "checkpoint" : "checkpoints"}`);
  message.replaceChildren(...(checkpoints.length ? [] : [notice("The run has written no checkpoint yet.")]));
  showButtons();
}

function line(checkpoint, place) {
  const { name, step, written, size_bytes: size, kind, builds_on: base, error, not_looked_at: unseen, evaluation } = checkpoint;
  const button = h("button", { type: "button", class: "back", "data-checkpoint": name, "aria-label": `Roll back to ${name}`, onclick: () => isInactive(button) || ask(checkpoint, place) }, "Roll back to here");
  buttons.push({ button, error });
  const scored = evaluation && evaluation.step !== step ? h("span", { class: "muted" }, ` at ${integer(evaluation.step)}`) : null;
  const cells = [
    [integer(step)], [written ? clock(written) : "–"], [fixed(evaluation?.auc), scored], [fixed(evaluation?.logloss)], [typeof size === "number" ? bytes(size) : "–"],
    [kind === "changes" ? `changed since step ${integer(stepOf(base))}` : kind === "full" ? "all" : "–"],
  ];
  const note = error ? h("p", { class: "damaged" }, `Damaged: ${error}`) : unseen ? h("p", { class: "muted" }, `Not looked at: ${unseen}`) : null;
  return h("tr", { class: error ? "wrong" : null }, h("th", { scope: "row" }, h("code", {}, name), note),
    ...cells.map((content, at) => h("td", { "data-label": HEADS[at + 1] }, ...content)), h("td", { class: "act" }, button));
}

const stepOf = (name) => Number(name.slice("step-".length).split(".")[0]);

function showButtons() {
  const { status } = store;
  const over = !status?.live || ENDED.has(status.phase);
  const reason = over ? "This run is over: adaptive-rec branch begins a new one with a checkpoint." : readOnlyReason();
  for (const { button, error } of buttons) {
    button.hidden = over;
    button.disabled = !mayWrite() || Boolean(error);
    setInactive(button, going !== null || store.connection === "lost" || status?.phase === "rolling_back");
    button.title = reason || (error ? "A damaged checkpoint cannot be gone back to" : "Go on from this checkpoint");
  }
}

function ask(checkpoint, newer) {
  chosen = checkpoint;
  const since = Math.max(0, (store.status?.step ?? checkpoint.step) - checkpoint.step);
  const removed = newer === 0 ? "No checkpoint is newer." : newer === 1 ? "The checkpoint written since is removed." : `The ${integer(newer)} checkpoints written since are removed.`;
  setText(title, `Roll back to step ${integer(checkpoint.step)}?`);
  about.replaceChildren(
    h("span", {}, `The run goes on from ${checkpoint.name}. `, h("b", {}, `${integer(since)} ${since === 1 ? "step is" : "steps are"} undone`), `, knob changes since then too. ${removed} This cannot be taken back.`));
  skip.checked = false;
  why.value = "";
  dialog.showModal();
}

function decided() {
  const back = dialog.returnValue === "back";
  dialog.returnValue = "";
  if (back) send(chosen);
}

async function send({ name }) {
  going = { name, after: store.events.at(-1)?.id ?? 0 };
  showButtons();
  try {
    const asking = { checkpoint: name, skip_data: skip.checked, ...(why.value.trim() ? { why: why.value.trim() } : {}) };
    const { status, data } = await request("POST", "/control/rollback", { body: asking, timeout: 30000 });
    if (status === 202 || data.step === null) toast(`Rolling back to ${name}: ${data.reason}.`);
    else over(`Went back from step ${integer(data.from_step)} to ${name}.`);
  } catch (error) {
    going = null;
    toast(`Roll back: ${error.message}`, "bad");
  }
  refreshStatus();
  refresh();
}

function over(text) {
  if (going) toast(text);
  going = null;
}

/** A rollback that took longer than its answer ends with an event; so does one that failed. */
function takeEvents() {
  const fresh = store.events.filter(({ id }) => id > lastEvent);
  lastEvent = store.events.at(-1)?.id ?? 0;
  for (const { id, kind, text } of fresh) {
    if (!going || id <= going.after) continue;
    if (kind === "rolled_back") over(text);
    else if (kind === "warning" || kind === "failed") going = null;
  }
  showButtons();
  if (shown && fresh.some(({ kind }) => KINDS.includes(kind))) refresh();
}
