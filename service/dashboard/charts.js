// Line charts over steps: one uPlot per quantity, with the knob changes drawn through all of them.

import { inWords } from "./chart_words.js";
import { h, setText } from "./dom.js";
import { count, integer } from "./format.js";
import { knobChanges, on } from "./store.js";

const HEIGHT = 176;
const NEAR_PX = 7;
const charts = new Set();
let highlighted = null;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Marks one knob change in all charts (its number), or none (null). */
export function highlight(number) {
  if (number === highlighted) return;
  highlighted = number;
  for (const chart of charts) chart.redraw();
}

/** One chart: `series` [{label, color (css variable), fill}], `format` of its values, `tick` of its axis (and
 * `steps` between ticks), `floor`/`ceiling` of the axis, `points` {x, y, text} drawn as diamonds (`pointsLabel`: what they are),
 * `spokenUnit` of the values in words where `format` writes none. */
export class Chart {
  constructor({ title, unit, spokenUnit, series, format, tick, steps, floor, ceiling, points, pointsLabel }) {
    const say = (value) => (spokenUnit ? `${format(value)} ${spokenUnit}` : format(value));
    Object.assign(this, { title, say, pointsLabel, series, format, tick: tick ?? format, steps, floor, ceiling, points: points ?? (() => []), plot: null, data: null });
    this.values = series.map((entry) => {
      const value = h("b", {}, "–");
      const swatch = h("i", { class: "swatch" });
      swatch.style.background = `var(--${entry.color})`;
      return { value, item: h("span", { class: "legend" }, swatch, entry.label, " ", value) };
    });
    this.at = h("span", { class: "muted at" });
    this.box = h("div", { class: "plot", role: "img", "aria-label": `Line chart of ${title.toLowerCase()}. No figures yet.` });
    this.tip = h("div", { class: "tip", hidden: true });
    this.empty = h("p", { class: "notice" }, "No figures yet.");
    this.element = h("figure", { class: "card chart" },
      h("figcaption", {}, h("h2", {}, title, unit ? h("span", { class: "muted" }, ` ${unit}`) : null), this.at),
      h("div", { class: "legends" }, this.values.map((entry) => entry.item)), this.box, this.empty);
    new ResizeObserver(() => this.#resize()).observe(this.box);
    on("theme", () => this.#rebuild());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#rebuild());
    charts.add(this);
  }

  /** `data`: [steps, values of each series...]. */
  setData(data) {
    this.data = data;
    const some = data[0].length > 0;
    this.empty.hidden = some;
    if (some) this.box.setAttribute("aria-label", inWords({ ...this, points: this.points() }));
    if (!some || !this.box.clientWidth) return;
    if (this.plot) this.plot.setData(data);
    else this.#build();
    this.#showValues();
  }

  redraw() { this.plot?.redraw(false, false); }

  #resize() {
    if (!this.box.clientWidth) return;
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    else if (this.data) this.setData(this.data);
  }

  #rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.data) this.setData(this.data);
  }

  #build() {
    const axis = { stroke: color("muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: color("grid"), width: 1 } };
    this.plot = new uPlot({
      width: this.box.clientWidth, height: HEIGHT, padding: [10, 18, 0, 0], legend: { show: false },
      scales: { x: { time: false }, y: { range: (plot, low, high) => this.#range(low, high) } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, gap: 6, values: (plot, ticks) => ticks.map((tick) => count(tick)) },
        { ...axis, size: 56, gap: 6, space: 32, incrs: this.steps, values: (plot, ticks) => ticks.map((tick) => this.tick(tick)) },
      ],
      series: [{}, ...this.series.map((entry) => ({
        stroke: color(entry.color), width: 1.5, points: { show: false }, spanGaps: false, dash: entry.dash,
        fill: entry.fill ? `${color(entry.color)}22` : undefined,
      }))],
      cursor: { sync: { key: "steps" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      hooks: { draw: [(plot) => this.#drawMarks(plot)], setCursor: [() => this.#showValues(), (plot) => this.#showTip(plot)] },
    }, this.data, this.box);
    this.plot.over.append(this.tip);
  }

  #range(low, high) {
    for (const point of this.points()) { low = Math.min(low ?? point.y, point.y); high = Math.max(high ?? point.y, point.y); }
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    low = this.floor === undefined ? low - room : this.floor;
    high = this.ceiling === undefined ? high + room : Math.min(high + room, this.ceiling);
    return [low, high > low ? high : low + 1];
  }

  /** Values under the cursor, or the newest. */
  #showValues() {
    const under = this.plot?.cursor.idx;
    const index = under ?? this.data[0].length - 1;
    this.values.forEach(({ value }, at) => setText(value, this.format(this.data[at + 1][index])));
    setText(this.at, under === null || under === undefined ? "" : `step ${integer(this.data[0][under])}`);
  }

  /** Points (evaluations) as diamonds, knob changes as numbered dashed lines. */
  #drawMarks(plot) {
    const { ctx } = plot;
    const { left, top, width, height } = plot.bbox;
    const scale = devicePixelRatio;
    ctx.save();
    const points = this.points();
    const half = (points.length > 24 ? 2 : 4) * scale;
    for (const { x, y } of points) {
      const [px, py] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
      if (px < left || px > left + width) continue;
      ctx.translate(px, py);
      ctx.rotate(Math.PI / 4);
      ctx.fillStyle = color("evaluation");
      ctx.fillRect(-half, -half, 2 * half, 2 * half);
      ctx.setTransform(1, 0, 0, 1, 0, 0);
    }
    let [last, lower] = [-Infinity, false];
    for (const { step, number } of knobChanges()) {
      const x = Math.round(plot.valToPos(step, "x", true));
      if (x < left || x > left + width) continue;
      const strong = number === highlighted;
      ctx.strokeStyle = ctx.fillStyle = color("knob");
      ctx.lineWidth = (strong ? 2 : 1) * scale;
      ctx.setLineDash(strong ? [] : [4 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      lower = x - last < 15 * scale && !lower; // numbers too close to each other take turns in height
      drawNumber(ctx, x, top + (lower ? 16 * scale : 0), number, scale);
      last = x;
    }
    ctx.restore();
  }

  #showTip(plot) {
    const { left } = plot.cursor;
    const at = (x) => Math.abs(plot.valToPos(x, "x") - left) < NEAR_PX;
    const lines = left < 0 || !this.box.matches(":hover") ? [] : [
      ...this.points().filter(({ x }) => at(x)).map(({ text }) => text),
      ...knobChanges().filter(({ step }) => at(step)).map(({ number, step, text }) => `${number} · step ${integer(step)}: ${text}`),
    ];
    this.tip.hidden = lines.length === 0;
    if (!lines.length) return;
    setText(this.tip, lines.join("\n"));
    const room = plot.over.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, room))}px`;
  }
}

/** The number of a knob change in a small disc at the top of its line. */
function drawNumber(ctx, x, top, number, scale) {
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.arc(x, top, 7 * scale, 0, 2 * Math.PI);
  ctx.fill();
  ctx.fillStyle = color("card");
  ctx.font = `600 ${9 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(String(number), x, top + 0.5 * scale);
}
