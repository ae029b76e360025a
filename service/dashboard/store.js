// What the page knows of the run: newest figures, history over steps, events. Screens subscribe to what changes.

import { Live, get } from "./api.js";
import { changeInWords } from "./format.js";

const POINTS = 4096;
const EVENTS = 2000;
const PAGE = 1000;
const WINDOW_STEPS = 200;

export const store = {
  status: null, stats: null, connection: "connecting",
  columns: null, evaluations: [], // history; columns by name, one entry per snapshot
  events: [], // oldest first
  recent: [], // last snapshots, for what happened lately
};

/** Phases of a run that trains no more; its sidecar may go on. */
export const ENDED = new Set(["finished", "failed", "suspended", "killed"]);

const topics = new EventTarget();
let knobsEtag = null;
let run = null;
let lastEvent = 0;
let loadingEvents = false;
let loadingHistory = false;

/** Calls `run` when a topic changes: "snapshot", "history", "events", "knobs", "connection", "theme",
 * "view" (what charts show of x), "compared" (runs that they show beside this one). */
export const on = (topic, run) => topics.addEventListener(topic, run);
export const announce = (topic) => topics.dispatchEvent(new Event(topic));

export const isLive = () => Boolean(store.status?.live);
export const mayWrite = () => isLive() && store.status.scope === "control";

/** Why nothing can be changed, in words; "" where it can. */
export function readOnlyReason() {
  if (!store.status) return "Still connecting.";
  if (!store.status.live) return "This run is over: its history can be read, nothing can be changed.";
  return store.status.scope === "control" ? "" : "You signed in with the read-only token.";
}

/** Kinds of events that charts mark, with the sign and the name of the mark; knob changes are numbered. */
const MARKED = { knobs: ["", "knob change"], rolled_back: ["R", "rollback"], watchdog: ["W", "watchdog"] };
const GOES_BACK = ["started", "rolled_back"];
let marked = [];

/** Events that the charts mark, oldest first: [{id, kind, step, sign, name, text}]. */
export const marks = () => marked;

/** Finds the marks anew. Where the run went back to a checkpoint, marks behind it are left out, those of its step too: they are not on
 * its line any more. */
function mark() {
  marked = [];
  const saved = new Map(); // by checkpoint, the event that began it
  let changes = 0;
  for (const event of store.events) {
    const { id, kind, step } = event;
    const { checkpoint } = event.details ?? {};
    if (kind === "saving") saved.set(checkpoint, id);
    const includes = (each) => each.step < step || (each.step === step && !(each.id > saved.get(checkpoint)));
    if (GOES_BACK.includes(kind)) marked = marked.filter(includes);
    if (!Object.hasOwn(MARKED, kind)) continue;
    const [letter, name] = MARKED[kind];
    const sign = letter || String((changes += 1));
    marked.push({ id, kind, step, sign, name: letter ? name : `${name} ${sign}`, text: kind === "knobs" ? changeInWords(event) : event.text });
  }
}

export function start() {
  new Live({ hz: 2, onSnapshot: takeSnapshot, onState: takeState });
  loadHistory();
}

/** Asks for the status now: after a command, rather than with the next snapshot. */
export async function refreshStatus() {
  store.status = await get("/status").catch(() => store.status);
  announce("snapshot");
}

function takeState(state) {
  const back = store.connection !== "live" && state === "live";
  store.connection = state;
  announce("connection");
  if (back && store.columns) loadHistory();
}

function takeSnapshot({ status, stats, last_event_id: eventId, knobs_etag: etag }) {
  const identity = `${status.run.path} ${status.run.started}`;
  if (run !== null && identity !== run) return location.reload();
  run = identity;
  const ended = store.status && !ENDED.has(store.status.phase) && ENDED.has(status.phase);
  Object.assign(store, { status, stats });
  if (ended) loadHistory(); // the last steps may have been too quick for the stream
  if (stats) append(status, stats);
  announce("snapshot");
  if (eventId === undefined || eventId !== lastEvent) loadEvents(eventId);
  if (etag !== undefined && etag !== knobsEtag) {
    knobsEtag = etag;
    announce("knobs");
  }
}

/** Adds the newest snapshot to the history. Steps that go back mean a resumed run: read it anew. */
function append(status, stats) {
  remember(stats);
  const { columns } = store;
  if (!columns) return;
  const last = columns.step.at(-1) ?? -1;
  if (stats.step < last) { loadHistory(); return; }
  if (status.evaluation && status.evaluation.step !== store.evaluations.at(-1)?.step) store.evaluations.push({ seconds: stats.seconds, ...status.evaluation });
  if (stats.step === last) return;
  const { ratios, totals } = stats;
  const point = {
    ...totals, ...stats, samples_per_second: status.samples_per_second, loss: status.loss,
    hot_lookup_ratio: ratios.hot_lookup, popular_sample_ratio: ratios.popular_sample,
    skipped_sample_ratio: ratios.skipped_sample, skipped_row_update_ratio: ratios.skipped_row_update,
  };
  for (const [name, values] of Object.entries(columns)) values.push(point[name] ?? null);
  if (columns.step.length > POINTS) thin(columns);
  announce("history");
}

/** Leaves out every second point of the older half; the newest stay dense. */
function thin(columns) {
  const half = columns.step.length / 2;
  for (const name of Object.keys(columns)) columns[name] = columns[name].filter((_, index) => index > half || index % 2 === 0);
}

function remember(stats) {
  const { recent } = store;
  if (recent.length && stats.step < recent.at(-1).step) recent.length = 0;
  if (recent.at(-1)?.step === stats.step) return;
  recent.push({ step: stats.step, seconds: stats.seconds, stages: stats.stage_seconds, totals: stats.totals });
  while (recent.length > 2 && recent.at(-1).step - recent[1].step >= WINDOW_STEPS) recent.shift();
}

/** Reads the whole history: at first, and whenever snapshots may have been missed. */
async function loadHistory() {
  if (loadingHistory) return;
  loadingHistory = true;
  try {
    const { columns, evaluations } = await get("/stats/history?since=0");
    Object.assign(store, { columns, evaluations });
  } catch {
    if (!store.columns) setTimeout(loadHistory, 2000);
  } finally {
    loadingHistory = false;
  }
  announce("history");
}

const isKept = ({ kind }) => Object.hasOwn(MARKED, kind) || GOES_BACK.includes(kind);

/** Reads the events that are new; at first the last thousand, and all of those kinds that the charts mark or need for it. */
async function loadEvents(newest) {
  if (loadingEvents) return;
  loadingEvents = true;
  try {
    if (newest !== undefined && newest < lastEvent) Object.assign(store, { events: [] }), (lastEvent = 0);
    if (lastEvent === 0) await loadFirstEvents();
    else {
      const page = await get(`/events?since=${lastEvent}&limit=${PAGE}`);
      store.events.push(...page.events);
      lastEvent = page.events.at(-1)?.id ?? page.last_id;
    }
    if (store.events.length > EVENTS) store.events = store.events.filter((event, index) => isKept(event) || index > EVENTS / 4);
    mark();
    announce("events");
  } catch { /* the stream's next snapshot asks again; the connection's state is shown anyway */ }
  loadingEvents = false;
}

async function loadFirstEvents() {
  const { last_id: last } = await get("/events?limit=1");
  const since = Math.max(0, last - PAGE);
  const kinds = since > 0 ? [...new Set([...Object.keys(MARKED), ...GOES_BACK])] : [];
  const pages = [get(`/events?since=${since}&limit=${PAGE}`), ...kinds.map((kind) => get(`/events?kind=${kind}&limit=${PAGE}`))];
  const [page, ...older] = await Promise.all(pages);
  const before = older.flatMap(({ events }) => events).filter((event) => event.id <= since);
  store.events = [...before.sort((one, two) => one.id - two.id), ...page.events];
  lastEvent = page.last_id;
}
