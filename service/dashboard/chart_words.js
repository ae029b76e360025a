// What a chart draws, as a sentence for screen readers.

import { duration, integer } from "./format.js";

/** `heads` [{label}] of the lines, `say` a value with its unit, `data` [x, values of each line...], `runs` with their `points`, `range`
 * what is shown of x, `marks` and `ends` what is drawn through the chart. */
export function inWords({ title, heads, say, data, runs, pointsLabel, range: [from, to], byTime, marks, ends }) {
  const inside = (x) => x >= from && x <= to;
  const lines = heads.map(({ label }, at) => extremes(label, data[at + 1].filter((_, place) => inside(data[0][place])), say));
  if (pointsLabel) {
    for (const { name, style, points } of runs) lines.push(extremes(style ? `${pointsLabel} of ${name}` : pointsLabel, points.filter(({ x }) => inside(x)).map(({ y }) => y), say));
  }
  const through = marks.filter(({ x }) => inside(x));
  const said = through.slice(-10).map(({ name, step }) => `${name} at step ${integer(step)}`);
  if (said.length < through.length) said.unshift(`${integer(through.length - said.length)} earlier ones`);
  const epochs = ends.filter(({ step }) => byTime || inside(step));
  const more = [said.length ? ` Marks: ${said.join(", ")}.` : "", epochs.length ? ` Epochs begin at steps ${epochs.map(({ step }) => integer(step)).join(", ")}.` : ""];
  const over = byTime ? `${duration(from)} to ${duration(to)} of training` : `steps ${integer(from)} to ${integer(to)}`;
  return `Line chart of ${title.toLowerCase()} over ${over}. ${lines.join("; ")}.${more.join("")}`;
}

/** The newest, the least and the greatest of the known values. */
function extremes(label, values, say) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return `${label}: no figures`;
  const [least, greatest] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return `${label}: newest ${say(known.at(-1))}, least ${say(least)}, greatest ${say(greatest)}`;
}
