// The segment map: all reserved memory of one moment laid out as a ribbon in rows, blocks in the
// colour of their category, free pieces empty. Fragmentation is what it looks like.

import { colour } from "memroom/palette.js";
import { lastAtMost } from "memroom/model.js";

const rowHeight = 14;
const rowGap = 4;

export class SegmentMap {
  /**
   * on: {hover(piece or null, x, y)}; a piece is {block, begin, end} with block -1 for free memory.
   */
  constructor(canvas, on) {
    this.canvas = canvas;
    this.on = on;
    canvas.addEventListener("pointermove", (e) =>
      on.hover(this.pieceAt(e.offsetX, e.offsetY), e.clientX, e.clientY),
    );
    canvas.addEventListener("pointerleave", () => on.hover(null));
  }

  show(device, at, live) {
    this.device = device;
    this.at = at;
    this.layOut(live);
    this.draw();
  }

  /**
   * Puts the segments one after the other on a line of bytes; pieces are the blocks and gaps on
   * that line.
   */
  layOut(all) {
    const d = this.device;
    const live = [...all].sort((a, b) => d.addr[a] - d.addr[b]);
    this.segments = [];
    this.pieces = [];
    let offset = 0;
    let next = 0;
    for (const s of d.segmentsAt(this.at)) {
      const base = offset - s.begin;
      let free = s.begin;
      while (next < live.length && d.addr[live[next]] < s.begin) next++;
      for (; next < live.length && d.addr[live[next]] < s.end; next++) {
        const i = live[next];
        if (d.addr[i] > free)
          this.pieces.push({ block: -1, begin: free + base, end: d.addr[i] + base });
        free = d.addr[i] + d.size[i];
        this.pieces.push({ block: i, begin: d.addr[i] + base, end: free + base });
      }
      if (free < s.end) this.pieces.push({ block: -1, begin: free + base, end: s.end + base });
      this.segments.push({
        begin: offset,
        end: offset + s.end - s.begin,
        address: s.begin,
        expandable: s.expandable,
      });
      offset += s.end - s.begin;
    }
    this.total = offset;
    this.starts = this.pieces.map((p) => p.begin);
  }

  get rows() {
    return Math.max(1, Math.floor((this.canvas.clientHeight + rowGap) / (rowHeight + rowGap)));
  }

  get perRow() {
    return Math.max(1, this.total / this.rows);
  }

  draw() {
    if (this.canvas.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    for (const s of this.segments) this.ribbon(context, s.begin, s.end, "rgba(128,128,128,.16)", 0);
    for (const p of this.pieces) {
      if (p.block >= 0)
        this.ribbon(context, p.begin, p.end, colour(this.device.category(p.block)), 0.4);
    }
    const ink = getComputedStyle(this.canvas).color;
    for (const s of this.segments)
      this.ribbon(context, s.begin, s.begin + this.perRow / this.canvas.clientWidth, ink, 0);
  }

  /**
   * Draws a range of the line, which may go on in the next rows; inset leaves a hair between
   * neighbours.
   */
  ribbon(context, begin, end, style, inset) {
    context.fillStyle = style;
    const width = this.canvas.clientWidth;
    const per = this.perRow;
    for (let row = Math.floor(begin / per); row * per < end && row < this.rows; row++) {
      const from = Math.max(0, ((begin - row * per) / per) * width);
      const to = Math.min(width, ((end - row * per) / per) * width);
      context.fillRect(
        from,
        row * (rowHeight + rowGap),
        Math.max(0.3, to - from - inset),
        rowHeight,
      );
    }
  }

  pieceAt(x, y) {
    if (!this.pieces || this.pieces.length === 0) return null;
    const row = Math.floor(y / (rowHeight + rowGap));
    if (row >= this.rows || y - row * (rowHeight + rowGap) > rowHeight) return null;
    const offset = (row + x / this.canvas.clientWidth) * this.perRow;
    const piece = this.pieces[lastAtMost(this.starts, offset)];
    return piece && offset < piece.end ? piece : null;
  }

  /** Free bytes, the number of free pieces and the longest one. */
  freeSummary() {
    let free = 0;
    let longest = 0;
    let pieces = 0;
    for (const p of this.pieces) {
      if (p.block >= 0) continue;
      free += p.end - p.begin;
      longest = Math.max(longest, p.end - p.begin);
      pieces++;
    }
    return { free, longest, pieces };
  }
}
