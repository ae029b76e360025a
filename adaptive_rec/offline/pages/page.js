// Draws the charts of a page with uPlot, and shows the values under the pointer or the arrow keys. Tables hold them without it.
"use strict";

const LETTER_PX = 6.5; // of a tick's text
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

class Chart {
  constructor(box) {
    const figure = box.closest("figure");
    Object.assign(this, { box, plot: null, figures: JSON.parse(box.querySelector("script").textContent) });
    Object.assign(this, { overlay: box.querySelector(".overlay"), at: figure.querySelector(".at"), values: [...figure.querySelectorAll(".legend b")] });
    this.newest = this.values.map((value) => value.textContent);
    box.addEventListener("keydown", (event) => this.#onKey(event.key) && event.preventDefault());
    new ResizeObserver(() => this.draw()).observe(box);
  }

  draw() {
    const { box, figures: { x, series, ticks: [, upwards], group } } = this;
    this.plot?.destroy();
    const small = box.classList.contains("small");
    const stacked = series.some(({ look }) => look === "layer");
    const axis = { show: !small, stroke: color("muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, gap: 6 };
    const line = (name) => ({ show: true, stroke: color(name), width: 1 });
    this.plot = new uPlot({
      width: box.clientWidth, height: box.clientHeight, padding: small ? [2, 0, 0, 0] : [10, 18, 0, 0], legend: { show: false },
      scales: { x: { time: false, range: [0, 1] }, y: { range: [0, 1] } },
      axes: [
        { ...axis, size: 24, grid: { show: false }, border: line("line"), splits: (plot) => this.#ticks(plot).map(([place]) => place), values: (plot) => this.#ticks(plot).map(([, text]) => text) },
        { ...axis, size: 60, grid: line("grid"), splits: () => upwards.map(([place]) => place), values: () => upwards.map(([, text]) => text) },
      ],
      series: [{}, ...series.map((each) => this.#series(each))],
      bands: series[0].look === "edge" ? [{ series: [1, 2], fill: `${color(series[0].color)}2e` }] : [],
      cursor: { show: !small, sync: { key: group }, y: false, drag: { x: false, y: false }, points: { show: !stacked, size: 6 } },
      hooks: { setCursor: [() => this.#showValues()] },
    }, [x, ...series.map(({ y }) => y)], box);
    this.plot.over.append(this.overlay);
  }

  /** The ticks along x of which the texts have room. */
  #ticks(plot) {
    const [along] = this.figures.ticks;
    const letters = Math.max(...along.map(([, text]) => text.length)) + 3;
    const every = Math.ceil((along.length * letters * LETTER_PX) / (plot.over.clientWidth || this.box.clientWidth));
    return along.filter((_, at) => at % every === 0);
  }

  #series({ color: name, look, y }) {
    const stroke = color(name);
    const boxes = { paths: uPlot.paths.stepped({ align: -1 }), width: 0, points: { show: false } };
    if (look === "edge") return boxes;
    if (look === "layer") return { ...boxes, fill: stroke };
    const lone = y.filter((value) => value !== null).length === 1; // no line is drawn of it
    const points = { show: lone || look === "points" || look === "both", size: 7, width: 0, fill: stroke };
    return {
      stroke, width: 1.5, points, dash: look === "dashed" ? [5, 3] : undefined, fill: look === "area" ? `${stroke}26` : undefined,
      paths: look === "points" ? () => null : undefined, gaps: (...given) => this.#gaps(...given),
    };
  }

  /** The gaps where values are missing, and those where a line breaks, in pixels. */
  #gaps(plot, index, first, last, missing) {
    const place = (at) => Math.round(plot.valToPos(this.figures.x[at], "x", true));
    const breaks = this.figures.starts.filter((at) => at > 0).map((at) => [place(at - 1), place(at)]);
    return [...missing, ...breaks].sort((one, other) => one[0] - other[0]);
  }

  #showValues() {
    const at = this.plot?.cursor.idx ?? null;
    if (this.at) this.at.textContent = at === null ? "" : this.figures.at[at];
    this.values.forEach((value, line) => { value.textContent = at === null ? this.newest[line] : this.figures.values[line][at]; });
  }

  /** Moves the cursor of all charts of the group by a point; returns whether the key means that. */
  #onKey(key) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Escape: 0 }[key];
    if (by === undefined) return false;
    const { x } = this.figures;
    const to = Math.min(Math.max((this.plot.cursor.idx ?? x.length) + by, 0), x.length - 1);
    this.plot.setCursor({ left: by ? this.plot.valToPos(x[to], "x") : -10, top: by ? 0 : -10 }, true, true);
    return true;
  }
}

const charts = [...document.querySelectorAll(".plot")].map((box) => new Chart(box));
const redraw = () => charts.forEach((chart) => chart.draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** On paper charts have its width and light colours. */
function print(begins) {
  document.documentElement.classList.toggle("printing", begins);
  if (begins) document.documentElement.dataset.theme = "light";
  else delete document.documentElement.dataset.theme;
  redraw();
}

addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
