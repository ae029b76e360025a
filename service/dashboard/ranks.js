// Each of several processes, and which of them the others wait for. A run of one process does not show it.

import { h, setText } from "./dom.js";
import { bytes, count, percent } from "./format.js";
import { store } from "./store.js";

const COLUMNS = [
  ["Rank", "", ""],
  ["Own work", "Time of a step in which the rank did not wait for others: the median over the last reports", "work"],
  ["Waiting", "Time of a step in operations with other ranks, which wait for the slowest of them", "wait"],
  ["", "A step: own work, and waiting for other ranks", "bar"],
  ["Hot lookups", "Share of the rank's lookups whose rows are hot at their owners", "hot"],
];

export class Ranks {
  constructor() {
    this.straggler = h("p", { class: "straggler", role: "status" });
    this.head = h("tr");
    this.body = h("tbody");
    this.kinds = []; // of bytes; each has a column
    this.lines = [];
    this.element = h("section", { class: "card rank-card", "aria-label": "Ranks", hidden: true },
      h("div", { class: "card-head" }, h("h2", {}, "Ranks"), h("span", { class: "muted" }, "a step, over the last reports; bytes for each sample of a rank's part")),
      this.straggler, h("div", { class: "scroll" }, h("table", { class: "grid" }, h("thead", {}, this.head), this.body)));
  }

  show() {
    const { ranks, straggler } = store.status;
    this.element.hidden = !ranks?.length;
    if (this.element.hidden) return;
    setText(this.straggler, straggler?.text ?? "");
    this.straggler.hidden = !straggler;
    this.#arrange(ranks);
    const longest = Math.max(...ranks.map((rank) => rank.work_seconds_per_step + rank.wait_seconds_per_step));
    ranks.forEach((rank, at) => this.#update(this.lines[at], rank, longest, rank.rank === straggler?.rank));
  }

  /** Makes columns and lines anew where there are others than before: the run was resumed with more ranks. */
  #arrange(ranks) {
    const kinds = Object.keys(ranks[0].sent_bytes_per_sample);
    if (ranks.length === this.lines.length && kinds.join() === this.kinds.join()) return;
    this.kinds = kinds;
    const columns = [...COLUMNS, ["Sent", "Bytes sent to other ranks, of all kinds", "sent"], ...kinds.map((kind) => [kind, `Bytes of ${kind}`, kind])];
    this.head.replaceChildren(...columns.map(([label, title, key]) => h("th", { scope: "col", title, class: key === "" || key === "bar" ? "" : "n" }, label)));
    this.lines = ranks.map(({ rank }) => {
      const cells = Object.fromEntries(columns.slice(1).map(([, , key]) => [key, h("td", { class: key === "bar" ? "b" : "n" })]));
      const [work, wait] = [h("i", { class: "work" }), h("i", { class: "wait" })];
      cells.bar.append(h("div", { class: "class-bar plain" }, work, wait));
      return { cells, work, wait, element: h("tr", {}, h("th", { scope: "row" }, `rank ${rank}`), Object.values(cells)) };
    });
    this.body.replaceChildren(...this.lines.map((line) => line.element));
  }

  #update({ cells, work, wait, element }, rank, longest, slow) {
    element.classList.toggle("slow", slow);
    setText(cells.work, milliseconds(rank.work_seconds_per_step));
    setText(cells.wait, milliseconds(rank.wait_seconds_per_step));
    work.style.width = `${(100 * rank.work_seconds_per_step) / longest}%`;
    wait.style.width = `${(100 * rank.wait_seconds_per_step) / longest}%`;
    setText(cells.hot, percent(rank.hot_lookup_ratio));
    const sent = rank.sent_bytes_per_sample;
    setText(cells.sent, bytes(Object.values(sent).reduce((sum, value) => sum + value, 0)));
    for (const kind of this.kinds) setText(cells[kind], count(Math.round(sent[kind])));
  }
}

const milliseconds = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;
