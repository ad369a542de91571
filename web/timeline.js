// The timeline: every column of pixels is one moment, the blocks that live then stacked from the
// oldest at the bottom. Pixels are written directly, so that the cost is that of the picture and
// not of the number of blocks.

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

  /** Shows all of a device, with a moment marked and the blocks of some stacks stressed. */
  show(device, moment, found) {
    [this.device, this.moment, this.found] = [device, moment, found];
    this.picture = null;
    this.reset();
  }

  setMoment(at) {
    this.moment = at;
    this.draw();
  }

  setFound(stacks) {
    if (!stacks && !this.found) return;
    this.found = stacks;
    this.picture = null;
    this.draw();
  }

  setHidden(hidden) {
    this.hidden = hidden;
    this.picture = null;
    this.draw();
  }

  reset() {
    this.from = 0;
    this.to = Math.max(1, this.device.entries);
    this.draw();
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
    return {
      x: axis,
      width: this.canvas.clientWidth - axis - 4,
      height: this.canvas.clientHeight - foot,
    };
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
    const [columns, rows] = [
      Math.max(1, Math.round(width * ratio)),
      Math.max(1, Math.round(height * ratio)),
    ];
    const view = [this.from, this.to, columns, rows].join(" ");
    if (!this.picture || this.view !== view) {
      // another moment alone leaves the picture as it is
      this.view = view;
      this.moments = this.sampleMoments(columns);
      this.top = this.scale();
      this.picture = context.createImageData(columns, rows);
      this.paint(this.picture);
    }
    context.putImageData(this.picture, Math.round(x * ratio), 0);
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
    for (const at of this.moments)
      high = Math.max(high, this.device.allocatedAt(at), this.device.reservedAt(at));
    return high * 1.04;
  }

  paint(image) {
    const d = this.device;
    const { end, size, kind, stack } = d;
    const pixels = new Uint32Array(image.data.buffer);
    const { width, height } = image;
    const rest = word("rest");
    const fill = new Uint32Array(256 * 3).fill(word("unknown"));
    const shown = new Uint8Array(256).fill(this.hidden.has("unknown") ? 0 : 1);
    for (const [i, c] of categories.entries()) {
      fill.set([word(c), word(c, 0.86), word(c, 0.66)], 3 * i);
      shown[i] = this.hidden.has(c) ? 0 : 1;
    }
    const perByte = height / this.top;
    const live = new Int32Array(d.length);
    let [next, count] = [0, 0];
    for (let x = 0; x < width; x++) {
      const at = this.moments[x];
      while (next < d.length && d.start[next] <= at) live[count++] = next++;
      let sum = d.restAt(at);
      column(pixels, width, height, x, 0, Math.round(sum * perByte), rest, rest);
      let kept = 0;
      for (let j = 0; j < count; j++) {
        const i = live[j];
        if (end[i] <= at) continue;
        live[kept++] = i;
        if (shown[kind[i]] === 0) continue;
        const low = Math.round(sum * perByte);
        sum += size[i];
        const high = Math.round(sum * perByte);
        if (high === low) continue;
        const pale = this.found !== null && !this.found.has(stack[i]);
        column(
          pixels,
          width,
          height,
          x,
          low,
          high,
          pale ? rest : fill[3 * kind[i] + (i & 1)],
          pale ? rest : fill[3 * kind[i] + 2],
        );
      }
      count = kept;
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
      context.fillText(
        bytes(Math.round((this.top * i) / 4)),
        x - 4,
        Math.max(7, Math.min(height - 6, y)),
      );
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
    const at =
      this.moments[
        Math.min(this.moments.length - 1, Math.floor(((x - left) / width) * this.moments.length))
      ];
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
    c.addEventListener(
      "wheel",
      (e) => {
        e.preventDefault();
        if (Math.abs(e.deltaX) > Math.abs(e.deltaY))
          this.move(
            this.from + (e.deltaX / this.inner.width) * (this.to - this.from),
            this.to - this.from,
          );
        else this.zoom(Math.exp(e.deltaY * 0.002), this.toMoment(e.offsetX));
      },
      { passive: false },
    );
    c.addEventListener("pointerdown", (e) => {
      held = { x: e.offsetX, from: this.from, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (held) {
        const dx = e.offsetX - held.x;
        held.moved ||= Math.abs(dx) > 4;
        if (held.moved)
          this.move(
            held.from - (dx / this.inner.width) * (this.to - this.from),
            this.to - this.from,
          );
        return;
      }
      if (this.device)
        this.on.hover(
          this.blockAt(e.offsetX, e.offsetY),
          this.toMoment(e.offsetX),
          e.clientX,
          e.clientY,
        );
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
      ArrowLeft: () => this.on.moment(this.moment - step),
      ArrowRight: () => this.on.moment(this.moment + step),
      Home: () => this.on.moment(0),
      End: () => this.on.moment(this.device.last),
      "+": () => this.zoom(0.5, this.moment),
      "=": () => this.zoom(0.5, this.moment),
      "-": () => this.zoom(2, this.moment),
      0: () => this.reset(),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }
}

/**
 * Fills pixels of one column from the row low to high, counted from the bottom, with a darker line
 * on top.
 */
function column(pixels, width, height, x, low, high, fill, edge) {
  const to = Math.min(height, high);
  for (let y = low, p = (height - 1 - low) * width + x; y < to; y++, p -= width) pixels[p] = fill;
  if (to - low >= 4) pixels[(height - to) * width + x] = edge;
}
