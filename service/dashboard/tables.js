// Tables: what of each embedding table is on the device, as bars; a table opens its rows.

import { get } from "./api.js";
import { byId, debounce, h, notice, setText } from "./dom.js";
import { bytes, count, integer, nameOf, percent } from "./format.js";
import { on, store } from "./store.js";
import { TableCharts } from "./table_charts.js";
import { TableDialog } from "./table_detail.js";

const REFRESH_MS = 2000;
const COLUMNS = [
  { key: "table", label: "Table" },
  { key: "rows", label: "Rows", number: true },
  { key: "dim", label: "Dim", number: true },
  { key: "hot", label: "Hot", number: true },
  { key: "stale", label: "Stale", number: true },
  { key: "share", label: "On the device", title: "Share of the table's rows that are hot; stale rows are hatched, the rest are cold", bar: true },
  { key: "device_bytes", label: "Device memory", title: "Bars compare the tables with each other", bar: true },
  { key: "hot_lookup_ratio", label: "Hot lookups", title: "Share of the table's lookups that found their row on the device, over the run", number: true },
];
const lines = new Map(); // table index -> its row in the page
let placement = null;
let sort = { key: "device_bytes", descending: true };
let shown = false;
let timer = 0;
let dialog;
let charts;
const head = h("tr");
const body = h("tbody");
const summary = h("div", { class: "summary" });
const filter = h("input", { type: "search", placeholder: "Filter tables", "aria-label": "Filter tables by name", oninput: debounce(() => arrange(), 80) });
const message = h("div", {}, notice("Loading the tables …"));

export function start() {
  const legend = h("div", { class: "key" }, ...["hot", "stale", "cold"].map((name) => h("span", {}, h("i", { class: `swatch ${name}` }), name)));
  byId("screen-tables").append(summary, h("div", { class: "bar" }, filter, legend), message,
    h("div", { class: "card table-card" }, h("table", { class: "grid" }, h("thead", {}, head), body)));
  charts = new TableCharts();
  byId("screen-tables").append(charts.element);
  for (const column of COLUMNS) {
    const button = h("button", { type: "button", title: column.title, onclick: () => sortBy(column) }, column.label);
    column.head = h("th", { scope: "col", class: column.number ? "n" : "" }, button);
    head.append(column.head);
  }
  dialog = new TableDialog(byId("table-dialog"));
  on("connection", () => store.connection === "live" && shown && refresh());
}

/** Shown for #tables, or #tables/3 with that table's rows open. */
export function show(rest) {
  shown = true;
  charts.show(true);
  if (!timer) refresh();
  if (rest !== "") dialog.open(Number(rest));
  else dialog.close();
}

export function hide() {
  shown = false;
  charts.show(false);
  dialog.close();
}

async function refresh() {
  clearTimeout(timer);
  timer = 0;
  try {
    placement = await get("/placement");
    message.replaceChildren(...(placement.tables.length ? [] : [notice("This run has no tables.")]));
    for (const table of placement.tables) update(table);
    arrange();
    summarise();
    charts.offer(placement.tables);
    dialog.refresh(placement);
  } catch (error) {
    message.replaceChildren(notice(`The tables could not be read: ${error.message}`, "bad"));
  }
  if (shown && (store.status?.live ?? true)) timer = setTimeout(refresh, REFRESH_MS);
}

const share = (table) => (table.rows ? table.hot / table.rows : 0);

function update(table) {
  const line = lines.get(table.index) ?? make(table);
  line.table = { ...table, share: share(table) };
  const [hot, stale] = [table.hot - table.stale, table.stale].map((value) => (table.rows ? value / table.rows : 0));
  const most = Math.max(1, ...placement.tables.map((other) => other.device_bytes));
  line.rows.title = integer(table.rows);
  setText(line.rows, count(table.rows));
  setText(line.dim, integer(table.dim));
  setText(line.hot, count(table.hot));
  setText(line.stale, count(table.stale));
  setText(line.shareText, percent(share(table)));
  width(line.hotBar, hot);
  width(line.staleBar, stale);
  line.share.title = `${integer(table.hot)} hot (of them ${integer(table.stale)} stale), ${integer(table.cold)} cold${table.disk === null ? "" : ` (of them ${integer(table.disk)} on the disk)`}`;
  setText(line.bytesText, bytes(table.device_bytes));
  width(line.bytesBar, table.device_bytes / most);
  setText(line.ratio, percent(table.hot_lookup_ratio));
}

/** A sliver stays visible: at least two pixels for what is there at all. */
function width(bar, value) {
  bar.style.width = `${value * 100}%`;
  bar.style.minWidth = value > 0 ? "2px" : "0";
}

function make(table) {
  const cell = (label, ...inner) => h("td", { class: "n", "data-label": label }, ...inner);
  const line = { rows: cell("Rows"), dim: cell("Dim"), hot: cell("Hot"), stale: cell("Stale"), ratio: cell("Hot lookups") };
  for (const name of ["hotBar", "staleBar", "bytesBar"]) line[name] = h("i", { class: { hotBar: "hot", staleBar: "stale", bytesBar: "memory" }[name] });
  line.shareText = h("b");
  line.bytesText = h("b");
  line.share = h("div", { class: "class-bar" }, line.hotBar, line.staleBar);
  const link = h("a", { href: `#tables/${table.index}` }, nameOf(table.table));
  line.element = h("tr", { onclick: () => { location.hash = `tables/${table.index}`; } },
    h("th", { scope: "row" }, link), line.rows, line.dim, line.hot, line.stale,
    h("td", { class: "b", "data-label": "On the device" }, h("div", { class: "barred" }, line.share, line.shareText)),
    h("td", { class: "b", "data-label": "Device memory" }, h("div", { class: "barred" }, h("div", { class: "class-bar plain" }, line.bytesBar), line.bytesText)),
    line.ratio);
  lines.set(table.index, line);
  return line;
}

function sortBy({ key, number, bar }) {
  sort = { key, descending: sort.key === key ? !sort.descending : Boolean(number || bar) };
  arrange();
}

/** Brings the lines into order; moves nothing where the order is as before. */
function arrange() {
  const { key, descending } = sort;
  for (const column of COLUMNS) column.head.setAttribute("aria-sort", column.key !== key ? "none" : descending ? "descending" : "ascending");
  const text = filter.value.trim().toLowerCase();
  const wanted = [...lines.values()].filter(({ table }) => table.table.toLowerCase().includes(text));
  const compare = (one, two) => (key === "table" ? one.table.localeCompare(two.table, "en", { numeric: true }) : (one[key] ?? -1) - (two[key] ?? -1));
  wanted.sort((one, two) => (descending ? -1 : 1) * compare(one.table, two.table) || one.table.index - two.table.index);
  if (wanted.length !== body.childElementCount || wanted.some((line, at) => body.children[at] !== line.element)) {
    const focused = document.activeElement;
    body.replaceChildren(...wanted.map((line) => line.element));
    if (body.contains(focused)) focused.focus();
  }
  if (placement?.tables.length) message.replaceChildren(...(wanted.length ? [] : [notice(`No table name contains “${filter.value}”.`)]));
}

/** Where the cold rows of all tables are. */
function homes(total) {
  const has = (name) => placement.tables.some((table) => table[name] !== null);
  if (!has("disk")) return store.stats?.disk ? "on the disk" : "in host memory";
  const memory = has("memory") ? `${count(total("memory"))} in host memory, ` : "";
  return `${memory}${count(total("disk"))} on the disk, ${count(total("unwritten"))} never written`;
}

function summarise() {
  const total = (key) => placement.tables.reduce((sum, table) => sum + (table[key] ?? 0), 0);
  const { device_bytes: used, budget_bytes: budget } = placement;
  const { staging_bytes: staging = 0, peak_bytes: peak = 0 } = store.status ?? {};
  const facts = [
    ["Device memory", `${bytes(used)}`, budget ? `${percent(used / budget, 0)} of the ${bytes(budget)} budget` : "no budget"],
    ...(staging || peak ? [["Staging memory", bytes(staging), `whole process at its peak: ${bytes(peak)}`]] : []),
    ["Hot rows", count(total("hot")), `${percent(share({ hot: total("hot"), rows: total("rows") }))} of ${count(total("rows"))}`],
    ["Stale rows", count(total("stale")), `${percent(total("hot") ? total("stale") / total("hot") : 0)} of the hot ones`],
    ["Cold rows", count(total("cold")), homes(total)],
  ];
  if (summary.childElementCount !== facts.length) {
    summary.replaceChildren(...facts.map(([label]) => h("div", { class: "card tile" }, h("span", { class: "label" }, label), h("b"), h("span", { class: "muted" }))));
  }
  facts.forEach(([, value, sub], at) => {
    setText(summary.children[at].children[1], value);
    setText(summary.children[at].children[2], sub);
  });
}
