// What is drawn over the lines of a chart: evaluations as points, events as lines with a sign, the ends of epochs.

const MOST_EPOCHS = 24;
const SHAPES = {
  diamond: (ctx, r) => { ctx.moveTo(0, -r * 1.4); ctx.lineTo(r * 1.4, 0); ctx.lineTo(0, r * 1.4); ctx.lineTo(-r * 1.4, 0); ctx.closePath(); },
  square: (ctx, r) => ctx.rect(-r, -r, 2 * r, 2 * r),
  circle: (ctx, r) => ctx.arc(0, 0, r, 0, 2 * Math.PI),
  triangle: (ctx, r) => { ctx.moveTo(0, -r * 1.2); ctx.lineTo(r * 1.2, r); ctx.lineTo(-r * 1.2, r); ctx.closePath(); },
  cross: (ctx, r) => { ctx.moveTo(-r, -r); ctx.lineTo(r, r); ctx.moveTo(r, -r); ctx.lineTo(-r, r); },
  plus: (ctx, r) => { ctx.moveTo(-r * 1.2, 0); ctx.lineTo(r * 1.2, 0); ctx.moveTo(0, -r * 1.2); ctx.lineTo(0, r * 1.2); },
};

/** Points of one run: [{x, y}], in a shape and a colour. */
export function drawPoints(plot, points, shape, color) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  const radius = (points.length > 24 ? 2 : 3.5) * scale;
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = color;
  ctx.lineWidth = 1.75 * scale;
  ctx.setLineDash([]);
  for (const { x, y } of points) {
    const [px, py] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
    if (px < bbox.left || px > bbox.left + bbox.width) continue;
    ctx.setTransform(1, 0, 0, 1, px, py);
    ctx.beginPath();
    SHAPES[shape](ctx, radius);
    if (shape === "cross" || shape === "plus") ctx.stroke();
    else ctx.fill();
  }
  ctx.restore();
}

/** Events as vertical lines with a sign at the top; the one that is `highlighted` is strong. `marks` [{x, id, sign, kind}]. */
export function drawMarks(plot, marks, highlighted, colors) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  let [last, lower] = [-Infinity, false];
  ctx.save();
  for (const { x: at, id, sign, kind } of marks) {
    const x = Math.round(plot.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const strong = id === highlighted;
    ctx.strokeStyle = ctx.fillStyle = colors[kind];
    ctx.lineWidth = (strong ? 2 : 1) * scale;
    ctx.setLineDash(strong ? [] : [4 * scale, 3 * scale]);
    line(ctx, x, bbox);
    lower = x - last < 15 * scale && !lower; // signs too close to each other take turns in height
    drawSign(ctx, x, bbox.top + (lower ? 16 * scale : 0), sign, scale, colors.card);
    last = x;
  }
  ctx.restore();
}

/** The ends of passes over the training data, [{x, epoch}], as thin lines; where there is room, with the number of the epoch that begins. */
export function drawEpochs(plot, ends, color, ground) {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.lineWidth = scale;
  ctx.font = `${10 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.setLineDash([scale, 2 * scale]);
  let free = -Infinity; // where the words before end
  for (const { x: at, epoch } of ends) {
    const x = Math.round(plot.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    line(ctx, x, bbox);
    const text = `epoch ${epoch}`;
    const { width } = ctx.measureText(text);
    const right = bbox.left + bbox.width + 14 * scale; // with what is left free beside the plot
    const left = x + 3 * scale + width <= right ? x + 3 * scale : x - 3 * scale - width;
    if (left < free) continue;
    free = left + width + 4 * scale;
    const bottom = bbox.top + bbox.height - 2 * scale;
    ctx.fillStyle = ground; // behind the words, which lines would cross
    ctx.globalAlpha = 0.8;
    ctx.fillRect(left - scale, bottom - 12 * scale, width + 2 * scale, 13 * scale);
    ctx.globalAlpha = 1;
    ctx.fillStyle = color;
    ctx.fillText(text, left, bottom);
  }
  ctx.restore();
}

/** The ends of epochs between two steps: [{step, epoch}], `epoch` the one that begins, from 2. None begins at the last step. Of very many some. */
export function epochEnds(stepsPerEpoch, from, to) {
  if (!stepsPerEpoch) return [];
  const [first, last] = [Math.max(1, Math.ceil(from / stepsPerEpoch)), Math.ceil(to / stepsPerEpoch) - 1];
  const every = Math.ceil(Math.max(1, last - first + 1) / MOST_EPOCHS);
  const ends = [];
  for (let number = Math.ceil(first / every) * every; number <= last; number += every) ends.push({ step: number * stepsPerEpoch, epoch: number + 1 });
  return ends;
}

function line(ctx, x, { top, height }) {
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
}

/** A number or a letter in a small disc. */
function drawSign(ctx, x, top, sign, scale, ground) {
  ctx.setLineDash([]);
  ctx.beginPath();
  ctx.arc(x, top, 7 * scale, 0, 2 * Math.PI);
  ctx.fill();
  ctx.fillStyle = ground;
  ctx.font = `600 ${9 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(sign, x, top + 0.5 * scale);
}
