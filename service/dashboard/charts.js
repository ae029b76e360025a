// Line charts of one quantity each: the run's lines, those of the runs compared with it, and the marks that go through all charts.

import { firstFrom, growing, joined, secondsAt, timeTicks, valueAt } from "./chart_data.js";
import { saveFigures, savePicture } from "./chart_export.js";
import { drawEpochs, drawMarks, drawPoints, epochEnds } from "./chart_marks.js";
import { byTime, onChartKey, shownRange, zoomOut, zoomTo } from "./chart_view.js";
import { inWords } from "./chart_words.js";
import { h, setText, svg } from "./dom.js";
import { count, duration, integer, nameOf } from "./format.js";
import { marks, on, store } from "./store.js";

const HEIGHT = 176;
const NEAR_PX = 7;
const charts = new Set();
let highlighted = null;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Makes one mark strong in all charts (its id), or none (null). */
export function highlight(id) {
  if (id === highlighted) return;
  highlighted = id;
  for (const chart of charts) chart.redraw();
}

/** One chart. `lines` [{label, color (css variable), fill}]; `read` of a run its {step, seconds, values: [of each line...]};
 * `dots`: whether the points of the lines are drawn too; `points` of a run [{step, seconds, y, text}], drawn beside the lines (`pointsLabel`: what they are); `format` of the values,
 * `tick` of the axis (and `steps` between ticks), `floor`/`ceiling` of the axis; `figures`: the unit in files, `spokenUnit`: in words
 * where `format` writes none. */
export class Chart {
  constructor({ title, unit, figures, spokenUnit, lines, dots, read, points, pointsLabel, format, tick, steps, floor, ceiling }) {
    const say = (value) => (spokenUnit ? `${format(value)} ${spokenUnit}` : format(value));
    Object.assign(this, { title, figures, say, lines, dots, read, readPoints: points, pointsLabel, format, tick: tick ?? format, steps, floor, ceiling });
    Object.assign(this, { plot: null, data: null, runs: [], drawn: [], ends: [], shape: "" });
    this.at = h("span", { class: "muted at", hidden: true });
    this.legends = h("div", { class: "legends" });
    this.box = h("div", { class: "plot", role: "img", tabindex: 0, "aria-label": `Line chart of ${title.toLowerCase()}. No figures yet.`, "aria-keyshortcuts": "+ - ArrowLeft ArrowRight 0",
      title: "Drag to zoom, double-click for all steps. Keys: + − ← → 0", onkeydown: (event) => this.#onKey(event) });
    this.tip = h("div", { class: "tip", hidden: true });
    this.empty = h("p", { class: "notice" }, "No figures yet.");
    const button = (kind, what, run) => h("button", { type: "button", class: "save", "aria-label": `Save ${title} as ${kind}`, title: what, onclick: run }, kind);
    this.element = h("figure", { class: "card chart" },
      h("figcaption", {}, h("h2", {}, title, unit ? h("span", { class: "muted" }, ` ${unit}`) : null), this.at,
        button("CSV", "Save the figures shown", () => this.#saveFigures()), button("PNG", "Save the picture", () => this.#savePicture())),
      this.legends, this.box, this.empty);
    new ResizeObserver(() => this.#resize()).observe(this.box);
    on("theme", () => this.#rebuild());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#rebuild());
    charts.add(this);
  }

  /** Draws the runs, the own one first: [{name, style, columns, evaluations}]. */
  show(sources) {
    this.sources = sources;
    this.runs = sources.map((source) => this.#curves(source));
    this.data = joined(this.runs.map(({ table }) => table));
    this.ends = epochEnds(store.status?.run.steps_per_epoch, 0, sources[0].columns?.step.at(-1) ?? 0);
    const some = this.data[0].length > 0 || this.runs.some(({ points }) => points.length > 0);
    this.empty.hidden = some;
    this.box.classList.toggle("none", !some);
    const shape = JSON.stringify(sources.map(({ name, style }) => style && [name, style.letter]));
    if (shape !== this.shape) this.#makeLegends();
    if (some) this.box.setAttribute("aria-label", inWords({ ...this, range: shownRange(), byTime: byTime(), marks: this.#marks(), heads: this.#heads() }));
    if (!some || !this.box.clientWidth) return;
    if (this.plot && shape === this.shape) this.#draw();
    else this.#build();
    this.shape = shape;
    this.#showValues();
  }

  redraw() { this.plot?.redraw(false, false); }

  /** A run's lines and points over the x that is shown. */
  #curves(source) {
    const { step, seconds, values } = this.read(source);
    const place = ({ step: at, seconds: time }) => (byTime() ? time ?? secondsAt(source.columns, at) : at);
    const points = (source.columns && this.readPoints?.(source)) || [];
    return { ...source, table: growing(byTime() ? seconds : step, values), points: points.map((point) => ({ ...point, x: place(point) })) };
  }

  /** Every line in the order of the data: {run, label, color, dash, width, fill}. Those of compared runs have the run's colour and dashes; of two, the second is thin. */
  #heads() {
    return this.runs.flatMap(({ name, style }) => this.lines.map((line, at) => (style
      ? { label: `${style.letter} ${nameOf(name)}: ${line.label}`, run: name, line: line.label, color: style.color, dash: style.dash, width: at ? 1 : 2 }
      : { label: line.label, run: name, line: line.label, color: line.color, dash: line.dash, width: 1.5, fill: line.fill })));
  }

  #makeLegends() {
    this.values = this.#heads().map(({ label, line, color: name, dash, width }) => {
      const value = h("b", {}, "–");
      const whose = label.slice(0, -line.length).trimEnd();
      const swatch = svg("svg", { viewBox: "0 0 28 6", class: "line-swatch", "aria-hidden": "true" }, svg("line", { x1: 0, x2: 28, y1: 3, y2: 3, "stroke-width": width + 0.75, "stroke-dasharray": (dash ?? []).join(" ") }));
      swatch.style.stroke = `var(--${name})`;
      return { value, item: h("span", { class: "legend" }, swatch, h("span", { class: "legend-label", title: label }, h("span", {}, whose), h("span", {}, label.slice(whose.length))), " ", value) };
    });
    this.legends.replaceChildren(...this.values.map(({ item }) => item));
  }

  #resize() {
    if (!this.box.clientWidth) return;
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    else if (this.data) this.show(this.sources);
  }

  #rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.show(this.sources);
  }

  #build() {
    this.plot?.destroy();
    const axis = { stroke: color("muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: color("grid"), width: 1 } };
    const [from, to] = shownRange();
    this.plot = new uPlot({
      width: this.box.clientWidth, height: HEIGHT, padding: [10, 18, 0, 0], legend: { show: false },
      scales: { x: { time: false, auto: false, min: from, max: to }, y: { range: (plot, low, high) => this.#range(low, high) } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, gap: 6, values: (plot, ticks) => (byTime() ? timeTicks(ticks) : ticks.map(count)), space: byTime() ? 80 : 50 },
        { ...axis, size: 56, gap: 6, space: 32, incrs: this.steps, values: (plot, ticks) => ticks.map((tick) => this.tick(tick)) },
      ],
      series: [{}, ...this.#heads().map((line) => ({
        stroke: color(line.color), width: line.width, points: { show: false }, spanGaps: false, dash: line.dash,
        fill: line.fill ? `${color(line.color)}22` : undefined,
      }))],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, y: false, points: { size: 6 }, bind: { dblclick: () => () => zoomOut() } },
      hooks: {
        draw: [(plot) => this.#drawOver(plot)], setCursor: [() => this.#showValues(), (plot) => this.#showTip(plot)],
        setSelect: [(plot) => this.#zoom(plot)],
      },
    }, this.data, this.box);
    this.plot.over.append(this.tip);
    this.#draw();
  }

  #draw() {
    const [from, to] = shownRange();
    this.plot.batch(() => {
      this.plot.setData(this.data, false);
      this.plot.setScale("x", { min: from, max: to > from ? to : from + 1 });
    });
  }

  /** Zooms to what was dragged over; in the chart under the pointer only, the others are told. */
  #zoom(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (this.box.matches(":hover")) zoomTo(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  #onKey(event) {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && onChartKey(event.key)) event.preventDefault();
  }

  #range(low, high) {
    const [from, to] = shownRange();
    for (const { x, y } of this.runs.flatMap(({ points }) => points)) {
      if (x >= from && x <= to) { low = Math.min(low ?? y, y); high = Math.max(high ?? y, y); }
    }
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    low = this.floor === undefined ? low - room : this.floor;
    high = this.ceiling === undefined ? high + room : Math.min(high + room, this.ceiling);
    return [low, high > low ? high : low + 1];
  }

  /** Values under the cursor, or the newest of what is shown. */
  #showValues() {
    const under = this.plot?.cursor.idx;
    const [from, to] = shownRange();
    const last = Math.min(this.data[0].length, firstFrom(this.data[0], to + (byTime() ? 1e-9 : 0.5))) - 1;
    this.values.forEach(({ value }, at) => setText(value, this.format(valueAt(this.data[at + 1], under ?? last))));
    const x = under === null || under === undefined ? null : this.data[0][under];
    this.at.hidden = x === null || x < from;
    setText(this.at, x === null ? "" : byTime() ? duration(x) : `step ${integer(x)}`);
  }

  #marks() {
    const { columns } = this.runs[0];
    return marks().map((mark) => ({ ...mark, x: byTime() && columns ? secondsAt(columns, mark.step) : mark.step }));
  }

  #drawOver(plot) {
    const { columns } = this.runs[0];
    drawEpochs(plot, this.ends.map((end) => ({ ...end, x: byTime() ? secondsAt(columns, end.step) : end.step })), color("muted"), color("card"));
    for (const { style, points, table: [x, ...values] } of this.runs) {
      const dots = this.dots ? values.flatMap((line) => line.map((y, at) => ({ x: x[at], y }))) : [];
      drawPoints(plot, [...points, ...dots], style?.marker ?? "diamond", color(style?.color ?? "evaluation"));
    }
    drawMarks(plot, this.#marks(), highlighted, { knobs: color("knob"), rolled_back: color("bad"), watchdog: color("warn"), card: color("card") });
  }

  #showTip(plot) {
    const { left } = plot.cursor;
    const at = ({ x }) => Math.abs(plot.valToPos(x, "x") - left) < NEAR_PX;
    const lines = left < 0 || !this.box.matches(":hover") ? [] : [
      ...this.runs.flatMap(({ name, style, points }) => points.filter(at).map(({ text }) => (style ? `${style.letter} ${nameOf(name)}: ${text}` : text))),
      ...this.#marks().filter(at).map(({ sign, step, text }) => `${sign} · step ${integer(step)}: ${text}`),
    ];
    this.tip.hidden = lines.length === 0;
    if (!lines.length) return;
    setText(this.tip, lines.join("\n"));
    const room = plot.over.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, room))}px`;
  }

  /** What is shown, as columns with names and units: the lines of each run, and its points. */
  #saveFigures() {
    const [from, to] = shownRange();
    const points = this.runs.filter((run) => run.points.length).map(({ name, points: all }) => [`${this.pointsLabel} (${this.figures}) [${name}]`, all]);
    const tables = [this.data, ...points.map(([, all]) => growing(all.map(({ x }) => x), [all.map(({ y }) => y)]))];
    const all = joined(tables);
    const shown = all.map((column) => column.filter((_, at) => all[0][at] >= from && all[0][at] <= to));
    const heads = [byTime() ? "training time (s)" : "step", ...this.#heads().map(({ line, run }) => `${line} (${this.figures}) [${run}]`), ...points.map(([head]) => head)];
    saveFigures({ heads, columns: shown, file: this.#file() });
  }

  #savePicture() {
    if (!this.plot) return;
    const values = this.values.map(({ value }) => value.textContent);
    const legend = this.#heads().map((line, at) => ({ text: `${line.label} ${values[at]}`, color: color(line.color), dash: line.dash, width: line.width }));
    const colors = { card: color("card"), text: color("text") };
    savePicture({ plot: this.plot, heading: `${this.title} · ${nameOf(this.runs[0].name)}`, legend, colors, file: this.#file() });
  }

  #file() { return `${this.runs[0].name}-${this.title.toLowerCase()}`; }
}
