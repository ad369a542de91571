// The flame view: what lives at a moment, by call stack, the outermost call at the top. Width is
// bytes.

import { bytes, frameText, percent } from "memroom/format.js";
import { colour } from "memroom/palette.js";

const rowHeight = 18;
const plumbing = new Set([
  "_call_impl",
  "_wrapped_call_impl",
  "wrapper",
  "decorate_context",
  "_fn",
  "inner",
]);

export class Flame {
  /** on: {hover(node or null, x, y), chosen(node)} */
  constructor(canvas, on) {
    this.canvas = canvas;
    this.on = on;
    this.match = null;
    canvas.addEventListener("pointermove", (e) =>
      on.hover(this.nodeAt(e.offsetX, e.offsetY), e.clientX, e.clientY),
    );
    canvas.addEventListener("pointerleave", () => on.hover(null));
    canvas.addEventListener("click", (e) => {
      const node = this.nodeAt(e.offsetX, e.offsetY);
      if (node) this.zoom(node);
    });
    canvas.addEventListener("dblclick", () => this.zoom(this.root));
    canvas.addEventListener("keydown", (e) => this.key(e));
  }

  /**
   * Builds the tree of the blocks that live. rest is what blocks too small to be listed hold
   * together.
   */
  show(device, live, rest) {
    this.device = device;
    const root = { name: "everything", bytes: 0, children: new Map(), depth: 0, kinds: new Map() };
    const sums = new Map();
    for (const i of live) {
      const key = device.stack[i] * 16 + device.kind[i];
      sums.set(key, (sums.get(key) || 0) + device.size[i]);
    }
    for (const [key, size] of sums) {
      const frames = (device.stacks[Math.floor(key / 16)] || [])
        .map((f) => device.frameTable[f])
        .filter(([, name]) => !plumbing.has(name));
      if (frames.length === 0) frames.push(["", "(no call stack)", 0]);
      let node = root;
      add(node, size, key % 16);
      for (let i = frames.length - 1; i >= 0; i--) {
        const text = frames[i][0] === "" ? frames[i][1] : frameText(frames[i]);
        let child = node.children.get(text);
        if (!child) {
          child = {
            name: text,
            file: frames[i][0],
            bytes: 0,
            children: new Map(),
            depth: node.depth + 1,
            parent: node,
            kinds: new Map(),
          };
          node.children.set(text, child);
        }
        node = child;
        add(node, size, key % 16);
      }
    }
    if (rest > 0) {
      root.bytes += rest;
      root.children.set("", {
        name: "small blocks",
        bytes: rest,
        children: new Map(),
        depth: 1,
        parent: root,
        kinds: new Map(),
        rest: true,
      });
    }
    this.root = root;
    const path = this.top ? pathOf(this.top) : [];
    this.top = root;
    for (const name of path) {
      // the place that was zoomed into, if it is still there
      const child = this.top.children.get(name);
      if (!child) break;
      this.top = child;
    }
    this.draw();
  }

  zoom(node) {
    this.top = node;
    this.draw();
    this.on.chosen(node);
  }

  setMatch(match) {
    this.match = match;
    this.draw();
  }

  get rows() {
    return Math.max(1, Math.floor(this.canvas.clientHeight / rowHeight));
  }

  draw() {
    if (!this.root || this.canvas.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    // Painted, not left to the style sheet: Chromium may keep the ground of the colours before.
    g.fillStyle = getComputedStyle(this.canvas).backgroundColor;
    g.fillRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    this.boxes = [];
    this.place(g, this.top, 0, this.canvas.clientWidth, 0);
  }

  /**
   * Draws a node and those below it, the largest first. What is thinner than half a pixel is left
   * out.
   */
  place(g, node, x, width, row) {
    if (row >= this.rows || width < 0.5) return;
    const y = row * rowHeight;
    this.boxes.push({ node, x, y, width });
    const seen = !this.match || this.match(node);
    g.globalAlpha = seen ? 1 : 0.25;
    g.fillStyle = node.rest
      ? colour("rest")
      : node === this.root
        ? colour("workspace")
        : colour(kindOf(this.device, node));
    g.fillRect(x, y, Math.max(0.5, width - 0.6), rowHeight - 1);
    if (width > 30) {
      g.fillStyle = "#101214";
      g.save();
      g.beginPath();
      g.rect(x, y, width - 2, rowHeight);
      g.clip();
      g.fillText(`${node.name} ${bytes(node.bytes)}`, x + 4, y + rowHeight / 2);
      g.restore();
    }
    g.globalAlpha = 1;
    let at = x;
    for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
      const w = (child.bytes / node.bytes) * width;
      this.place(g, child, at, w, row + 1);
      at += w;
    }
  }

  nodeAt(x, y) {
    const hit = (this.boxes || []).find(
      (b) => x >= b.x && x < b.x + b.width && y >= b.y && y < b.y + rowHeight,
    );
    return hit ? hit.node : null;
  }

  text(node) {
    return [
      `${bytes(node.bytes)} (${percent(node.bytes, this.root.bytes)})`,
      node.name,
      node.file || "",
    ].filter(Boolean);
  }

  /** Down into the largest, up, left and right among neighbours. */
  key(e) {
    const node = this.top;
    const among = node.parent
      ? [...node.parent.children.values()].sort((a, b) => b.bytes - a.bytes)
      : [node];
    const below = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
    const to = {
      ArrowDown: below[0],
      ArrowUp: node.parent,
      ArrowLeft: among[among.indexOf(node) - 1],
      ArrowRight: among[among.indexOf(node) + 1],
      Escape: this.root,
    }[e.key];
    if (!to) return;
    e.preventDefault();
    this.zoom(to);
  }
}

function add(node, size, kind) {
  node.bytes += size;
  node.kinds.set(kind, (node.kinds.get(kind) || 0) + size);
}

function kindOf(device, node) {
  let best = [0, -1];
  for (const [kind, size] of node.kinds) if (size > best[1]) best = [kind, size];
  return device.names[best[0]] || "unknown";
}

function pathOf(node) {
  const path = [];
  for (let n = node; n.parent; n = n.parent) path.unshift(n.name);
  return path;
}
