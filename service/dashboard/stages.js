// Where the step's time goes: the loop's stages as one stacked bar, work on other threads apart from it.

import { h, setText } from "./dom.js";
import { integer, percent, significant } from "./format.js";
import { store } from "./store.js";

const BACKGROUND = / \((ahead|beside)\)$/;
const MEANING = {
  wait: "waiting for the next batch", disk: "waiting for rows on the disk", plan: "planning the step", gather: "fetching cold rows", execute: "forward and backward pass",
  update: "updating rows", observe: "counting lookups, measuring movement", reclassify: "moving rows between the tiers",
  load: "reading batches", classify: "splitting lookups into hot and cold", stage: "preparing batches for the device",
  arrange: "arranging the stream before training", evaluate: "scoring held-out samples for the policy",
  "observe (beside)": "counting lookups in the background, in processor time",
  other: "everything not timed separately",
};
const ORDER = ["execute", "update", "gather", "wait", "plan", "observe", "reclassify", "classify"];

export class Stages {
  constructor() {
    this.window = h("span", { class: "muted" });
    this.bar = h("div", { class: "stack", role: "img" });
    this.list = h("ul", { class: "stages" });
    this.ahead = h("ul", { class: "stages ahead" });
    this.aheadTitle = h("h3", {}, "In the background, while steps run");
    this.rows = new Map();
    this.element = h("section", { class: "card stage-card", "aria-label": "Where the step's time goes" },
      h("div", { class: "card-head" }, h("h2", {}, "Where the step's time goes"), this.window), this.bar, this.list, this.aheadTitle, this.ahead);
  }

  show() {
    const lately = spent();
    if (!lately) return;
    const { loop, ahead, seconds, steps, whole } = lately;
    setText(this.window, whole ? `over ${integer(steps)} steps` : `last ${integer(steps)} steps`);
    loop.forEach(([name, time]) => this.#row(this.list, name, time / seconds, (time / steps) * 1000));
    ahead.forEach(([name, time]) => this.#row(this.ahead, name, time / seconds, (time / steps) * 1000));
    this.aheadTitle.hidden = ahead.length === 0;
    this.bar.setAttribute("aria-label", loop.map(([name, time]) => `${name} ${percent(time / seconds, 0)}`).join(", "));
  }

  /** Updates a stage's line and its part of the stacked bar; makes them where they are new. */
  #row(list, name, share, milliseconds) {
    const key = `${list === this.ahead} ${name}`;
    if (!this.rows.has(key)) this.rows.set(key, this.#make(list, name));
    const { part, meter, shareText, timeText } = this.rows.get(key);
    if (part) part.style.flexGrow = String(share);
    if (meter) meter.style.transform = `scaleX(${Math.min(1, share)})`;
    setText(shareText, percent(share));
    setText(timeText, `${significant(Number(milliseconds.toPrecision(3)))} ms`);
  }

  #make(list, name) {
    const ahead = list === this.ahead;
    const at = ORDER.indexOf(name);
    const tint = ahead ? "var(--cold)" : `var(--stage-${at >= 0 ? at + 1 : 9})`;
    const swatch = h("i", { class: "swatch" });
    swatch.style.background = tint;
    const [shareText, timeText] = [h("b", {}), h("span", { class: "muted" })];
    const meter = ahead ? h("i", { class: "meter-bar" }) : null;
    const part = ahead ? null : h("div", { title: `${name}: ${MEANING[name] ?? ""}` });
    if (part) { part.style.background = tint; this.bar.append(part); }
    const label = h("span", { class: "stage-name" }, name, MEANING[name] ? h("span", { class: "muted" }, ` ${MEANING[name]}`) : null);
    list.append(h("li", {}, swatch, label, ahead ? h("span", { class: "meter" }, meter) : null, shareText, timeText));
    return { part, meter, shareText, timeText };
  }
}

/** Seconds by stage over the last steps seen, over the whole run where only one snapshot was. */
function spent() {
  const newest = store.recent.at(-1);
  if (!newest || !newest.stages) return null;
  const whole = store.recent.length < 2;
  const base = whole ? { step: 0, seconds: 0, stages: {} } : store.recent[0];
  const [steps, seconds] = [newest.step - base.step, newest.seconds - base.seconds];
  if (steps <= 0 || seconds <= 0) return null;
  const times = Object.entries(newest.stages).map(([name, time]) => [name, Math.max(0, time - (base.stages[name] ?? 0))]);
  const rank = ([name]) => (ORDER.indexOf(name) + ORDER.length + 1) % (ORDER.length + 1);
  const loop = times.filter(([name]) => !BACKGROUND.test(name)).sort((one, two) => rank(one) - rank(two));
  const other = seconds - loop.reduce((sum, [, time]) => sum + time, 0);
  const ahead = times.filter(([name]) => BACKGROUND.test(name)).map(([name, time]) => [name.replace(" (ahead)", ""), time]);
  return { loop: [...loop, ["other", Math.max(0, other)]], ahead, seconds, steps, whole };
}
