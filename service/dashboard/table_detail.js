// A table's rows in a drawer: search a row by its number or by a raw id, page through the hot, stale or cold ones; of a run with a disk through the rows on it, too.

import { get } from "./api.js";
import { h, icon, notice, setText } from "./dom.js";
import { bytes, count, fixed, integer, nameOf, percent, significant } from "./format.js";
import { store } from "./store.js";

const PAGE = 100;
const CLASSES = ["hot", "stale", "cold"];
const ON_DISK = ["memory", "disk", "unwritten"]; // cold rows in host memory (of a run on a device), on the disk, and those that were never written
const COLD = ["cold", ...ON_DISK];
const HOMES = { cold: "none (host memory)", memory: "none (host memory)", disk: "none (on the disk)", unwritten: "none (never written: it has its first value)" };

export class TableDialog {
  constructor(element) {
    this.element = element;
    element.addEventListener("close", () => { if (location.hash.startsWith("#tables/")) location.hash = "tables"; });
    element.addEventListener("click", (event) => { if (event.target === element) element.close(); });
  }

  open(index) {
    Object.assign(this, { index, class: "hot", cursor: null, asked: 0 });
    this.title = h("h2", { id: "table-title" }, `Table ${index}`);
    this.facts = h("p", { class: "muted" }, "\u00a0");
    this.found = h("div", { class: "found", "aria-live": "polite" });
    this.list = h("tbody");
    this.message = h("div");
    this.valueHead = h("th", { scope: "col", title: "What the id was in the data", class: "value" }, "Value");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#load() }, "Show more");
    this.tabs = [...CLASSES, ...ON_DISK].map((name) => h("label", { hidden: ON_DISK.includes(name) }, h("input", { type: "radio", name: "class", value: name, checked: name === "hot", onchange: () => this.#pick(name) }), h("span", {}, name)));
    this.element.classList.remove("with-values");
    this.element.replaceChildren(h("div", { class: "drawer-body", tabindex: -1, autofocus: true },
      h("div", { class: "drawer-head" }, h("div", {}, this.title, this.facts),
        h("button", { type: "button", class: "icon", "aria-label": "Close", onclick: () => this.element.close() }, icon("close"))),
      this.#search(), this.found,
      h("div", { class: "bar" }, h("div", { class: "segmented", role: "group", "aria-label": "Class of the rows" }, this.tabs),
        h("button", { type: "button", class: "quiet", onclick: () => this.#pick(this.class) }, "Refresh")),
      h("table", { class: "grid rows" }, h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, "Row"), h("th", { scope: "col" }, "Class"), h("th", { scope: "col", class: "n" }, "Slot"),
        h("th", { scope: "col", class: "n", title: "Lookups estimated by the sketch, decayed" }, "Estimate"),
        h("th", { scope: "col", class: "n", title: "Last measured movement" }, "Movement"), this.valueHead)), this.list),
      this.message, this.more));
    if (!this.element.open) this.element.showModal();
    if (this.placement) this.refresh(this.placement);
    this.#load();
  }

  close() { if (this.element.open) this.element.close(); }

  /** The table's figures, from the newest placement. */
  refresh(placement) {
    this.placement = placement;
    const table = placement.tables.find((entry) => entry.index === this.index);
    if (!this.element.open || !table) return;
    if (!placement.known && !this.element.classList.contains("over")) this.#load();
    setText(this.title, nameOf(table.table));
    ON_DISK.forEach((name, at) => { this.tabs[CLASSES.length + at].hidden = table[name] === null; });
    if (this.raw !== placement.raw_ids) this.#ask(placement.raw_ids);
    const hot = `${count(table.hot)} hot (${percent(table.rows ? table.hot / table.rows : 0)}), ${count(table.stale)} of them stale`;
    const of = placement.checkpoint ? `as of checkpoint ${placement.checkpoint} · ` : "";
    setText(this.facts, `${of}${count(table.rows)} rows × ${table.dim} · ${hot} · ${bytes(table.device_bytes)} on the device`);
  }

  #search() {
    this.raw = null; // not known yet
    this.field = h("input", { type: "text", autocomplete: "off", size: 12 });
    this.button = h("button", { type: "submit" });
    const find = (event) => {
      event.preventDefault();
      this.#find(this.field.value.trim());
    };
    const form = h("form", { class: "search", onsubmit: find }, this.field, this.button);
    this.#ask(false);
    return form;
  }

  /** What the box asks for: raw ids of 64 bits, or the numbers of rows. */
  #ask(raw) {
    this.raw = raw;
    const what = raw ? "Raw id" : "Row id";
    for (const [name, value] of Object.entries({ placeholder: what, "aria-label": what, inputmode: raw ? "text" : "numeric" })) this.field.setAttribute(name, value);
    this.button.replaceChildren(icon("search"), raw ? "Find id" : "Find row");
  }

  async #find(text) {
    const raw = this.raw;
    if (!(raw ? /^-?\d+$/ : /^\d+$/).test(text)) {
      this.found.replaceChildren(notice(raw ? "A raw id is a whole number of 64 bits." : "A row id is a whole number from 0.", "bad"));
      return;
    }
    try {
      const row = await get(`/placement/${this.index}/${raw ? "keys" : "rows"}/${text}`);
      const change = row.last_change;
      const facts = [
        ...(raw ? [["Row", `${row.own_row ? "" : "shared row "}${integer(row.id)}${row.own_row ? "" : ": the id has none of its own"}`]] : []),
        ...(raw && row.counted ? [["Counted", `${integer(row.counted)} lookups remembered from when it had no row of its own`]] : []),
        ...(row.value === null ? [] : [["Value", row.value]]),
        ["Class", badge(row.class)], ["Why", row.why], ["Slot", row.slot === null ? HOMES[row.class] : integer(row.slot)],
        ["Estimate", significant(row.estimate)], ["Movement", row.movement === null ? "not measured" : significant(row.movement)],
        ["Last change", change ? `${change.from} → ${change.to} at step ${integer(change.step)}` : "not among the recorded changes"],
      ];
      const title = raw ? `Id ${row.key}` : `Row ${integer(row.id)}`;
      this.found.replaceChildren(h("div", { class: "found-row" }, h("h3", {}, title), h("dl", {}, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]))));
    } catch (error) {
      this.found.replaceChildren(notice(error.message, "bad"));
    }
  }

  #pick(name) {
    Object.assign(this, { class: name, cursor: null });
    this.list.replaceChildren();
    this.#load();
  }

  /** The next page. Hot and stale rows come by estimate, cold ones by id. An answer to an older question is dropped. */
  async #load() {
    if (this.placement && !this.placement.known) {
      this.element.classList.add("over");
      this.message.replaceChildren(notice("Which rows are hot is known while a run trains, and then from its newest checkpoint; this run is over, and no checkpoint of it can be read."));
      return;
    }
    const asked = (this.asked += 1);
    const sort = COLD.includes(this.class) ? "id" : "estimate";
    const cursor = this.cursor ? `&cursor=${encodeURIComponent(this.cursor)}` : "";
    this.more.hidden = this.cursor === null;
    this.message.replaceChildren(notice("Loading rows …"));
    try {
      const page = await get(`/placement/${this.index}?class=${this.class}&sort=${sort}&limit=${PAGE}${cursor}`);
      if (asked !== this.asked) return;
      this.cursor = page.cursor;
      setText(this.title, nameOf(page.table));
      this.list.append(...page.rows.map(line));
      if (page.rows.some((row) => row.value !== null)) this.element.classList.add("with-values");
      if (page.cursor === null && document.activeElement === this.more) this.element.firstElementChild.focus();
      this.more.hidden = page.cursor === null;
      this.message.replaceChildren(...(this.list.childElementCount ? [] : [notice(`No ${this.class} rows in this table now.`)]));
    } catch (error) {
      if (asked === this.asked) this.message.replaceChildren(notice(`The rows could not be read: ${error.message}`, "bad"));
    }
  }
}

const badge = (name) => h("span", { class: `class-badge ${COLD.includes(name) ? "cold" : CLASSES.includes(name) ? name : ""}` }, name);

function line(row) {
  const n = (text) => h("td", { class: "n" }, text);
  return h("tr", {}, h("th", { scope: "row", class: "n-left" }, integer(row.id)), h("td", {}, badge(row.class)), n(row.slot === null ? "–" : integer(row.slot)),
    n(row.estimate >= 1000 ? integer(row.estimate) : fixed(row.estimate, 1)), n(significant(row.movement)), h("td", { class: "value" }, row.value ?? ["(missing values)", "(rare values)"][row.id] ?? ""));
}
