// Runs: those in the folder that holds this run. Any of them can be drawn beside this one in all charts.

import { get } from "./api.js";
import { MOST, compared, isChosen, toggle } from "./compared.js";
import { byId, debounce, h, notice, setText, toast } from "./dom.js";
import { clock, fixed, integer, nameOf, percent } from "./format.js";
import { on } from "./store.js";

const REFRESH_MS = 5000;
const PAGE = 50;
const HEADS = ["Run", "State", "Policy", "Step", "Best AUC", "Last AUC", "Started", "Branched from"];
const lines = new Map(); // name -> its line
let wanted = PAGE;
let shown = false;
let timer = 0;
let asked = 0;
const filter = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs by name", oninput: debounce(() => { wanted = PAGE; refresh(); }, 150) });
const found = h("span", { class: "muted", role: "status" });
const message = h("div", {}, notice("Looking for runs …"));
const body = h("tbody");
const more = h("button", { type: "button", hidden: true, onclick: () => { wanted += PAGE; refresh(); } }, "Show more");

export function start() {
  byId("screen-runs").append(
    h("p", { class: "muted runs-about" }, `Runs in the folder of this one. Choose up to ${MOST}: they are drawn beside it in all charts, each with a letter, a colour and dashes of its own. The page's address keeps the choice.`),
    h("div", { class: "bar" }, filter, found), message,
    h("div", { class: "card runs-card" }, h("table", { class: "grid run-list" }, h("thead", {}, h("tr", {}, HEADS.map((head) => h("th", { scope: "col" }, head)))), body)), more);
  on("compared", () => { for (const line of lines.values()) showChoice(line); });
}

export function show() {
  shown = true;
  refresh();
}

export function hide() {
  shown = false;
  clearTimeout(timer);
}

async function refresh() {
  clearTimeout(timer);
  const number = (asked += 1);
  try {
    const listed = await list(filter.value.trim());
    if (number !== asked) return;
    render(listed);
  } catch (error) {
    if (number === asked) message.replaceChildren(notice(`The runs could not be listed: ${error.message}`, "bad"));
  }
  clearTimeout(timer);
  if (shown) timer = setTimeout(refresh, REFRESH_MS);
}

/** As many runs as are wanted, page by page. */
async function list(contains) {
  const runs = [];
  let page;
  do {
    page = await get(`/runs?contains=${encodeURIComponent(contains)}&offset=${runs.length}&limit=${PAGE}`);
    runs.push(...page.runs);
  } while (runs.length < wanted && page.runs.length === PAGE);
  return { ...page, runs };
}

function render({ runs, total, cut }) {
  const names = new Set(runs.map(({ name }) => name));
  for (const [name, line] of lines) if (!names.has(name)) { line.element.remove(); lines.delete(name); }
  runs.forEach((run, at) => {
    const line = lines.get(run.name) ?? make(run);
    update(line, run);
    if (body.children[at] !== line.element) body.insertBefore(line.element, body.children[at] ?? null);
  });
  const few = runs.length < total ? `${integer(runs.length)} of ${integer(total)} runs` : `${integer(total)} ${total === 1 ? "run" : "runs"}`;
  setText(found, few + (cut ? ", of the folder's first 20,000 entries" : ""));
  more.hidden = runs.length >= total;
  message.replaceChildren(...(runs.length ? [] : [notice(filter.value.trim() ? `No run's name contains “${filter.value.trim()}”.` : "There are no runs in this folder.")]));
}

function make({ name, own }) {
  const cells = Object.fromEntries(["state", "policy", "step", "best", "last", "started", "parent"].map((key, at) => [key, h("td", { "data-label": HEADS[at + 1] })]));
  const box = own ? null : h("input", { type: "checkbox", onchange: () => choose(name, box) });
  const letter = h("i", { class: "letter", hidden: true });
  const shownName = h("span", { class: "run-name" }, nameOf(name));
  const head = own ? h("span", {}, shownName, h("span", { class: "muted" }, " this run")) : h("label", {}, box, letter, shownName);
  const badge = h("span", { class: "badge" });
  cells.state.append(badge);
  const line = { name, cells, box, letter, badge, element: h("tr", {}, h("th", { scope: "row" }, head), ...Object.values(cells)) };
  lines.set(name, line);
  showChoice(line);
  return line;
}

function choose(name, box) {
  if (toggle(name)) return;
  box.checked = false;
  toast(`At most ${MOST} runs can be drawn beside this one. Take one away first.`, "bad");
}

/** Ticks a run that the charts draw, with its letter. */
function showChoice({ name, box, letter }) {
  if (!box) return;
  box.checked = isChosen(name);
  const style = compared().find((run) => run.name === name)?.style;
  letter.hidden = !style;
  if (!style) return;
  setText(letter, style.letter);
  letter.style.background = `var(--${style.color})`;
}

function update({ cells, badge }, run) {
  const quality = (evaluation) => (evaluation ? `${fixed(evaluation.auc)} at step ${integer(evaluation.step)}` : "–");
  const total = run.steps_total ? ` of ${integer(run.steps_total)} (${percent(Math.min(1, run.step / run.steps_total), 0)})` : "";
  setText(badge, run.state);
  badge.dataset.phase = run.state;
  setText(cells.policy, run.policy || "–");
  setText(cells.step, `${integer(run.step)}${total}`);
  setText(cells.best, quality(run.best) + (run.complete ? "" : " (still reading)"));
  setText(cells.last, [quality(run.last), ...Object.entries(run.last?.metrics ?? {}).map(([name, value]) => `${name} ${fixed(value)}`)].join(", "));
  setText(cells.started, run.started ? clock(run.started) : "–");
  setText(cells.parent, run.parent ? `${nameOf(run.parent.run)} at step ${integer(run.parent.step)}` : "–");
}
