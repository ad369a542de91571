// The timeline: every column of pixels is one moment, the blocks that live then stacked from the oldest at the bottom.
// Pixels are written directly, so that the cost is that of the picture and not of the number of blocks.

import { categories, word } from "memroom/palette.js";
import { lastAtMost } from "memroom/model.js";
import { bytes } from "memroom/format.js";

const axis = 64; // pixels left of the picture for the scale
const foot = 18; // pixels below it for steps

export class Timeline {
  /** on: {moment(at), hover(block or null, at, x, y)} */
  constructor(canvas, on) {
    this.canvas = canvas;
    this.on = on;
    this.hidden = new Set();
    this.found = null; // stacks that are searched for; the others are drawn pale
    this.moment = 0;
    this.listen();
  }

  show(device) {
    this.device = device;
    this.from = 0;
    this.to = Math.max(1, device.entries);
    this.draw();
  }

  setMoment(at) {
    this.moment = at;
    this.draw();
  }

  setFound(stacks) {
    this.found = stacks;
    this.draw();
  }

  setHidden(hidden) {
    this.hidden = hidden;
    this.draw();
  }

  reset() {
    this.show(this.device);
  }

  /** Zooms by a factor around a moment. */
  zoom(factor, around) {
    const d = this.device;
    const width = Math.min(d.entries, Math.max(8, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.move(around - share * width, width);
  }

  move(from, width) {
    this.from = Math.max(0, Math.min(from, this.device.entries - width));
    this.to = this.from + Math.max(1, width);
    this.draw();
  }

  get inner() {
    return { x: axis, width: this.canvas.clientWidth - axis - 4, height: this.canvas.clientHeight - foot };
  }

  toX(at) {
    return this.inner.x + ((at - this.from) / (this.to - this.from)) * this.inner.width;
  }

  toMoment(x) {
    const at = this.from + ((x - this.inner.x) / this.inner.width) * (this.to - this.from);
    return Math.max(0, Math.min(this.device.last, Math.floor(at)));
  }

  draw() {
    if (!this.device || this.canvas.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    const context = this.canvas.getContext("2d");
    const { x, width, height } = this.inner;
    this.moments = this.sampleMoments(Math.max(1, Math.round(width * ratio)));
    this.top = this.scale();
    const image = context.createImageData(this.moments.length, Math.max(1, Math.round(height * ratio)));
    this.paint(image);
    context.putImageData(image, Math.round(x * ratio), 0);
    context.scale(ratio, ratio);
    this.drawReserved(context);
    this.drawAxis(context);
    this.drawMarks(context);
  }

  /** For each column the moment inside it at which most is allocated, so that no peak is lost. */
  sampleMoments(columns) {
    const d = this.device;
    const moments = new Int32Array(columns);
    const step = (this.to - this.from) / columns;
    let i = lastAtMost(d.changeAt, this.from) + 1;
    for (let c = 0; c < columns; c++) {
      const until = this.from + (c + 1) * step;
      let best = Math.floor(this.from + c * step);
      let high = i > 0 ? d.changeSum[i - 1] : 0;
      for (; i < d.changeAt.length && d.changeAt[i] < until; i++) {
        if (d.changeSum[i] >= high) {
          high = d.changeSum[i];
          best = d.changeAt[i];
        }
      }
      moments[c] = best;
    }
    return moments;
  }

  scale() {
    let high = 1;
    for (const at of this.moments) high = Math.max(high, this.device.allocatedAt(at), this.device.reservedAt(at));
    return high * 1.04;
  }

  paint(image) {
    const d = this.device;
    const pixels = new Uint32Array(image.data.buffer);
    const { width, height } = image;
    const fill = categories.map((c) => [word(c), word(c, 0.86), word(c, 0.66)]);
    const rest = word("rest");
    const perByte = height / this.top;
    let live = [];
    let next = 0;
    for (let x = 0; x < width; x++) {
      const at = this.moments[x];
      for (; next < d.length && d.start[next] <= at; next++) live.push(next);
      live = live.filter((i) => d.end[i] > at);
      let sum = d.restAt(at);
      column(pixels, width, height, x, 0, sum * perByte, rest, rest);
      for (const i of live) {
        if (this.hidden.has(d.category(i))) continue;
        const shades = this.found && !this.found.has(d.stack[i]) ? [rest, rest, rest] : fill[d.kind[i]] || fill[0];
        column(pixels, width, height, x, sum * perByte, (sum + d.size[i]) * perByte, shades[i & 1], shades[2]);
        sum += d.size[i];
      }
    }
  }

  drawReserved(context) {
    const d = this.device;
    const { x, width, height } = this.inner;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 1;
    context.beginPath();
    for (let c = 0; c < this.moments.length; c++) {
      const y = height - (d.reservedAt(this.moments[c]) / this.top) * height;
      const px = x + (c / this.moments.length) * width;
      if (c === 0) context.moveTo(px, y);
      else context.lineTo(px, y);
    }
    context.stroke();
  }

  drawAxis(context) {
    const { x, width, height } = this.inner;
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let i = 0; i <= 4; i++) {
      const y = height - (i / 4) * height;
      context.globalAlpha = 0.18;
      context.fillRect(x, Math.max(0, y - 0.5), width, 1);
      context.globalAlpha = 1;
      context.fillText(bytes(Math.round((this.top * i) / 4)), x - 4, Math.max(7, Math.min(height - 6, y)));
    }
  }

  /** Steps below the picture; lines for failures, the peak and the chosen moment. */
  drawMarks(context) {
    const d = this.device;
    const { height } = this.inner;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    let edge = -Infinity;
    for (const row of d.snapshot.steps || []) {
      const x = this.toX(row.begin);
      if (row.begin < this.from || row.begin > this.to || x - edge < 46) continue;
      context.globalAlpha = 0.35;
      context.fillRect(x, height, 1, 5);
      context.globalAlpha = 1;
      context.fillText(`step ${row.step}`, x + 2, height + 13);
      edge = x;
    }
    for (const oom of d.snapshot.ooms || []) this.drawLine(context, oom.at, "#c9423a", 2);
    this.drawLine(context, this.moment, getComputedStyle(this.canvas).color, 1);
  }

  drawLine(context, at, style, width) {
    if (at < this.from || at > this.to) return;
    context.fillStyle = style;
    context.fillRect(this.toX(at + 0.5) - width / 2, 0, width, this.inner.height);
  }

  /** The block drawn at a point, or null. */
  blockAt(x, y) {
    const d = this.device;
    const { x: left, width, height } = this.inner;
    if (x < left || x > left + width || y > height) return null;
    const at = this.moments[Math.min(this.moments.length - 1, Math.floor(((x - left) / width) * this.moments.length))];
    const level = ((height - y) / height) * this.top;
    let sum = d.restAt(at);
    for (const i of d.liveAt(at)) {
      if (this.hidden.has(d.category(i))) continue;
      sum += d.size[i];
      if (level < sum) return level < sum - d.size[i] ? null : i;
    }
    return null;
  }

  listen() {
    const c = this.canvas;
    let held = null;
    c.addEventListener("wheel", (e) => {
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.move(this.from + (e.deltaX / this.inner.width) * (this.to - this.from), this.to - this.from);
      else this.zoom(Math.exp(e.deltaY * 0.002), this.toMoment(e.offsetX));
    }, { passive: false });
    c.addEventListener("pointerdown", (e) => {
      held = { x: e.offsetX, from: this.from, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (held) {
        const dx = e.offsetX - held.x;
        held.moved ||= Math.abs(dx) > 4;
        if (held.moved) this.move(held.from - (dx / this.inner.width) * (this.to - this.from), this.to - this.from);
        return;
      }
      if (this.device) this.on.hover(this.blockAt(e.offsetX, e.offsetY), this.toMoment(e.offsetX), e.clientX, e.clientY);
    });
    c.addEventListener("pointerup", (e) => {
      if (held && !held.moved) this.on.moment(this.toMoment(e.offsetX));
      held = null;
    });
    c.addEventListener("pointerleave", () => this.on.hover(null));
    c.addEventListener("dblclick", () => this.reset());
    c.addEventListener("keydown", (e) => this.key(e));
  }

  /** Arrows move the moment, plus and minus zoom, 0 shows all. */
  key(e) {
    if (!this.device || e.ctrlKey || e.metaKey || e.altKey) return;
    const step = Math.max(1, Math.round((this.to - this.from) / (e.shiftKey ? 10 : 200)));
    const actions = {
      ArrowLeft: () => this.on.moment(this.moment - step), ArrowRight: () => this.on.moment(this.moment + step), Home: () => this.on.moment(0), End: () => this.on.moment(this.device.last),
      "+": () => this.zoom(0.5, this.moment), "=": () => this.zoom(0.5, this.moment), "-": () => this.zoom(2, this.moment), 0: () => this.reset(),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }
}

/** Fills pixels of one column from the height low to high, counted from the bottom, with a darker line on top. */
function column(pixels, width, height, x, low, high, fill, edge) {
  const from = Math.round(low);
  const to = Math.min(height, Math.round(high));
  for (let y = from; y < to; y++) pixels[(height - 1 - y) * width + x] = fill;
  if (to - from >= 4) pixels[(height - to) * width + x] = edge;
}
