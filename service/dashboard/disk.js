// Rows on a disk: what a step reads and writes there, and how long it waits. A run with all rows in memory does not show it.

import { h, setText } from "./dom.js";
import { bytes, count, integer } from "./format.js";
import { store } from "./store.js";

const FIGURES = [
  ["wait", "Waiting", "Time of a step in which training waited for rows of its batch"],
  ["ahead", "Rows ahead", "Rows on the disk that were requested before their step"],
  ["again", "Read again", "Rows read in their step, as they had changed since or had become cold"],
  ["read", "From files", "Rows read from files"],
  ["found", "From memory", "Rows found in segments that are still in memory"],
  ["drawn", "First values", "Rows never written, whose first values were drawn"],
  ["written", "Written", "Rows appended to segments"],
  ["moved", "Compaction", "Rows that compaction appended once more"],
  ["size", "Bytes / files", "Bytes of all segments, each a file, and their number"],
];

export class Disk {
  constructor() {
    this.values = {};
    const parts = FIGURES.map(([key, label, title]) => {
      this.values[key] = h("b", {});
      return h("div", { title }, h("span", { class: "label" }, label), this.values[key]);
    });
    this.element = h("section", { class: "card disk-card", "aria-label": "Rows on the disk", hidden: true },
      h("div", { class: "card-head" }, h("h2", {}, "Rows on the disk"), h("span", { class: "muted" }, "a step, since the last snapshot")),
      h("div", { class: "disk-figures" }, parts));
  }

  show() {
    const { disk } = store.stats;
    this.element.hidden = !disk;
    if (!disk) return;
    setText(this.values.wait, `${(1000 * disk.wait_seconds_per_step).toFixed(1)} ms`);
    for (const key of ["ahead", "again", "read", "found", "drawn", "written", "moved"]) setText(this.values[key], count(Math.round(disk[`rows_${key}_per_step`])));
    setText(this.values.size, `${bytes(disk.size_bytes)} / ${integer(disk.segments)}`);
  }
}
