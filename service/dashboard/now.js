// Now: the figures of the moment, charts of the run, where the step's time goes.

import { Disk } from "./disk.js";
import { byId, h, setText } from "./dom.js";
import { bytes, count, fixed, integer, percent, significant } from "./format.js";
import { NowCharts } from "./now_charts.js";
import { Ranking } from "./ranking.js";
import { Ranks } from "./ranks.js";
import { Stages } from "./stages.js";
import { ENDED, on, store } from "./store.js";

const TILES = [
  ["rate", "Samples / s"], ["loss", "Training loss"], ["auc", "AUC"], ["best", "Best AUC"], ["hot", "Hot lookups"],
  ["skipped", "Skipped"], ["moved", "Bytes moved / s"], ["rows", "Hot rows"], ["stale", "Stale rows"],
];
const tiles = {};
let shown = false;
let charts;
let disk;
let ranking;
let ranks;
let stages;
const parted = h("p", { class: "notice warn parted", role: "status", hidden: true });

export function start() {
  const grid = h("div", { class: "tiles" }, TILES.map(([key, label]) => {
    tiles[key] = { label: h("span", { class: "label" }, label), value: h("b", {}, "–"), sub: h("span", { class: "muted" }, "\u00a0") };
    return (tiles[key].element = h("div", { class: "card tile", id: `tile-${key}`, hidden: key === "best" }, tiles[key].label, tiles[key].value, tiles[key].sub));
  }));
  disk = new Disk();
  ranking = new Ranking();
  ranks = new Ranks();
  stages = new Stages();
  charts = new NowCharts();
  byId("screen-now").append(grid, parted, ranking.element, disk.element, ranks.element, ...charts.bars, h("div", { class: "charts" }, charts.elements, stages.element));
  on("snapshot", () => shown && showFigures());
  on("history", () => shown && store.stats && showQuality());
}

export function show() {
  shown = true;
  showFigures();
  charts.show(true);
}

export function hide() {
  shown = false;
  charts.show(false);
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
    priceOf(stats) ?? (bySample ? "of samples" : "of row updates"));
  set("rows", count(stats.hot_rows), `placement ${integer(stats.placement_version)}`);
  set("stale", count(stats.stale_rows), staleIn(stats));
  showMoved();
  showQuality();
  showParted(status);
  ranking.show();
  disk.show();
  ranks.show();
  stages.show();
}

/** The newest evaluation; of a run that has ended the final and the best one, which takes the place of the bytes moved. */
function showQuality() {
  const { evaluation, live, phase, held_out: held } = store.status;
  const over = !live || ENDED.has(phase);
  const best = over && evaluation ? bestOf([...store.evaluations, evaluation]) : null;
  const figures = ({ logloss, step }) => `logloss ${fixed(logloss)} at\u00a0step\u00a0${integer(step)}`;
  setText(tiles.auc.label, over && evaluation ? "Final AUC" : "AUC");
  if (!evaluation) set("auc", "–", over ? "no evaluation" : "no evaluation yet");
  else if (over && held) set("auc", fixed(held.auc), `held out, ${figures(held)}`);
  else set("auc", fixed(evaluation.auc), over ? figures(evaluation) : `at step ${integer(evaluation.step)}${bestSoFar(store.status)}`);
  tiles.best.element.hidden = !best;
  tiles.moved.element.hidden = Boolean(best);
  if (best) set("best", fixed(best.auc), figures(best));
}

/** The best evaluation of a run under way, where the newest is not it. */
function bestSoFar({ evaluation, best_evaluation: best }) {
  if (!best || best.step === evaluation.step) return "";
  return `, best ${fixed(best.auc)} at\u00a0step\u00a0${integer(best.step)}`;
}

/** Says that the run stopped early, or that training and evaluation loss have parted, as the run reported it. */
function showParted({ overfit, stopped_early: stopped }) {
  parted.hidden = !overfit && !stopped;
  if (stopped) setText(parted, `${stopped[0].toUpperCase()}${stopped.slice(1)}.`);
  if (!overfit || stopped) return;
  const worse = `evaluation logloss rose from ${fixed(overfit.least_logloss)} at step ${integer(overfit.least_step)} to ${fixed(overfit.logloss)} at step ${integer(overfit.step)}`;
  setText(parted, `Training and evaluation loss have parted: ${worse}, while training loss fell from ${fixed(overfit.least_training_loss)} to ${fixed(overfit.training_loss)}.`);
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
function staleIn({ stale_threshold: threshold, stale_rows: rows, stale_agreement: agreement }) {
  if (typeof agreement === "number" && rows) return `${percent(agreement, 0)} as in the window before`;
  if (typeof threshold === "number") return `under ${significant(threshold)}`;
  return rows ? "at any movement" : "none yet";
}

/** What a stretch of skipping costs, beside as much at random where that was measured; null before a trial. */
function priceOf({ skipping }) {
  if (!skipping || skipping.cost === null) return null;
  const [cost, most, chance] = [skipping.cost, skipping.most_cost, skipping.cost_at_random].map((value) => (typeof value === "number" ? `${(1e3 * value).toFixed(2)}e-3` : ""));
  return `costs ${cost} (at most ${most})${chance && `, at random ${chance}`}`;
}

function set(key, value, sub) {
  setText(tiles[key].value, value);
  setText(tiles[key].sub, sub);
}
