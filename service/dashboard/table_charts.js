// Charts of one embedding table over the steps, of this run and of compared runs that have a table of this name.

import { get } from "./api.js";
import { Chart } from "./charts.js";
import { sources } from "./compared.js";
import { h, notice } from "./dom.js";
import { count, nameOf, percent } from "./format.js";
import { on, store } from "./store.js";

const REFRESH_MS = 2000;
const of = (...names) => ({ columns }) => ({ step: columns.step, seconds: columns.seconds, values: names.map((name) => columns[name]) });
const CHARTS = [
  { title: "Hot rows", unit: "of the table", figures: "rows", spokenUnit: "rows", format: count, floor: 0, read: of("hot_rows", "stale_rows"),
    lines: [{ label: "hot", color: "hot" }, { label: "of them stale", color: "stale-line" }] },
  { title: "Stale rows", unit: "share of the hot ones, whose updates are skipped", figures: "share", format: (value) => percent(value, 0), floor: 0, ceiling: 1, read: staleShare,
    lines: [{ label: "stale", color: "stale-line" }] },
  { title: "Hot lookups", unit: "of the table", figures: "share", format: (value) => percent(value, 0), floor: 0, ceiling: 1, read: of("hot_lookup_ratio"), lines: [{ label: "hot lookups", color: "hot" }] },
];

function staleShare({ columns: { step, seconds, hot_rows: hot, stale_rows: stale } }) {
  return { step, seconds, values: [stale.map((rows, at) => (hot[at] ? rows / hot[at] : null))] };
}

export class TableCharts {
  constructor() {
    this.select = h("select", { "aria-label": "Table whose charts are shown", onchange: () => this.#refresh() });
    this.charts = CHARTS.map((about) => new Chart(about));
    this.message = h("div");
    this.element = h("section", { class: "table-charts", hidden: true, "aria-label": "Charts of a table" },
      h("div", { class: "bar" }, h("h2", {}, "Over the run"), this.select), this.message, h("div", { class: "charts" }, this.charts.map(({ element }) => element)));
    Object.assign(this, { names: [], curves: [], shown: false, timer: 0 });
    on("view", () => this.shown && this.#draw());
    on("compared", () => this.shown && this.names.length && this.#refresh());
  }

  show(shown) {
    this.shown = shown;
    if (shown && this.names.length) this.#refresh();
  }

  /** The tables to choose from; at first the one with the most hot rows is chosen. */
  offer(tables) {
    const names = tables.map(({ table }) => table);
    if (JSON.stringify(names) === JSON.stringify(this.names) || !names.length) return;
    this.names = names;
    this.element.hidden = false;
    this.select.replaceChildren(...names.map((name, at) => h("option", { value: at }, nameOf(name))));
    this.select.value = String(tables.reduce((best, table, at) => (table.hot > tables[best].hot ? at : best), 0));
    this.#refresh();
  }

  async #refresh() {
    clearTimeout(this.timer);
    const index = Number(this.select.value);
    try {
      const all = await Promise.all(sources().map((source) => this.#curves(source, index)));
      if (index !== Number(this.select.value)) return;
      this.curves = all.filter(Boolean);
      this.#draw();
      this.message.replaceChildren();
    } catch (error) {
      this.message.replaceChildren(notice(`The curves could not be read: ${error.message}`, "bad"));
    }
    clearTimeout(this.timer);
    if (this.shown && (store.status?.live ?? true)) this.timer = setTimeout(() => this.#refresh(), REFRESH_MS);
  }

  #draw() {
    if (this.curves.length) for (const chart of this.charts) chart.show(this.curves);
  }

  /** A run with the curves of the table; null of a compared run that has no such table. */
  async #curves(source, index) {
    const path = source.style ? `/runs/${encodeURIComponent(source.name)}/history/${encodeURIComponent(this.names[index])}` : `/stats/history/${index}`;
    try {
      return { ...source, columns: (await get(path)).columns };
    } catch (error) {
      if (source.style && error.status === 404) return null;
      throw error;
    }
  }
}
