// What all charts show along x: steps or training time; all of it, the newest steps, or a stretch that was zoomed to.

import { secondsAt } from "./chart_data.js";
import { sources } from "./compared.js";
import { announce } from "./store.js";

const STEP = 0.2; // of the stretch shown, for one key press

const view = {
  x: new URLSearchParams(location.search).get("x") === "time" ? "time" : "step",
  newest: Infinity, // steps before the run's newest one
  zoom: null, // [from, to], in steps or seconds
};

export const byTime = () => view.x === "time";
export const isZoomed = () => view.zoom !== null;

/** Chooses steps or training time; the page's address keeps the choice. */
export function showBy(x) {
  if (x === view.x) return;
  Object.assign(view, { x, zoom: null });
  const address = new URL(location.href);
  if (x === "time") address.searchParams.set("x", x);
  else address.searchParams.delete("x");
  history.replaceState(history.state, "", address);
  announce("view");
}

export function showNewest(steps) {
  Object.assign(view, { newest: steps, zoom: null });
  announce("view");
}

export function zoomTo(from, to) {
  const [least, most] = whole();
  const zoom = [Math.max(least, from), Math.min(most, to)];
  if (!(zoom[1] - zoom[0] > (byTime() ? 1e-3 : 1))) return;
  view.zoom = zoom;
  announce("view");
}

export function zoomOut() {
  view.zoom = null;
  announce("view");
}

/** Makes the stretch shown longer (factor above 1) or shorter, around its middle. */
export function zoomBy(factor) {
  const [from, to] = shownRange();
  const [middle, half] = [(from + to) / 2, ((to - from) * factor) / 2];
  const [least, most] = whole();
  if (middle - half <= least && middle + half >= most) zoomOut();
  else zoomTo(middle - half, middle + half);
}

/** Moves the stretch shown to later (1) or earlier (-1) steps; no farther than there are any. */
export function move(direction) {
  const [from, to] = shownRange();
  const [least, most] = whole();
  const by = Math.min(Math.max(direction * STEP * (to - from), least - from), most - to);
  if (by) zoomTo(from + by, to + by);
}

/** What is shown: [from, to], in steps or seconds. */
export function shownRange() {
  if (view.zoom) return view.zoom;
  const [own] = sources();
  if (view.newest === Infinity || !own.columns?.step.length) return whole();
  const from = own.columns.step.at(-1) - view.newest;
  return [Math.max(whole()[0], byTime() ? secondsAt(own.columns, from) : from), span(own)[1]];
}

/** All that any of the runs has. */
function whole() {
  const spans = sources().filter(({ columns }) => columns?.step.length).map(span);
  return spans.length ? [Math.min(...spans.map(([from]) => from)), Math.max(...spans.map(([, to]) => to))] : [0, 1];
}

/** From a run's first snapshot to its last one, or to an evaluation behind that. */
function span({ columns, evaluations }) {
  const x = byTime() ? "seconds" : "step";
  return [columns[x][0], Math.max(columns[x].at(-1), evaluations.at(-1)?.[x] ?? -Infinity)];
}

/** Keys of a chart that has the focus. Says whether the key was one of them. */
export function onChartKey(key) {
  const does = { "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2), ArrowLeft: () => move(-1), ArrowRight: () => move(1), 0: zoomOut, Escape: zoomOut }[key];
  does?.();
  return Boolean(does);
}
