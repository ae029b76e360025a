// Metrics that rank the samples of each group, such as those of one user, at the newest evaluation. A run without them does not show it.

import { h, setText } from "./dom.js";
import { fixed, integer } from "./format.js";
import { store } from "./store.js";

/** The metrics of an evaluation by their names; none where the run has none. */
export const rankedOf = (evaluation) => evaluation?.ranking?.metrics ?? {};

export class Ranking {
  constructor() {
    this.values = {}; // by the name of a metric
    this.groups = h("span", { class: "muted" });
    this.figures = h("div", { class: "ranking-figures" });
    this.element = h("section", { class: "card ranking-card", "aria-label": "Ranking within groups", hidden: true },
      h("div", { class: "card-head" }, h("h2", {}, "Ranking within groups"), this.groups), this.figures);
  }

  show() {
    const { evaluation } = store.status;
    this.element.hidden = !evaluation?.ranking;
    if (this.element.hidden) return;
    const { groups, groups_with_positive: positive, groups_with_both: both, metrics } = evaluation.ranking;
    setText(this.groups, `at step ${integer(evaluation.step)}: ${integer(groups)} groups, ${integer(positive)} with a positive, ${integer(both)} with both classes`);
    const names = Object.keys(metrics);
    if (names.join() !== Object.keys(this.values).join()) {
      this.values = Object.fromEntries(names.map((name) => [name, h("b", {})]));
      this.figures.replaceChildren(...names.map((name) => h("div", {}, h("span", { class: "label" }, name), this.values[name])));
    }
    for (const name of names) setText(this.values[name], fixed(metrics[name]));
  }
}
