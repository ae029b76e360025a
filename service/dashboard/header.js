// The header: which run, how far it is, whether the figures are live, and the buttons that steer it.

import { request } from "./api.js";
import { byId, h, icon, isInactive, setInactive, setText, toast } from "./dom.js";
import { duration, integer, nameOf, percent, printable } from "./format.js";
import { ENDED, announce, mayWrite, on, readOnlyReason, refreshStatus, store } from "./store.js";

const COMMANDS = {
  pause: { label: "Pause", done: "Paused" },
  resume: { label: "Resume", done: "Training resumed" },
  reclassify: { label: "Reclassify", done: "Rows were reclassified", title: "Choose the hot rows again at the next step boundary. Stale rows are still judged at the end of the window" },
  checkpoint: { label: "Checkpoint", done: "Checkpoint written", title: "Write a checkpoint at the next step boundary" },
  stop: { label: "Stop", done: "The run stops" },
};
const CONNECTION = {
  connecting: ["connecting", "Connecting to the sidecar"],
  live: ["live", "Figures arrive as the run reports them"],
  polling: ["polling", "No live stream is free (at most 64 may be open); figures are requested one by one"],
  lost: ["no connection", "The sidecar does not answer; trying again"],
  asleep: ["asleep", "This tab was in the background"],
};
const buttons = {};
const sending = new Set();

export function start() {
  for (const [name, { label, title }] of Object.entries(COMMANDS)) {
    buttons[name] = h("button", { type: "button", class: "action", id: `do-${name}`, title: title ?? label, onclick: () => act(name) },
      icon(name), h("span", {}, label));
    byId("actions").append(buttons[name]);
  }
  buttons.resume.hidden = true;
  byId("theme").addEventListener("click", switchTheme);
  byId("sign-out").addEventListener("click", signOut);
  byId("stop-dialog").addEventListener("close", (event) => {
    if (event.target.returnValue === "stop") send("stop");
    event.target.returnValue = "";
  });
  on("snapshot", showStatus);
  on("connection", showConnection);
  showConnection();
}

function act(name) {
  if (isInactive(buttons[name])) return;
  if (name === "stop") byId("stop-dialog").showModal();
  else send(name);
}

async function send(name) {
  sending.add(name);
  setInactive(buttons[name], true);
  try {
    const { status, data } = await request("POST", `/control/${name}`, { timeout: 30000 });
    const { done, label } = COMMANDS[name];
    const what = data.checkpoint ? ` (${data.checkpoint})` : "";
    if (status === 202 || data.step === null) toast(`${label} is pending: ${data.reason}.`);
    else toast(`${done} at step ${integer(data.step)}${what}.`);
  } catch (error) {
    toast(`${COMMANDS[name].label}: ${error.message}`, "bad");
  }
  sending.delete(name);
  refreshStatus();
}

/** Ends this browser's session and goes to the sign-in page. */
async function signOut() {
  try {
    await request("DELETE", "/session");
    location.assign("/");
  } catch (error) {
    toast(`Sign out: ${error.message}`, "bad");
  }
}

function showStatus() {
  const { status } = store;
  if (!status) return;
  const { run } = status;
  setText(byId("run-name"), nameOf(run.name));
  byId("run-name").title = printable(run.path);
  setText(byId("run-facts"), [status.policy, run.device, run.precision, `seed ${run.seed}`].join(" · "));
  setText(byId("phase"), status.phase.replace("_", " "));
  byId("phase").dataset.phase = status.phase;
  const ended = status.phase === "suspended" ? "The run was " : "The run failed: ";
  setText(byId("failure"), status.error ? ended + printable(status.error) : "");
  byId("failure").hidden = !status.error;
  setText(byId("damage"), status.damaged.map(({ file, fault }) => `${file}: ${printable(fault)}`).join(". "));
  byId("damage").hidden = !status.damaged.length;
  byId("sign-out").hidden = !status.session;
  showProgress(status);
  showActions(status);
}

function showProgress({ step, steps_total: total, eta_seconds: eta, seconds, phase, live, epoch, epochs }) {
  const share = total ? Math.min(1, step / total) : 0;
  byId("progress-bar").style.transform = `scaleX(${share})`;
  byId("progress").classList.toggle("endless", !total);
  byId("progress").setAttribute("aria-valuenow", String(Math.round(share * 100)));
  setText(byId("step"), `step ${integer(step)}`);
  const pass = epochs > 1 ? `, epoch ${integer(epoch)} of ${integer(epochs)}` : "";
  setText(byId("steps-total"), (total ? `of ${integer(total)} (${percent(share, 0)})` : "no planned end") + pass);
  const left = live && total && phase !== "paused" && typeof eta === "number" ? `${duration(eta)} left` : "";
  setText(byId("eta"), left || `${duration(seconds)} of training`);
  document.title = `${total ? `${percent(share, 0)} · ` : ""}${nameOf(store.status.run.name)} · adaptive-rec`;
}

function showActions({ phase, live }) {
  const reason = readOnlyReason();
  byId("actions").hidden = !live;
  showPair(phase === "paused" ? ["resume", "pause"] : ["pause", "resume"]);
  const ended = ENDED.has(phase);
  if (ended) buttons.pause.hidden = true;
  buttons.reclassify.hidden = buttons.checkpoint.hidden = ended;
  byId("stop-training").hidden = ended;
  byId("stop-service").hidden = !ended;
  for (const [name, button] of Object.entries(buttons)) {
    button.disabled = !mayWrite();
    setInactive(button, store.connection === "lost" || sending.has(name));
    button.title = reason || COMMANDS[name].title || COMMANDS[name].label;
  }
}

/** Shows one of the buttons pause and resume. The keyboard's focus goes from the hidden one to the shown one. */
function showPair([shown, hidden]) {
  const focused = document.activeElement === buttons[hidden];
  buttons[shown].hidden = false;
  if (focused) buttons[shown].focus();
  buttons[hidden].hidden = true;
}

function showConnection() {
  const { connection } = store;
  const over = connection === "live" && store.status && !store.status.live;
  const [text, title] = CONNECTION[connection];
  const element = byId("connection");
  const readOnly = store.status?.live && store.status.scope === "read" ? " · read-only" : "";
  setText(element, over ? "history" : text + (connection === "live" ? readOnly : ""));
  element.dataset.state = over ? "over" : connection;
  element.title = over ? readOnlyReason() : title;
  document.body.classList.toggle("stale", connection === "lost");
  const banner = byId("banner");
  banner.hidden = connection !== "lost";
  setText(banner, banner.hidden ? "" : lostInWords(store.status));
  showActions(store.status ?? { phase: "", live: true });
}

/** Explains a lost connection: the sidecar of a finished run ends with it, any other one is restarted. */
function lostInWords(status) {
  const over = status && (status.phase === "finishing" || ENDED.has(status.phase) || (status.steps_total && status.step >= status.steps_total));
  if (over) return `The run is over and its sidecar has ended. Its history: adaptive-rec serve ${status.run.path}`;
  return "Connection to the sidecar lost. The figures below are the last ones received. Trying to reconnect.";
}

on("snapshot", showConnection);

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("adaptive-rec-theme", root.dataset.theme); } catch { /* storage switched off */ }
  announce("theme");
}
