// Under the pointer: a hair line through all plots of a group, and each plot's values there. Without it the page is whole, too.
"use strict";

const groups = new Map();

for (const figure of document.querySelectorAll("figure.chart")) {
  const source = figure.querySelector("script.figures");
  if (!source) continue;
  const picture = figure.querySelector(".picture");
  const chart = {
    figures: JSON.parse(source.textContent), picture, hair: picture.querySelector(".hair"), at: figure.querySelector(".at"),
    values: [...figure.querySelectorAll(".legend b")],
  };
  chart.last = chart.values.map((value) => value.textContent);
  const group = groups.get(picture.dataset.group) ?? [];
  groups.set(picture.dataset.group, [...group, chart]);
  picture.addEventListener("pointermove", (event) => point(chart, event));
  picture.addEventListener("pointerleave", () => groups.get(picture.dataset.group).forEach(leave));
}

/** Shows in all plots of the group what is nearest to the pointer. */
function point(chart, event) {
  const box = chart.picture.getBoundingClientRect();
  const place = (event.clientX - box.left) / box.width;
  for (const each of groups.get(chart.picture.dataset.group)) show(each, place);
}

function show({ figures, hair, at, values }, place) {
  const index = nearest(figures.x, place);
  hair.hidden = false;
  hair.style.left = `${figures.x[index] * 100}%`;
  at.textContent = figures.at[index];
  values.forEach((value, line) => { value.textContent = figures.values[line][index]; });
}

function leave({ hair, at, values, last }) {
  hair.hidden = true;
  at.textContent = "";
  values.forEach((value, line) => { value.textContent = last[line]; });
}

/** The index of the value nearest to `place`; `xs` rise. */
function nearest(xs, place) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= place) low = middle; else high = middle;
  }
  return place - xs[low] <= xs[high] - place ? low : high;
}
