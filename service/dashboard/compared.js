// Runs that are drawn beside the one that is served: which ones, how each looks, and their curves, kept up to date while they train.

import { get } from "./api.js";
import { announce, store } from "./store.js";

export const MOST = 5;
const REFRESH_MS = 3000;
const POINTS = 5000;
export const STYLES = [
  { letter: "A", color: "run-1", dash: [8, 4], marker: "square" },
  { letter: "B", color: "run-2", dash: [2, 3], marker: "circle" },
  { letter: "C", color: "run-3", dash: [10, 3, 2, 3], marker: "triangle" },
  { letter: "D", color: "run-4", dash: [5, 2, 1, 2, 1, 2], marker: "cross" },
  { letter: "E", color: "run-5", dash: [16, 5], marker: "plus" },
];
const chosen = new Map(); // name -> {name, style, columns, evaluations, problem}
let timer = 0;
let loading = false;

for (const name of new URLSearchParams(location.search).getAll("runs").slice(0, MOST)) add(name);

export const isChosen = (name) => chosen.has(name);
export const compared = () => [...chosen.values()].filter(({ name }) => name !== store.status?.run.name);

/** All runs that the charts draw: the one that is served, and those of the others whose curves are there. */
export function sources() {
  const own = { name: store.status?.run.name ?? "this run", style: null, columns: store.columns, evaluations: store.evaluations };
  return [own, ...compared().filter(({ columns }) => columns)];
}

/** Adds a run to the charts or takes it away; the page's address keeps the choice. False where there are too many. */
export function toggle(name) {
  if (!chosen.delete(name)) {
    if (chosen.size >= MOST) return false;
    add(name);
    refresh();
  }
  const address = new URL(location.href);
  address.searchParams.delete("runs");
  for (const each of chosen.keys()) address.searchParams.append("runs", each);
  history.replaceState(history.state, "", address);
  announce("compared");
  return true;
}

function add(name) {
  const taken = [...chosen.values()].map(({ style }) => style);
  if (!chosen.has(name)) chosen.set(name, { name, style: STYLES.find((style) => !taken.includes(style)), columns: null, evaluations: [], problem: "" });
}

export const start = () => refresh();

async function refresh() {
  clearTimeout(timer);
  if (loading) return;
  loading = true;
  if (!document.hidden) {
    await Promise.all(compared().map(update));
    if (chosen.size) announce("compared");
  }
  loading = false;
  timer = setTimeout(refresh, compared().some((run) => !run.columns && !run.problem) ? 50 : REFRESH_MS);
}

/** Asks for what is new of a run: its last point and those behind it. Where that point is gone, or is another one now, the run
 * went back and made these steps again: all of it. */
async function update(run) {
  const path = `/runs/${encodeURIComponent(run.name)}/history`;
  try {
    const last = run.columns?.step.at(-1) ?? -1;
    let found = await get(`${path}?since=${Math.max(-1, last - 1)}`);
    if (last >= 0 && run.columns.step.length < POINTS && Object.entries(run.columns).every(([name, values]) => values.at(-1) === found.columns[name][0])) {
      for (const [name, values] of Object.entries(run.columns)) values.push(...found.columns[name].slice(1));
      run.evaluations = [...run.evaluations.filter(({ step }) => step < last), ...found.evaluations];
    } else {
      if (last >= 0) found = await get(path);
      Object.assign(run, { columns: found.columns, evaluations: found.evaluations });
    }
    run.problem = "";
  } catch (error) {
    run.problem = error.status === 404 ? "not there any more" : error.message;
  }
}
