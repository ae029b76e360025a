// A small line over time, from 0 to its greatest value, with what it shows in words.

import { h, setText } from "./dom.js";

const [WIDTH, HEIGHT] = [320, 64];
const SVG = "http://www.w3.org/2000/svg";

/** `values` oldest first, evenly spaced over `span` (text); `limit`: the end of the axis, else the greatest value. */
export function sparkline({ title, values, format, span, limit, color }) {
  const most = values.reduce((high, value) => Math.max(high, value), 0);
  const top = Math.max(limit ?? 0, most) || 1;
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" })) svg.setAttribute(name, value);
  if (values.length > 1) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", values.map((value, at) => `${(at / (values.length - 1)) * WIDTH},${(HEIGHT - 2) * (1 - value / top) + 1}`).join(" "));
    line.style.stroke = `var(--${color})`;
    svg.append(line);
  }
  const words = h("figcaption", { class: "muted" });
  setText(words, values.length ? `${title}: ${format(values.at(-1))} now, at most ${format(most)} in the last ${span}` : `${title}: no figures yet`);
  return h("figure", { class: "sparkline" }, svg, words);
}
