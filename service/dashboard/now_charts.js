// The charts of the run, and the bar above them: marked events, compared runs, and what all charts show along x.

import { perSecond, secondsAt } from "./chart_data.js";
import { byTime, isZoomed, move, showBy, showNewest, zoomBy, zoomOut } from "./chart_view.js";
import { Chart, highlight } from "./charts.js";
import { compared, sources, toggle } from "./compared.js";
import { h, icon } from "./dom.js";
import { bytes, count, exactBytes, fixed, integer, nameOf, percent, significant } from "./format.js";
import { rankedOf } from "./ranking.js";
import { marks, on } from "./store.js";

const NEWEST = [["All", Infinity], ["Last 2,000 steps", 2000], ["Last 500", 500]];
const SHOWN_MARKS = 12;
const share = (value) => percent(value, 0);
const of = (...names) => ({ columns }) => ({ step: columns?.step ?? [], seconds: columns?.seconds ?? [], values: names.map((name) => columns?.[name] ?? []) });

export class NowCharts {
  constructor() {
    this.charts = makeCharts();
    this.changes = h("div", { class: "changes", role: "group", "aria-label": "Marked events", tabindex: 0 });
    this.runs = h("div", { class: "compared", role: "group", "aria-label": "Runs compared with this one" });
    this.chips = new Map(); // those shown of the marks, by what they say
    this.shown = false;
    this.bars = [h("div", { class: "bar chart-bar" }, this.runs, this.#view()), this.changes];
    this.elements = this.charts.map((chart) => chart.element);
    this.ranked = new Map(); // charts of metrics that rank, by their names
    for (const topic of ["history", "compared", "events"]) on(topic, () => this.#draw());
    on("view", () => { this.#showView(); this.#draw(); });
    for (const topic of ["compared", "snapshot"]) on(topic, () => this.shown && this.#showRuns());
    on("events", () => this.#showChanges());
  }

  show(shown) {
    this.shown = shown;
    this.#draw();
    this.#showChanges();
    this.#showRuns();
  }

  #draw() {
    if (!this.shown) return;
    const all = sources();
    this.#addRanked(all);
    if (all[0].columns) for (const chart of this.charts) chart.show(all);
  }

  /** Adds a chart, behind that of the AUC, for each metric that ranks and is new. */
  #addRanked(all) {
    const names = new Set(all.flatMap(({ evaluations }) => evaluations.flatMap((each) => Object.keys(rankedOf(each)))));
    for (const name of names) {
      if (this.ranked.has(name)) continue;
      const chart = new Chart({ ...ofEvaluations(name, (each) => rankedOf(each)[name]), unit: "of evaluations, mean over groups" });
      [this.charts.find(({ title }) => title === "AUC"), ...this.ranked.values()].at(-1).element.after(chart.element);
      this.ranked.set(name, chart);
      this.charts.push(chart);
    }
  }

  /** Steps or time, how many steps, and the buttons that zoom. */
  #view() {
    const radio = (group, label, checked, pick) => h("label", {}, h("input", { type: "radio", name: group, checked, onchange: pick }), h("span", {}, label));
    const choices = (label, ...inner) => h("div", { class: "segmented", role: "group", "aria-label": label }, ...inner);
    const button = (label, sign, run) => h("button", { type: "button", class: "zoom", "aria-label": label, title: label, onclick: run }, sign);
    this.reset = button("Reset zoom", "Reset", zoomOut);
    this.newest = NEWEST.map(([label, steps], at) => radio("range", label, at === 0, () => showNewest(steps)));
    const zoom = h("div", { class: "zooms", role: "group", "aria-label": "Zoom" },
      button("Zoom in", "+", () => zoomBy(0.5)), button("Zoom out", "−", () => zoomBy(2)),
      button("Earlier", "←", () => move(-1)), button("Later", "→", () => move(1)), this.reset);
    this.#showView();
    return h("div", { class: "views" },
      choices("Along x", radio("x", "Steps", !byTime(), () => showBy("step")), radio("x", "Time", byTime(), () => showBy("time"))),
      choices("Steps shown", this.newest), zoom);
  }

  #showView() { this.reset.classList.toggle("primary", isZoomed()); }

  /** The compared runs as chips that take them away. */
  #showRuns() {
    const all = compared();
    const key = JSON.stringify(all.map(({ name, problem, columns }) => [name, problem, Boolean(columns)]));
    if (key === this.runsKey) return;
    const focused = this.runs.contains(document.activeElement);
    this.runsKey = key;
    const chips = all.map(({ name, style, problem, columns }) => {
      const state = problem ? ` (${problem})` : columns ? "" : " (loading)";
      const letter = h("i", {}, style.letter);
      letter.style.background = `var(--${style.color})`;
      return h("button", { type: "button", class: "chip", "aria-label": `${style.letter} ${nameOf(name)}${state}: take out of the charts`, title: `${nameOf(name)}${state}`, onclick: () => toggle(name) },
        letter, " ", h("span", {}, nameOf(name) + state), icon("close"));
    });
    this.link = h("a", { href: "#runs", class: "compare-link" }, all.length ? "Choose runs" : "Compare with other runs");
    this.runs.replaceChildren(...chips, this.link);
    if (focused) (this.runs.querySelector("button") ?? this.link).focus();
  }

  #showChanges() {
    if (!this.shown) return;
    const { changes, chips } = this;
    const wanted = new Map(marks().slice(-SHOWN_MARKS).reverse().map((mark) => [JSON.stringify(mark), mark]));
    for (const [key, chip] of chips) if (!wanted.has(key)) { chip.remove(); chips.delete(key); }
    if (!wanted.size) changes.replaceChildren(h("span", { class: "muted" }, "Knob changes, rollbacks and what the watchdog does are marked in the charts at their steps. There are none yet."));
    else if (!chips.size) changes.replaceChildren();
    let before = changes.firstElementChild;
    for (const [key, mark] of wanted) {
      if (chips.has(key)) { before = chips.get(key).nextElementSibling; continue; } // one that stays keeps the keyboard's focus
      chips.set(key, markChip(mark));
      changes.insertBefore(chips.get(key), before);
    }
  }
}

function markChip({ id, kind, sign, name, step, text }) {
  const on = () => highlight(id);
  const off = () => highlight(null);
  return h("button", { type: "button", class: "chip", "data-kind": kind, title: `${name} at step ${integer(step)}: ${text}`, onmouseenter: on, onmouseleave: off, onfocus: on, onblur: off },
    h("i", {}, sign), h("span", {}, text), h("span", { class: "muted" }, `step ${integer(step)}`));
}

function makeCharts() {
  const speed = (value) => `${bytes(value)}/s`;
  const sizes = [1, 2 ** 10, 2 ** 20, 2 ** 30].flatMap((unit) => [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((times) => times * unit));
  const moved = ({ columns }) => ({
    step: columns?.step ?? [], seconds: columns?.seconds ?? [],
    values: columns ? [perSecond(columns, "host_to_device_bytes"), perSecond(columns, "device_to_host_bytes")] : [[], []],
  });
  return [
    { title: "Rate", unit: "samples/s", figures: "samples/s", spokenUnit: "samples/s", format: count, floor: 0, read: of("samples_per_second"), lines: [{ label: "samples seen", color: "line-1", fill: true }] },
    { title: "Loss", unit: "◆ evaluation", figures: "nats", spokenUnit: "nats", pointsLabel: "evaluation", format: (value) => fixed(value, 3), points: evaluationPoints, read: of("loss"), lines: [{ label: "training", color: "line-1" }] },
    ofEvaluations("AUC", (each) => each.auc),
    { title: "Lookups and samples", figures: "share", format: share, floor: 0, ceiling: 1, read: of("hot_lookup_ratio", "popular_sample_ratio"),
      lines: [{ label: "hot lookups", color: "hot" }, { label: "popular samples", color: "line-1" }] },
    { title: "Skipped", figures: "share", format: share, floor: 0, ceiling: 1, read: of("skipped_row_update_ratio", "skipped_sample_ratio"),
      lines: [{ label: "row updates", color: "stale-line" }, { label: "samples", color: "line-1" }] },
    { title: "Rows on the device", figures: "rows", spokenUnit: "rows", format: count, floor: 0, read: of("hot_rows", "stale_rows"), lines: [{ label: "hot", color: "hot" }, { label: "of them stale", color: "stale-line" }] },
    { title: "Learning rates", unit: "at the next step", figures: "rate", format: significant, floor: 0, read: of("dense_lr", "embedding_lr"),
      lines: [{ label: "dense part", color: "line-1" }, { label: "rows", color: "line-2" }] },
    { title: "Bytes moved", unit: "between the tiers", figures: "bytes/s", format: speed, tick: (value) => (value ? exactBytes(value) : "0"), steps: sizes, floor: 0, read: moved,
      lines: [{ label: "to device", color: "line-1" }, { label: "to host", color: "line-2" }] },
  ].map((about) => new Chart(about));
}

function evaluationPoints({ evaluations }) {
  return evaluations.filter(({ logloss }) => typeof logloss === "number").map(({ step, seconds, auc: of, logloss }) => ({
    step, seconds, y: logloss, text: `evaluation at step ${integer(step)}: AUC ${fixed(of)}, logloss ${fixed(logloss)}`,
  }));
}

/** A chart of a figure of a run's evaluations, as a line. Evaluations of older versions have no time: it is that of the snapshots beside them. */
function ofEvaluations(title, figure) {
  const read = ({ evaluations, columns }) => {
    const known = evaluations.filter((each) => typeof figure(each) === "number");
    const seconds = known.map((each) => each.seconds ?? (columns ? secondsAt(columns, each.step) : 0));
    return { step: known.map(({ step }) => step), seconds, values: [known.map(figure)] };
  };
  return { title, unit: "of evaluations", figures: title, format: (value) => fixed(value, 4), dots: true, read, lines: [{ label: "held-out samples", color: "evaluation" }] };
}
