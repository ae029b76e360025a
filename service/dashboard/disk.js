// Rows on a disk: what a step reads and writes there, and how long it waits. A run with all rows in memory does not show it.

import { h, setText } from "./dom.js";
import { bytes, count, integer } from "./format.js";
import { DISK } from "./figures.js"; // made of config/figures.py as it is served
import { store } from "./store.js";

const SIZE = { field: "size", label: "Bytes / files", title: "Bytes of all segments, each a file, and their number" };
const WAIT = "wait_seconds_per_step";

const shown = (field, value) => {
  if (field === WAIT) return `${(1000 * value).toFixed(1)} ms`;
  return field.endsWith("_bytes_per_step") ? bytes(value) : count(Math.round(value));
};

export class Disk {
  constructor() {
    this.values = {};
    const parts = [...DISK, SIZE].map(({ field, label, title }) => {
      this.values[field] = h("b", {});
      return h("div", { title }, h("span", { class: "label" }, label), this.values[field]);
    });
    this.element = h("section", { class: "card disk-card", "aria-label": "Rows on the disk", hidden: true },
      h("div", { class: "card-head" }, h("h2", {}, "Rows on the disk"), h("span", { class: "muted" }, "a step, since the last snapshot")),
      h("div", { class: "disk-figures" }, parts));
  }

  show() {
    const { disk } = store.stats;
    this.element.hidden = !disk;
    if (!disk) return;
    for (const { field } of DISK) setText(this.values[field], shown(field, disk[field] ?? 0));
    setText(this.values.size, `${bytes(disk.size_bytes)} / ${integer(disk.segments)}`);
  }
}
