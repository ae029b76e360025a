// Saves what a chart shows: as a picture, or as its figures.

import { printable } from "./format.js";

/** Saves a chart as PNG: its title, its legend and its plot. `legend` [{text, color, dash, width}]. */
export function savePicture({ plot, heading, legend, colors, file }) {
  const source = plot.ctx.canvas;
  const scale = devicePixelRatio;
  const [pad, row] = [12 * scale, 18 * scale];
  const canvas = document.createElement("canvas");
  canvas.width = source.width + 2 * pad;
  canvas.height = source.height + 2 * pad + row * (legend.length + 1) + pad / 2;
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = colors.card;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.textBaseline = "middle";
  write(ctx, heading, pad, pad + row / 2, `600 ${13 * scale}px system-ui, sans-serif`, colors.text);
  legend.forEach(({ text, color, dash, width }, at) => {
    const y = pad + row * (at + 1.5);
    ctx.strokeStyle = color;
    ctx.lineWidth = (width + 0.5) * scale;
    ctx.setLineDash((dash ?? []).map((length) => length * scale));
    ctx.beginPath();
    ctx.moveTo(pad, y);
    ctx.lineTo(pad + 32 * scale, y);
    ctx.stroke();
    write(ctx, text, pad + 40 * scale, y, `${12 * scale}px system-ui, sans-serif`, colors.text);
  });
  ctx.drawImage(source, pad, pad + row * (legend.length + 1) + pad / 2);
  canvas.toBlob((blob) => save(blob, `${file}.png`), "image/png");
}

function write(ctx, text, x, y, font, color) {
  ctx.font = font;
  ctx.fillStyle = color;
  ctx.fillText(printable(text), x, y);
}

/** Saves figures as CSV: `heads` names of the columns, `columns` of equal length. Unknown values are empty. */
export function saveFigures({ heads, columns, file }) {
  save(new Blob([csv(heads, columns)], { type: "text/csv" }), `${file}.csv`);
}

export function csv(heads, columns) {
  const cell = (value) => (Number.isFinite(value) ? String(value) : "");
  const lines = columns[0].map((_, at) => columns.map((column) => cell(column[at])).join(","));
  return [heads.map(quoted).join(","), ...lines, ""].join("\r\n");
}

/** A text of the first line, with quotes where RFC 4180 asks for them. What cannot be seen is written out. */
function quoted(text) {
  const seen = printable(text).replace(/\n/g, "\\n");
  return /[",]/.test(seen) ? `"${seen.replace(/"/g, '""')}"` : seen;
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
