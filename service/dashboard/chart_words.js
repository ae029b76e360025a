// What a chart draws, as a sentence for screen readers.

import { integer } from "./format.js";

/** `series` [{label}], `say` a value with its unit, `data` [steps, values of each series...], `points` {x, y} of what is drawn beside them. */
export function inWords({ title, series, say, data, pointsLabel, points }) {
  const [steps, ...values] = data;
  const lines = series.map(({ label }, at) => extremes(label, values[at], say));
  if (pointsLabel) lines.push(extremes(pointsLabel, points.filter(({ x }) => x >= steps[0]).map(({ y }) => y), say));
  return `Line chart of ${title.toLowerCase()} over steps ${integer(steps[0])} to ${integer(steps.at(-1))}. ${lines.join("; ")}.`;
}

/** The newest, the least and the greatest of the known values. */
function extremes(label, values, say) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return `${label}: no figures`;
  const [least, greatest] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  return `${label}: newest ${say(known.at(-1))}, least ${say(least)}, greatest ${say(greatest)}`;
}
