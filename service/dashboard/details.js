// Details: what the trainer uses of the machine, the configuration that it began with, and the ends of its logs.

import { get } from "./api.js";
import { byId, h, notice, setText } from "./dom.js";
import { bytes, duration, exactBytes, fixed, integer, percent } from "./format.js";
import { sparkline } from "./sparkline.js";
import { isLive, on, store } from "./store.js";

const EVERY_MS = 2000;
const LINES = 500;
const LOGS = [["log.txt", "Log of the run"], ["sidecar.log", "Messages of the service"]];
const FIGURES = [
  ["cpu", "Processor"], ["memory", "Memory"], ["threads", "Threads"], ["disk", "Disk read / written"], ["device", "Rows on the device"], ["peak", "Device, most at one time"],
];
const figures = {};
const resourceBox = h("div", {});
const configBox = h("div", {}, notice("Loading the configuration …"));
const search = h("input", { type: "search", placeholder: "Search keys", "aria-label": "Search keys", autocomplete: "off", oninput: () => showKeys() });
const changedOnly = h("input", { type: "checkbox", onchange: () => showKeys() });
const found = h("span", { class: "muted", role: "status" });
const logs = new Map(); // name -> {text, about, end, lines}
let keys = null;
let shown = false;
let asking = false;

export function start() {
  byId("screen-details").append(
    h("section", { class: "card details-card", "aria-labelledby": "details-use" }, h("div", { class: "card-head" }, h("h2", { id: "details-use" }, "What the trainer uses")), resourceBox),
    ...LOGS.map(([name, title]) => log(name, title)),
    h("section", { class: "card details-card", "aria-labelledby": "details-config" },
      h("div", { class: "card-head" }, h("h2", { id: "details-config" }, "Configuration"), h("span", { class: "muted" }, "as the run began; Knobs has what became of knobs since")),
      h("div", { class: "bar" }, h("div", { class: "search" }, search), h("label", { class: "check" }, changedOnly, " not the default"), found), configBox),
  );
  setInterval(() => { if (shown && !document.hidden && store.connection !== "lost") refresh(); }, EVERY_MS);
  on("snapshot", () => { if (shown && !keys) loadKeys(); });
}

export function show() {
  shown = true;
  refresh();
  if (!keys) loadKeys();
}

export const hide = () => { shown = false; };

async function refresh() {
  if (asking) return;
  asking = true;
  await Promise.all([loadResources(), ...LOGS.map(([name]) => loadLog(name))]);
  asking = false;
}

// Resources ------------------------------------------------------------------------------------------------------------

async function loadResources() {
  try {
    showResources(await get("/resources"));
  } catch (error) {
    for (const name of Object.keys(figures)) delete figures[name];
    resourceBox.replaceChildren(notice(isLive() ? error.message : "This run is over: what a process uses is known only while it trains."));
  }
}

function showResources(now) {
  if (!figures.cpu) buildResources();
  const share = now.cpu_cores === null ? "–" : `${fixed(now.cpu_cores, 2)} of ${fixed(now.cores, now.cores % 1 ? 1 : 0)} cores`;
  setText(figures.cpu, share);
  setText(figures.memory, `${bytes(now.resident_bytes)}${now.memory_limit_bytes ? ` of ${bytes(now.memory_limit_bytes)} (${percent(now.resident_bytes / now.memory_limit_bytes, 0)})` : ""}`);
  setText(figures.threads, integer(now.threads));
  setText(figures.disk, `${bytes(now.disk_read_bytes)} / ${bytes(now.disk_written_bytes)}`);
  setText(figures.device, bytes(now.device_bytes));
  setText(figures.peak, now.device_peak_bytes ? bytes(now.device_peak_bytes) : "no device");
  const known = now.points.filter((point) => point.cpu_cores !== null);
  const span = now.points.length > 1 ? duration(now.points.at(-1).time - now.points[0].time) : "0 s";
  figures.charts.replaceChildren(
    sparkline({ title: "Cores busy", values: known.map((point) => point.cpu_cores), format: (value) => fixed(value, 2), span, limit: now.cores, color: "line-1" }),
    sparkline({ title: "Memory", values: now.points.map((point) => point.resident_bytes), format: bytes, span, color: "line-2" }),
  );
}

function buildResources() {
  const parts = FIGURES.map(([key, label]) => {
    figures[key] = h("b", {}, "–");
    return h("div", {}, h("span", { class: "label" }, label), figures[key]);
  });
  figures.charts = h("div", { class: "sparklines" });
  resourceBox.replaceChildren(h("div", { class: "use-figures" }, parts), figures.charts);
}

// Logs -----------------------------------------------------------------------------------------------------------------

function log(name, title) {
  const about = h("span", { class: "muted" });
  const text = h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": title });
  logs.set(name, { text, about, end: null, lines: [] });
  return h("section", { class: "card details-card" }, h("div", { class: "card-head" }, h("h2", {}, title), about), text);
}

async function loadLog(name) {
  const log = logs.get(name);
  try {
    const page = await get(`/log?name=${name}${log.end === null ? "" : `&since=${log.end}`}`);
    if (!page.exists) {
      setText(log.about, name === "log.txt" ? "none: the run trains in a terminal, or its output goes elsewhere" : "none yet");
      log.text.hidden = true;
      return;
    }
    const anew = log.end === null || page.start !== log.end;
    if (!anew && !page.lines.length && !log.text.hidden) return;
    const atEnd = log.text.scrollHeight - log.text.scrollTop - log.text.clientHeight < 24;
    log.lines = [...(anew ? [] : log.lines), ...page.lines].slice(-LINES);
    log.end = page.end;
    log.text.hidden = log.lines.length === 0;
    setText(log.about, `${name}, ${exactBytes(page.size_bytes)}${log.lines.length === LINES ? `, the last ${integer(LINES)} lines` : ""}`);
    setText(log.text, log.lines.join("\n"));
    if (atEnd) log.text.scrollTop = log.text.scrollHeight;
  } catch (error) {
    setText(log.about, error.message);
  }
}

// Configuration --------------------------------------------------------------------------------------------------------

async function loadKeys() {
  try {
    ({ keys } = await get("/config"));
    showKeys();
  } catch (error) {
    configBox.replaceChildren(notice(`The configuration cannot be shown: ${error.message}`, "bad"));
  }
}

function showKeys() {
  if (!keys) return;
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = keys.filter((each) => (!changedOnly.checked || each.changed) && words.every((word) => `${each.key} ${each.why}`.toLowerCase().includes(word)));
  setText(found, `${integer(wanted.length)} of ${integer(keys.length)} keys, ${integer(keys.filter((each) => each.changed).length)} not the default`);
  if (!wanted.length) { configBox.replaceChildren(notice("No key has these words.")); return; }
  const head = h("tr", {}, ["Key", "Value", "Default", "What it is for"].map((name) => h("th", { scope: "col" }, name)));
  const rows = wanted.map((each) => h("tr", { class: each.changed ? "changed" : null },
    h("th", { scope: "row" }, h("code", {}, each.key), " ", each.changed ? h("span", { class: "mark-changed", title: "Not the default" }, "changed") : null),
    h("td", {}, inWords(each.value, each.unit)), h("td", { class: "muted" }, inWords(each.default, each.unit)), h("td", { class: "muted why" }, each.why)));
  configBox.replaceChildren(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Keys of the configuration" }, h("table", { class: "grid config" }, h("thead", {}, head), h("tbody", {}, rows))));
}

/** A value of the configuration: sizes in their units, lists and tables as JSON. */
function inWords(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes" && typeof value === "number") return exactBytes(value);
  if (value === "") return "(empty)";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
