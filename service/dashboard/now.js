// Now: the figures of the moment, charts over steps with the knob changes in them, where the step's time goes.

import { Chart, highlight } from "./charts.js";
import { Disk } from "./disk.js";
import { byId, h, setText } from "./dom.js";
import { bytes, count, exactBytes, fixed, integer, percent, significant } from "./format.js";
import { Ranks } from "./ranks.js";
import { Stages } from "./stages.js";
import { ENDED, knobChanges, on, store } from "./store.js";

const RANGES = [["All", Infinity], ["Last 2,000 steps", 2000], ["Last 500", 500]];
const TILES = [
  ["rate", "Samples / s"], ["loss", "Training loss"], ["auc", "AUC"], ["best", "Best AUC"], ["hot", "Hot lookups"],
  ["skipped", "Skipped"], ["moved", "Bytes moved / s"], ["rows", "Hot rows"], ["stale", "Stale rows"],
];
const tiles = {};
let range = Infinity;
let shown = false;
let charts;
let disk;
let ranks;
let stages;
const changes = h("div", { class: "changes" });
const chips = new Map(); // those shown of the knob changes, by what they say

export function start() {
  const grid = h("div", { class: "tiles" }, TILES.map(([key, label]) => {
    tiles[key] = { label: h("span", { class: "label" }, label), value: h("b", {}, "–"), sub: h("span", { class: "muted" }, "\u00a0") };
    return (tiles[key].element = h("div", { class: "card tile", id: `tile-${key}`, hidden: key === "best" }, tiles[key].label, tiles[key].value, tiles[key].sub));
  }));
  disk = new Disk();
  ranks = new Ranks();
  stages = new Stages();
  charts = makeCharts();
  byId("screen-now").append(grid, disk.element, ranks.element, bar(), h("div", { class: "charts" }, Object.values(charts).map((chart) => chart.element), stages.element));
  on("snapshot", () => shown && showFigures());
  on("history", () => { if (shown) { showCharts(); if (store.stats) showQuality(); } });
  on("events", () => shown && showChanges());
}

export function show() {
  shown = true;
  showFigures();
  showCharts();
  showChanges();
}

export const hide = () => { shown = false; };

function makeCharts() {
  const share = (value) => percent(value, 0);
  const speed = (value) => `${bytes(value)}/s`;
  const sizes = [1, 2 ** 10, 2 ** 20, 2 ** 30].flatMap((unit) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((times) => times * unit));
  return {
    rate: new Chart({ title: "Rate", unit: "samples/s", spokenUnit: "samples/s", format: count, floor: 0, series: [{ label: "samples seen", color: "line-1", fill: true }] }),
    loss: new Chart({ title: "Loss", unit: "◆ evaluation", spokenUnit: "nats", pointsLabel: "evaluation", format: (value) => fixed(value, 3), points: evaluationPoints, series: [{ label: "training", color: "line-1" }] }),
    hot: new Chart({ title: "Lookups and samples", format: share, floor: 0, ceiling: 1,
      series: [{ label: "hot lookups", color: "hot" }, { label: "popular samples", color: "line-1" }] }),
    skipped: new Chart({ title: "Skipped", format: share, floor: 0, ceiling: 1,
      series: [{ label: "row updates", color: "stale-line" }, { label: "samples", color: "line-1" }] }),
    rows: new Chart({ title: "Rows on the device", spokenUnit: "rows", format: count, floor: 0, series: [{ label: "hot", color: "hot" }, { label: "of them stale", color: "stale-line" }] }),
    moved: new Chart({ title: "Bytes moved", unit: "between the tiers", format: speed, tick: (value) => (value ? exactBytes(value) : "0"), steps: sizes, floor: 0,
      series: [{ label: "to device", color: "line-1" }, { label: "to host", color: "line-2" }] }),
  };
}

function evaluationPoints() {
  return store.evaluations.filter((evaluation) => typeof evaluation.logloss === "number").map((evaluation) => ({
    x: evaluation.step, y: evaluation.logloss,
    text: `evaluation at step ${integer(evaluation.step)}: AUC ${fixed(evaluation.auc)}, logloss ${fixed(evaluation.logloss)}`,
  }));
}

/** The knob changes in order, and the choice of how many steps the charts show. */
function bar() {
  const pick = (event) => {
    range = RANGES[Number(event.target.value)][1];
    showCharts();
  };
  const choices = RANGES.map(([label], index) => h("label", {}, h("input", { type: "radio", name: "range", value: index, checked: index === 0, onchange: pick }), h("span", {}, label)));
  return h("div", { class: "bar" }, changes, h("div", { class: "segmented", role: "group", "aria-label": "Steps shown" }, choices));
}

function showChanges() {
  const wanted = new Map(knobChanges().slice(-12).reverse().map((change) => [JSON.stringify(change), change]));
  for (const [key, chip] of chips) if (!wanted.has(key)) { chip.remove(); chips.delete(key); }
  if (!wanted.size) changes.replaceChildren(h("span", { class: "muted" }, "Knob changes are marked in the charts at the step where they took effect. There are none yet."));
  else if (!chips.size) changes.replaceChildren();
  let before = changes.firstElementChild;
  for (const [key, change] of wanted) {
    if (chips.has(key)) { before = chips.get(key).nextElementSibling; continue; } // one that stays keeps the keyboard's focus
    chips.set(key, chip(change));
    changes.insertBefore(chips.get(key), before);
  }
  for (const chart of Object.values(charts)) chart.redraw();
}

function chip({ number, step, text }) {
  const on = () => highlight(number);
  const off = () => highlight(null);
  return h("button", { type: "button", class: "chip", title: `step ${integer(step)}: ${text}`, onmouseenter: on, onmouseleave: off, onfocus: on, onblur: off },
    h("i", {}, String(number)), h("span", {}, text), h("span", { class: "muted" }, `step ${integer(step)}`));
}

function showFigures() {
  const { status, stats } = store;
  if (!status || !stats) return;
  const { ratios } = stats;
  const { evaluation } = status;
  set("rate", count(status.samples_per_second), `${significant(round3(status.steps_per_second))} steps/s`);
  set("loss", fixed(status.loss), evaluation ? `evaluated ${fixed(evaluation.logloss)}` : "last snapshot");
  set("hot", percent(ratios.hot_lookup), `popular ${percent(ratios.popular_sample, 0)}`);
  const bySample = ratios.skipped_sample > ratios.skipped_row_update;
  set("skipped", percent(bySample ? ratios.skipped_sample : ratios.skipped_row_update),
    bySample ? "of samples" : "of row updates");
  set("rows", count(stats.hot_rows), `placement ${integer(stats.placement_version)}`);
  set("stale", count(stats.stale_rows), staleIn(stats));
  showMoved();
  showQuality();
  disk.show();
  ranks.show();
  stages.show();
}

/** The newest evaluation; of a run that has ended the final and the best one, which takes the place of the bytes moved. */
function showQuality() {
  const { evaluation, live, phase } = store.status;
  const over = !live || ENDED.has(phase);
  const best = over && evaluation ? bestOf([...store.evaluations, evaluation]) : null;
  const figures = ({ logloss, step }) => `logloss ${fixed(logloss)} at\u00a0step\u00a0${integer(step)}`;
  setText(tiles.auc.label, over && evaluation ? "Final AUC" : "AUC");
  if (!evaluation) set("auc", "–", over ? "no evaluation" : "no evaluation yet");
  else set("auc", fixed(evaluation.auc), over ? figures(evaluation) : `at step ${integer(evaluation.step)}`);
  tiles.best.element.hidden = !best;
  tiles.moved.element.hidden = Boolean(best);
  if (best) set("best", fixed(best.auc), figures(best));
}

/** The evaluation of the greatest AUC, the earliest of equal ones; null where none has an AUC. */
const bestOf = (evaluations) => evaluations.filter(({ auc }) => typeof auc === "number").reduce((best, each) => (best && best.auc >= each.auc ? best : each), null);

/** Rows move in bursts, when classes change: the figure is over the last snapshots together. */
function showMoved() {
  const last = store.recent.at(-1);
  const first = store.recent.length > 1 ? store.recent[0] : { seconds: 0, totals: {} };
  const seconds = last.seconds - first.seconds;
  const [up, down] = ["host_to_device_bytes", "device_to_host_bytes"].map((name) => (last.totals[name] - (first.totals[name] ?? 0)) / seconds);
  set("moved", bytes(up + down), up + down > 0 ? `${percent(up / (up + down), 0)} to the device` : "nothing moves");
}

const round3 = (value) => (typeof value === "number" ? Number(value.toPrecision(3)) : value);

/** Where the threshold is null, no number is the limit: every row of known movement is stale, where there are any. */
function staleIn({ stale_threshold: threshold, stale_rows: rows }) {
  if (typeof threshold === "number") return `under ${significant(threshold)}`;
  return rows ? "at any movement" : "none yet";
}

function set(key, value, sub) {
  setText(tiles[key].value, value);
  setText(tiles[key].sub, sub);
}

function showCharts() {
  const { columns } = store;
  if (!columns) return;
  const last = columns.step.at(-1) ?? 0;
  const first = columns.step.findIndex((step) => step >= last - range);
  const from = Math.max(0, first);
  const cut = (name) => columns[name].slice(from);
  const step = cut("step");
  charts.rate.setData([step, cut("samples_per_second")]);
  charts.loss.setData([step, cut("loss")]);
  charts.hot.setData([step, cut("hot_lookup_ratio"), cut("popular_sample_ratio")]);
  charts.skipped.setData([step, cut("skipped_row_update_ratio"), cut("skipped_sample_ratio")]);
  charts.rows.setData([step, cut("hot_rows"), cut("stale_rows")]);
  const moved = [perSecond("host_to_device_bytes"), perSecond("device_to_host_bytes")];
  charts.moved.setData([step, moved[0].slice(from), moved[1].slice(from)]);
}

/** A cumulative column as bytes per second of training. A resumed run counts from zero again: unknown there. */
function perSecond(name) {
  const { seconds, [name]: total } = store.columns;
  return total.map((value, index) => {
    if (index === 0) return null;
    const [gain, time] = [value - total[index - 1], seconds[index] - seconds[index - 1]];
    return gain >= 0 && time > 0 ? gain / time : null;
  });
}
