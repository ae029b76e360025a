// One knob's line in the form: its control by type and range, what it is now, and the edit not yet sent.

import { h, icon, setText } from "./dom.js";
import { exactBytes, integer, knobValue, parseBytes, printable, significant } from "./format.js";

const plain = (value) => (typeof value === "number" ? String(value) : value ?? "");

/** A field for knob `name` as GET /knobs describes it; `onEdit` is called whenever the edit changes. */
export class KnobField {
  constructor(name, knob, onEdit) {
    Object.assign(this, { name, knob, onEdit, text: null, reset: false });
    this.id = `knob-${name}`;
    this.error = h("p", { class: "field-error", id: `${this.id}-error`, role: "alert" });
    this.state = h("p", { class: "field-state" });
    this.resetButton = h("button", { type: "button", class: "icon", onclick: () => this.toDefault() }, icon("reset"));
    const title = name.replaceAll("_", " ").replace(/ bytes$/, "");
    this.element = h("div", { class: "field", "data-knob": name },
      h("div", { class: "field-text" }, h("label", { for: this.id }, title), " ", title === name ? null : h("code", {}, name), h("p", { class: "muted", id: `${this.id}-why` }, knob.why)),
      h("div", { class: "field-control" }, h("div", { class: "control" }, this.#control(), this.resetButton), this.error, this.state));
    this.update(knob);
  }

  #control() {
    const { knob } = this;
    const about = { id: this.id, name: this.name, "aria-describedby": `${this.id}-why ${this.id}-error` };
    const edit = () => this.#edit(this.input.value);
    if (knob.type === "string" && knob.choices) {
      this.input = h("select", { ...about, onchange: edit }, knob.choices.map((choice) => h("option", { value: choice }, choice)));
      return this.input;
    }
    this.input = h("input", { ...about, type: "text", inputmode: knob.unit === "bytes" ? "text" : "decimal", autocomplete: "off", spellcheck: "false", oninput: edit });
    if (knob.type === "number_or_choice") return this.#choiceOrNumber(edit);
    const unit = ["bytes", "ratio", "name"].includes(knob.unit) ? null : h("span", { class: "unit muted" }, knob.unit);
    if (knob.type === "number" && knob.minimum !== null && knob.maximum !== null) return [this.#slider(), this.input, unit];
    return [this.input, unit];
  }

  #slider() {
    const { minimum, maximum } = this.knob;
    const slide = () => {
      this.input.value = String(Number(Number(this.slider.value).toPrecision(3)));
      this.#edit(this.input.value);
    };
    this.slider = h("input", { type: "range", min: minimum, max: maximum, step: "any", tabindex: -1, "aria-hidden": "true", oninput: slide });
    return this.slider;
  }

  /** "search" or a number: buttons for the choices, the number beside them. */
  #choiceOrNumber(edit) {
    const pick = (event) => {
      if (event.target.value !== "") this.input.value = event.target.value;
      else if (this.knob.choices.includes(this.input.value)) this.input.value = plain(typeof this.knob.effective === "number" ? this.knob.effective : 0.001);
      edit();
    };
    this.radios = [...this.knob.choices, ""].map((choice) => h("input", { type: "radio", name: `${this.id}-kind`, value: choice, onchange: pick }));
    const labels = this.radios.map((radio) => h("label", {}, radio, h("span", {}, radio.value || "fixed")));
    return [h("div", { class: "segmented", role: "group", "aria-label": `${this.name}: searched or fixed` }, labels), this.input];
  }

  get edited() { return this.text !== null || this.reset; }

  /** The value to send (null: back to the default), or undefined with the reason in `this.fault`. */
  get value() {
    const { knob } = this;
    this.fault = "";
    if (this.reset) return null;
    const text = this.text.trim();
    if (knob.choices?.includes(text)) return text;
    if (knob.type === "string") return text;
    const number = knob.unit === "bytes" ? parseBytes(text) : text === "" ? NaN : Number(text);
    if (number === null || !Number.isFinite(number)) return this.#refuse(knob.unit === "bytes" ? "Enter a size, such as 256 MiB." : "Enter a number.");
    if (knob.type === "integer" && !Number.isInteger(number)) return this.#refuse("Enter a whole number.");
    const [low, high] = [knob.minimum, knob.maximum];
    if ((low !== null && (number < low || (knob.exclusive_minimum && number === low))) || (high !== null && (number > high || (knob.exclusive_maximum && number === high)))) {
      return this.#refuse(`Must be ${this.range()}.`);
    }
    return number;
  }

  #refuse(why) {
    this.fault = why;
    return undefined;
  }

  /** The allowed values in words. */
  range() {
    let { minimum: low, maximum: high, exclusive_minimum: above, exclusive_maximum: below } = this.knob;
    const { type, unit } = this.knob;
    if (type === "integer" && above) [low, above] = [low + 1, false];
    if (type === "integer" && below) [high, below] = [high - 1, false];
    const show = (value) => knobValue(value, unit);
    if (low !== null && high !== null) return `${above ? "above" : "from"} ${show(low)} ${below ? "to below" : "to"} ${show(high)}`;
    if (low !== null) return above ? `above ${show(low)}` : `at least ${show(low)}`;
    return high === null ? "any number" : `at most ${show(high)}`;
  }

  #edit(text) {
    this.reset = false;
    this.text = text === this.#shown(this.knob.desired) ? null : text;
    this.setError("");
    this.#show();
    this.onEdit(this);
  }

  toDefault() {
    this.reset = this.knob.desired !== this.knob.default;
    this.text = null;
    this.setError("");
    const focused = document.activeElement === this.resetButton;
    this.#show();
    if (focused) this.focus();
    this.onEdit(this);
  }

  focus() { (this.input.classList.contains("gone") ? this.radios.find((radio) => radio.checked) : this.input).focus(); }

  discard() {
    Object.assign(this, { text: null, reset: false });
    this.setError("");
    this.#show();
  }

  setError(text) {
    setText(this.error, text);
    this.input.setAttribute("aria-invalid", String(text !== ""));
    this.element.classList.toggle("wrong", text !== "");
  }

  setDisabled(reason) {
    for (const control of [this.input, this.slider, this.resetButton, ...(this.radios ?? [])]) if (control) control.disabled = reason !== "";
    this.locked = reason !== "";
    this.#show();
  }

  /** What the sidecar says of it now; an edit stays. */
  update(knob, reason = null) {
    Object.assign(this, { knob, reason });
    if (this.text === this.#shown(knob.desired)) this.text = null;
    this.#show();
  }

  #shown(value) { return this.knob.unit === "bytes" && typeof value === "number" ? exactBytes(value) : plain(value); }

  #show() {
    const { knob } = this;
    const current = this.reset ? this.#shown(knob.default) : this.text ?? this.#shown(knob.desired);
    if (this.input.value !== current) this.input.value = current;
    if (this.slider) this.slider.value = Number(current) || 0;
    const chosen = knob.choices?.includes(current) ? current : "";
    for (const radio of this.radios ?? []) radio.checked = radio.value === chosen;
    if (this.radios) this.input.classList.toggle("gone", chosen !== "");
    this.element.classList.toggle("edited", this.edited);
    const show = (value) => knobValue(value, knob.unit);
    const isDefault = knob.desired === knob.default && !this.edited;
    this.resetButton.title = printable(`Back to the default, ${show(knob.default)}`);
    this.resetButton.setAttribute("aria-label", this.resetButton.title);
    this.resetButton.classList.toggle("gone", isDefault || this.reset || this.locked);
    const pending = knob.desired !== knob.effective;
    this.element.classList.toggle("pending", pending);
    const facts = [];
    if (this.edited) facts.push(`now ${show(knob.desired)}`);
    if (pending) facts.push(`pending${this.reason ? `, as ${this.reason}` : ""}; in effect: ${show(knob.effective)}`);
    if (knob.type !== "string") facts.push(this.range());
    facts.push(isDefault ? "default" : `default ${show(knob.default)}`);
    if (this.since && !this.edited && !pending) facts.unshift(`took effect at step ${integer(this.since)}`);
    this.element.classList.toggle("took", Boolean(this.since) && !this.edited && !pending);
    setText(this.state, facts.join(" · "));
  }

  /** Says at the field since which step its value is in effect. */
  took(step) {
    this.since = step;
    this.#show();
  }

  /** The edit in words: "alpha 0.9 → 0.8". */
  summary() {
    const { knob } = this;
    const { value } = this;
    const to = this.reset ? `${knobValue(knob.default, knob.unit)} (default)` : value === undefined ? this.text : typeof value === "number" && knob.unit !== "bytes" ? significant(value) : knobValue(value, knob.unit);
    return `${this.name} ${knobValue(knob.desired, knob.unit)} → ${to}`;
  }
}
