// Curves of several runs on one x axis.

import { duration } from "./format.js";

/** The training time at a step, in seconds, between those of the snapshots beside it. */
export function secondsAt({ step: steps, seconds }, step) {
  if (!steps.length) return 0;
  const after = firstFrom(steps, step);
  if (after === steps.length) return seconds.at(-1);
  if (after === 0) return steps[0] ? (seconds[0] * Math.max(0, step)) / steps[0] : seconds[0];
  const [low, high] = [steps[after - 1], steps[after]];
  return seconds[after - 1] + ((seconds[after] - seconds[after - 1]) * (step - low)) / (high - low);
}

/** The place of the first value from a limit on, in a list that grows; its length where there is none. */
export function firstFrom(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** x and values of one run, without points whose x does not grow: a run that was resumed may have a clock that went back. */
export function growing(x, values) {
  if (x.every((each, at) => at === 0 || each > x[at - 1])) return [x, ...values];
  let last = -Infinity;
  const kept = x.map((each) => each > last && ((last = each), true));
  return [x, ...values].map((column) => column.filter((_, at) => kept[at]));
}

/** One table of all runs: [x, values of each line...]; undefined where a run has no point at this x. */
export const joined = (parts) => (parts.length === 1 ? parts[0] : uPlot.join(parts));

/** The value of a line at a place, or before it where its run has no point there. */
export function valueAt(line, place) {
  for (let at = place; at >= 0; at -= 1) if (line[at] !== undefined) return line[at];
  return undefined;
}

/** A cumulative column as a rate a second of training. A resumed run counts from zero again: unknown there. */
export function perSecond(columns, name) {
  const { seconds, [name]: total } = columns;
  return total.map((value, index) => {
    if (index === 0) return null;
    const [gain, time] = [value - total[index - 1], seconds[index] - seconds[index - 1]];
    return gain >= 0 && time > 0 ? gain / time : null;
  });
}

/** The labels of ticks on an axis of training time. Where `duration` would say two of them alike, with fractions of a second or as "2:05:30". */
export function timeTicks(ticks) {
  const gap = ticks.length > 1 ? ticks[1] - ticks[0] : 60;
  const digits = [0, 1, 2].find((each) => Math.abs(gap * 10 ** each - Math.round(gap * 10 ** each)) < 1e-6) ?? 3;
  const two = (value, after = 0) => value.toFixed(after).padStart(after ? 3 + after : 2, "0");
  return ticks.map((tick) => {
    if (!digits && (tick < 3600 || Math.round(gap) % 60 === 0) && (tick < 48 * 3600 || Math.round(gap) % 3600 === 0)) return duration(tick);
    const parts = Math.round(tick * 10 ** digits);
    const [seconds, minutes] = [(parts % (60 * 10 ** digits)) / 10 ** digits, Math.floor(parts / (60 * 10 ** digits))];
    if (minutes >= 60) return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds, digits)}`;
    return minutes ? `${minutes} min ${two(seconds, digits)} s` : `${seconds.toFixed(digits)} s`;
  });
}
