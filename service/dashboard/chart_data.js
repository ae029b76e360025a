// Curves of several runs on one x axis.

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
