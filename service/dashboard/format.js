// Numbers as people read them. Unknown values (null, undefined, not finite) are "–".

const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);
const grouped = new Intl.NumberFormat("en-US");

/** 1234567 as "1,234,567". */
export const integer = (value) => (known(value) ? grouped.format(Math.round(value)) : NONE);

/** 61734 as "61.7 k": three digits and a unit. */
export function count(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${three(value / (unit === "k" ? 1e3 : size))} ${unit}`;
  }
  return Math.abs(value) >= 100 || Number.isInteger(value) ? integer(value) : three(value);
}

/** 8388608 as "8.00 MiB". */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(value) >= 1000 && power < units.length - 1) { value /= 1024; power += 1; }
  return `${power ? three(value) : Math.round(value)} ${units[power]}`;
}

/** Three digits, no exponent for what people meet: 0.0625, 1.23, 45.6, 789. */
function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** 0.9512 as "95.1%". */
export function percent(value, digits = 1) {
  if (!known(value)) return NONE;
  if (value > 0 && value < 0.5 * 10 ** (-digits - 2)) return `<${(10 ** -digits).toFixed(digits)}%`;
  return `${(value * 100).toFixed(digits)}%`;
}

export const fixed = (value, digits = 4) => (known(value) ? value.toFixed(digits) : NONE);

/** What cannot be seen: control characters, marks that change the direction of writing, lone surrogates. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\t": "\\t", "\r": "\\r", "\n": "\\n" };

/** Text from elsewhere with what cannot be seen written out, as the commands do: U+202E as "\u202e". Line ends stay. */
export const printable = (text) => text.replace(UNSEEN, (unseen) => (unseen === "\n" ? unseen : written(unseen)));

function written(character) {
  const code = character.codePointAt(0);
  const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return SHORT[character] ?? `\\${mark}${code.toString(16).padStart(digits, "0")}`;
}

/** A name as `printable` text; blanks where there is nothing else are written out. */
export const nameOf = (text) => (/^ +$/.test(text) ? "\\x20".repeat(text.length) : printable(text));

/** Up to four significant digits, for values of any size. */
export function significant(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** Seconds as "45 s", "3 min 20 s", "2 h 05 min". */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  const hours = Math.floor(whole / 3600);
  const minutes = `${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return hours < 48 ? `${hours} h ${minutes}` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** An ISO time as local clock time, with the day where it is not today. */
export function clock(iso) {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return NONE;
  const at = time.toLocaleTimeString("en-GB");
  const today = time.toDateString() === new Date().toDateString();
  return today ? at : `${time.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${at}`;
}

const BYTE_UNITS = { "": 1, b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

/** "256 MiB" or "1e6" as a whole number of bytes; null where it is no size. */
export function parseBytes(text) {
  const match = /^\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)\s*$/i.exec(text.replace(/,/g, ""));
  const unit = match && BYTE_UNITS[match[2].toLowerCase()];
  return unit ? Math.round(Number(match[1]) * unit) : null;
}

/** A size in the largest unit that says it exactly: 67108864 as "64 MiB", 1000 as "1000 B". */
export function exactBytes(value) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size && Number.isInteger((value / size) * 100)) return `${value / size} ${unit}`;
  }
  return `${value} B`;
}

/** A knob's value with its unit. */
export function knobValue(value, unit) {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return String(value);
  return unit === "bytes" ? exactBytes(value) : significantOrWhole(value);
}

const significantOrWhole = (value) => (Number.isInteger(value) && Math.abs(value) < 1e9 ? integer(value) : significant(value));

/** A change of knobs in human units, "hot_budget_bytes 8 MiB → 4 MiB"; the event's own text where it does not say them. */
export function changeInWords({ text, details }) {
  const unit = (name) => (name.endsWith("_bytes") ? "bytes" : "");
  const parts = Object.entries(details?.changed ?? {}).map(([name, { old, new: now }]) => `${name} ${knobValue(old, unit(name))} → ${knobValue(now, unit(name))}`);
  const said = [details?.undoes ? `undoes event ${details.undoes}` : details?.undoes === 0 ? "undoes a change that was not in effect yet" : "", details?.why ?? ""].filter(Boolean);
  return parts.length ? [parts.join(", "), ...said].join(": ") : text;
}
