// The course of a run: lanes of memory over one axis of time, drawn on one canvas.
//
// A piece of data reaches further than what is seen, so that moving needs no request; the server
// gives as many points as there are pixels, each with the highest and lowest value since the one
// before.

import { asSet, bytes, clock, count } from "memroom/format.js";

const left = 76; // pixels for the scale
const right = 10;
const strip = 16; // pixels above the lanes for phases and marks
const foot = 20; // and below for the time

export const inks = {
  used: "#3b6fb6",
  reserved: "#d9822b",
  allocated: "#3f9f6b",
  resident: "#7d8a97",
  cgroup: "#7a4fa3",
  count: "#7d8a97",
  time: "#45b5c4",
  reported: "#7a4fa3",
};

export class Course {
  /** on: {cursor(ms), view(from, to)}; load(from, to, points) gives {samples, steps}. */
  constructor(canvas, load, on) {
    this.canvas = canvas;
    this.load = load;
    this.on = on;
    this.marks = [];
    this.follow = true;
    this.cursor = null;
    this.frames = 0;
    this.listen();
  }

  /** Shows everything there is. */
  async open() {
    this.from = 0;
    this.to = 1;
    await this.fetch(0, 2 ** 50);
    this.reset();
  }

  get end() {
    return Math.max(
      1000,
      this.data.samples.to || 0,
      this.data.steps.to || 0,
      this.beside ? this.beside.end : 0,
    );
  }

  reset() {
    this.from = 0;
    this.to = this.end;
    this.follow = true;
    this.changed();
  }

  zoom(factor, around) {
    const width = Math.min(this.end, Math.max(2000, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.move(around - share * width, width);
  }

  move(from, width) {
    this.from = Math.max(0, Math.min(from, this.end - width));
    this.to = this.from + width;
    this.follow = this.to >= this.end - 1;
    this.changed();
  }

  setCursor(ms) {
    this.cursor = Math.max(0, Math.min(this.end, Math.round(ms)));
    this.request();
    this.on.cursor(this.cursor);
  }

  changed() {
    this.request();
    this.on.view(this.from, this.to);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refine(), 90);
  }

  /** Draws once before the next picture, however often it is asked. */
  request() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  /** Asks for finer or further data where what is there does not do. */
  async refine() {
    const span = this.to - this.from;
    const d = this.data;
    const seen = d.samples.at.filter((t) => t >= this.from && t <= this.to).length;
    const inside = this.from >= d.from && Math.min(this.to, this.end) <= d.to;
    if (inside && (d.samples.exact || seen >= this.width * 0.6)) return;
    if (inside && d.finest === true) return;
    await this.fetch(Math.max(0, this.from - span), this.to + span);
    this.request();
  }

  get width() {
    return Math.max(50, this.canvas.clientWidth - left - right);
  }

  async fetch(from, to) {
    const turn = (this.turn = (this.turn || 0) + 1);
    const whole = to >= 2 ** 50;
    const points = Math.min(6000, Math.round(this.width * (whole ? 1 : 3)));
    let data;
    try {
      data = await this.load(Math.round(from), whole ? undefined : Math.round(to), points);
    } catch (problem) {
      if (this.data) return; // the picture stays as it was
      throw problem;
    }
    if (turn !== this.turn) return; // a newer question is on its way
    this.data = data;
    clearTimeout(this.sketched);
    if (data.samples.sketch || data.steps.sketch)
      this.sketched = setTimeout(
        () =>
          this.fetch(from, to).then(() => {
            this.request();
            this.on.view(this.from, this.to);
          }),
        1000,
      );
    data.from = whole ? 0 : from;
    data.to = whole ? Math.max(data.samples.to, data.steps.to) : to;
    this.plan();
  }

  /**
   * Adds readings that came live; true where the picture should be asked for anew because it has
   * grown too fine.
   */
  append(samples, steps) {
    const d = this.data;
    if (!d) return false;
    const add = (piece, row, at) => {
      if (piece.at.length > 0 && at < piece.at[piece.at.length - 1]) return;
      piece.at.push(at);
      piece.to = at;
      piece.count++;
      for (const [name, value] of Object.entries(row)) {
        piece.columns[name] ||= { high: [] };
        const c = piece.columns[name];
        while (c.high.length < piece.at.length - 1) c.high.push(null);
        c.high.push(value);
        if (c.low) {
          while (c.low.length < piece.at.length - 1) c.low.push(null);
          c.low.push(value);
        }
      }
    };
    const before = this.end;
    const connected = d.to >= before - 1;
    for (const s of samples) add(d.samples, sampleRow(s), s.at_ms);
    for (const s of steps) add(d.steps, stepRow(s), s.at_ms);
    if (connected) d.to = this.end;
    if (this.follow) {
      const width = this.from === 0 && this.to >= before - 1 ? this.end : this.to - this.from;
      this.from = Math.max(0, this.end - width);
      this.to = this.end;
    }
    this.plan();
    this.request();
    return d.samples.at.length > 3 * this.width + 2000;
  }

  /** Numbers of the program itself: {at, columns: {name: values}}. */
  showReports(reports) {
    this.reports = reports;
    if (!this.data) return;
    this.plan();
    this.request();
  }

  /** Decides which lanes there are. */
  plan() {
    const c = this.data.samples.columns;
    const steps = this.data.steps.columns;
    const lanes = [];
    const cards = Object.keys(c)
      .filter((n) => /^gpu\d+\.used$/.test(n))
      .map((n) => n.split(".")[0]);
    for (const card of cards) {
      const lines = [
        { name: "used", column: c[`${card}.used`], piece: "samples", ink: inks.used, fill: true },
      ];
      const of = (kind) =>
        Object.keys(steps).filter(
          (n) =>
            n.endsWith(`/${card}.${kind}`) ||
            (cards.length === 1 && n.endsWith(`.${kind}`) && n.includes("/gpu")),
        );
      for (const kind of ["reserved", "allocated"]) {
        for (const n of of(kind).slice(0, 4))
          lines.push({ name: kind, column: steps[n], piece: "steps", ink: inks[kind] });
      }
      lanes.push({
        title: card.replace("gpu", "card "),
        lines,
        limit: c[`${card}.total`],
        unit: "bytes",
        height: cards.length > 2 ? 70 : 130,
      });
    }
    if (c.host) {
      const lines = [
        { name: "host", column: this.toItsEnd(c), piece: "samples", ink: inks.used, fill: true },
      ];
      if (c.resident)
        lines.push({ name: "resident", column: c.resident, piece: "samples", ink: inks.resident });
      if (c.cgroup)
        lines.push({ name: "cgroup", column: c.cgroup, piece: "samples", ink: inks.cgroup });
      lanes.push({
        title: "host",
        lines,
        limit: c.cgroup_limit || c.machine,
        hard: this.hostLimit,
        unit: "bytes",
        height: 150,
      });
    }
    if (c.shm && c.shm_total && highest(c.shm.high) >= highest(c.shm_total.high) / 100) {
      // less is others' on the machine, and fills nothing
      lanes.push({
        title: "shared",
        lines: [
          { name: "shared memory", column: c.shm, piece: "samples", ink: inks.used, fill: true },
        ],
        limit: c.shm_total,
        unit: "bytes",
        height: 64,
      });
    }
    if (c.processes) {
      lanes.push({
        title: "processes",
        lines: [
          { name: "processes and workers", column: c.processes, piece: "samples", ink: inks.count },
        ],
        unit: "count",
        height: 48,
      });
    }
    const times = Object.keys(steps).filter((n) => n.endsWith(".duration_ns"));
    if (times.length > 0) {
      lanes.push({
        title: "step time",
        lines: times.slice(0, 8).map((n) => ({
          name: n.split(".")[0],
          column: steps[n],
          piece: "steps",
          ink: inks.time,
        })),
        unit: "ns",
        height: 56,
      });
    }
    const { columns: told = {}, at } = this.reports || {};
    this.data.reports = { at };
    // losses first: where many numbers are reported they are what one looks for
    const byLoss = (a, b) => /loss/i.test(b) - /loss/i.test(a) || a.localeCompare(b);
    for (const name of Object.keys(told).sort(byLoss).slice(0, 4)) {
      lanes.push({
        title: name,
        lines: [{ name, column: { high: told[name] }, piece: "reports", ink: inks.reported }],
        unit: "number",
        height: 56,
      });
    }
    this.lanes = lanes;
    const tall = lanes.reduce((sum, l) => sum + l.height + 10, strip + foot);
    if (this.tall !== tall) {
      this.tall = tall;
      this.canvas.style.height = `${tall}px`;
    }
  }

  /** The host's column; at the last reading of a run that ran out, what it held when it ended. */
  toItsEnd({ host, processes }) {
    const { at } = this.data.samples;
    const last = processes ? processes.high.findLastIndex((n) => n > 0) : -1;
    const ends = last >= 0 && (last < at.length - 1 || at[last] >= this.end - 2000);
    if (!ends || !(this.hostPeak > host.high[last])) return host;
    return { ...host, high: host.high.with(last, this.hostPeak) };
  }

  toX(ms) {
    return left + ((ms - this.from) / (this.to - this.from)) * this.width;
  }

  toMS(x) {
    return this.from + ((x - left) / this.width) * (this.to - this.from);
  }

  draw() {
    if (!this.data || this.canvas.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [
      Math.round(this.canvas.clientWidth * ratio),
      Math.round(this.canvas.clientHeight * ratio),
    ];
    if (this.canvas.width !== w || this.canvas.height !== h)
      [this.canvas.width, this.canvas.height] = [w, h];
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    const style = getComputedStyle(this.canvas);
    this.ink = style.color;
    this.warn = style.getPropertyValue("--warn") || "#c9423a";
    g.font = "11px system-ui, sans-serif";
    let top = strip;
    for (const lane of this.lanes) {
      this.drawLane(g, lane, top);
      top += lane.height + 10;
    }
    this.drawTime(g, top);
    this.drawMarks(g, top);
    this.frames++;
  }

  /** The indexes of a piece that are seen, with one neighbour on each side. */
  range(at) {
    let low = search(at, this.from) - 1;
    let high = search(at, this.to) + 1;
    return [Math.max(0, low), Math.min(at.length, high)];
  }

  drawLane(g, lane, top) {
    const bottom = top + lane.height;
    let least = 0; // a reported number may be negative
    let most = this.beside ? this.beside.most.get(lane.title) || 0 : 0;
    for (const line of lane.lines) {
      const [a, b] = this.range(this.data[line.piece].at);
      for (let i = a; i < b; i++) {
        most = Math.max(most, line.column.high[i] || 0);
        least = Math.min(least, line.column.high[i] || 0);
      }
    }
    let limit = lane.hard || 0;
    if (lane.limit) {
      const known = lowestPositive(lane.limit.high);
      if (known > 0 && (limit === 0 || known < limit)) limit = known;
    }
    // a limit far above is not drawn: it would press everything to the ground
    let scale =
      limit > 0 && limit < most * 4 ? Math.max(limit, most) * 1.04 : Math.max(1, most) * 1.12;
    // whole numbers at the half and at the top
    if (lane.unit === "count") scale = 2 * Math.ceil((most + 1) / 2);
    if (lane.unit === "number") scale = 1.12 * (most - least) || 1;
    g.fillStyle = this.ink;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (let i = 0; i <= 2; i++) {
      const y = bottom - (i / 2) * lane.height;
      g.globalAlpha = 0.15;
      g.fillRect(left, y - 0.5, this.width, 1);
      g.globalAlpha = 1;
      if (i > 0 || lane.height > 60)
        g.fillText(
          amount(least + (scale * i) / 2, lane.unit),
          left - 5,
          Math.min(bottom - 5, Math.max(top + 5, y)),
        );
    }
    g.save();
    g.beginPath();
    g.rect(left, top, this.width, lane.height);
    g.clip();
    for (const line of lane.lines) this.drawLine(g, line, top, bottom, scale, least);
    if (limit > 0 && limit <= scale) {
      const y = bottom - (limit / scale) * lane.height;
      g.strokeStyle = this.warn;
      g.lineWidth = 1.5;
      g.setLineDash([6, 4]);
      g.beginPath();
      g.moveTo(left, y);
      g.lineTo(left + this.width, y);
      g.stroke();
      g.setLineDash([]);
    }
    g.restore();
    g.textAlign = "left";
    g.textBaseline = "top";
    g.fillStyle = this.ink;
    g.font = "600 11px system-ui, sans-serif";
    const beyond =
      limit > 0
        ? `, limit ${lane.unit === "bytes" ? asSet(limit) : amount(limit, lane.unit)}`
        : "";
    g.fillText(`${lane.title}${beyond}`, left + 4, top + 2);
    g.font = "11px system-ui, sans-serif";
  }

  drawLine(g, line, top, bottom, scale, least) {
    const { at } = this.data[line.piece];
    const { high, low } = line.column;
    const [a, b] = this.range(at);
    const height = bottom - top;
    const y = (v) => bottom - ((v - least) / scale) * height;
    g.strokeStyle = line.ink;
    g.lineWidth = 1.4;
    g.beginPath();
    let pen = false;
    let first = 0;
    let last = 0;
    for (let i = a; i < b; i++) {
      const v = high[i];
      if (v === null || v === undefined) continue;
      const x = this.toX(at[i]);
      if (!pen) {
        g.moveTo(x, y(v));
        first = x;
        pen = true;
      } else g.lineTo(x, y(v));
      if (low && low[i] !== null && low[i] < v && !line.fill) {
        g.lineTo(x, y(low[i]));
        g.lineTo(x, y(v));
      }
      last = x;
    }
    g.stroke();
    if (line.fill && pen) {
      g.lineTo(last, bottom);
      g.lineTo(first, bottom);
      g.closePath();
      g.globalAlpha = 0.22;
      g.fillStyle = line.ink;
      g.fill();
      g.globalAlpha = 1;
    }
  }

  drawTime(g, top) {
    g.fillStyle = this.ink;
    g.textAlign = "center";
    g.textBaseline = "top";
    const step = niceStep((this.to - this.from) / Math.max(2, this.width / 110));
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      const x = this.toX(t);
      g.globalAlpha = 0.1;
      g.fillRect(x, strip, 1, top - strip - 10);
      g.globalAlpha = 1;
      if (x < left + this.width - 12)
        g.fillText(step < 1000 ? `${(t / 1000).toFixed(1)} s` : clock(t / 1000), x, top - 4);
    }
  }

  /** Phases as bands on top; findings, actions and failures as lines; the cursor. */
  drawMarks(g, top) {
    for (const m of this.marks) {
      if (m.until !== undefined) {
        const [x0, x1] = [
          Math.max(left, this.toX(m.at)),
          Math.min(left + this.width, this.toX(m.until)),
        ];
        if (x1 <= x0) continue;
        g.fillStyle = phaseInk(m.kind);
        g.globalAlpha = 0.75;
        g.fillRect(x0, 2, Math.max(1, x1 - x0), 10);
        g.globalAlpha = 1;
        continue;
      }
      const x = this.toX(m.at);
      if (x < left - 1 || x > left + this.width + 1) continue;
      g.fillStyle = m.bad ? this.warn : m.ink || this.ink;
      g.globalAlpha = m.bad ? 0.9 : 0.45;
      g.fillRect(x - 0.75, strip - 2, 1.5, top - strip - 8);
      g.globalAlpha = 1;
      g.beginPath();
      g.moveTo(x - 5, 2);
      g.lineTo(x + 5, 2);
      g.lineTo(x, 12);
      g.closePath();
      g.fill();
    }
    if (this.cursor !== null) {
      g.fillStyle = this.ink;
      g.fillRect(this.toX(this.cursor) - 0.5, 0, 1, top - 8);
    }
  }

  /** Takes the scales of another course too, so that the two can be compared by eye. */
  standBeside(other) {
    const most = new Map();
    for (const lane of other.lanes)
      most.set(lane.title, Math.max(0, ...lane.lines.map((l) => highest(l.column.high))));
    this.beside = { end: Math.max(other.data.samples.to || 0, other.data.steps.to || 0), most };
    this.reset();
  }

  /** The moment at which the most of a limit was used. */
  peak() {
    let best = { share: -1, at: 0 };
    for (const lane of this.lanes || []) {
      if (lane.unit !== "bytes") continue;
      const line = lane.lines[0];
      const { at } = this.data[line.piece];
      const limit =
        lane.hard ||
        (lane.limit ? lowestPositive(lane.limit.high) : 0) ||
        highest(line.column.high);
      line.column.high.forEach((v, i) => {
        if (v !== null && v / limit > best.share) best = { share: v / limit, at: at[i] };
      });
    }
    return best.at;
  }

  listen() {
    const c = this.canvas;
    let held = null;
    c.addEventListener(
      "wheel",
      (e) => {
        if (!this.data) return;
        e.preventDefault();
        const width = this.to - this.from;
        if (Math.abs(e.deltaX) > Math.abs(e.deltaY))
          this.move(this.from + (e.deltaX / this.width) * width, width);
        else this.zoom(Math.exp(e.deltaY * 0.002), this.toMS(e.offsetX));
      },
      { passive: false },
    );
    c.addEventListener("pointerdown", (e) => {
      held = { x: e.offsetX, from: this.from, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (!held || !this.data) return;
      const dx = e.offsetX - held.x;
      held.moved ||= Math.abs(dx) > 4;
      const width = this.to - this.from;
      if (held.moved) this.move(held.from - (dx / this.width) * width, width);
    });
    c.addEventListener("pointerup", (e) => {
      if (held && !held.moved && this.data) this.setCursor(this.toMS(e.offsetX));
      held = null;
    });
    c.addEventListener("pointercancel", () => {
      held = null;
    });
    c.addEventListener("dblclick", () => this.data && this.reset());
    c.addEventListener("keydown", (e) => this.key(e));
  }

  key(e) {
    if (!this.data || e.ctrlKey || e.metaKey || e.altKey) return;
    const width = this.to - this.from;
    const at = this.cursor === null ? this.to : this.cursor;
    const stepped = (direction) => {
      const to = Math.max(
        0,
        Math.min(this.end, at + direction * (width / (e.shiftKey ? 10 : 100))),
      );
      if (to < this.from || to > this.to) this.move(to - width / 2, width);
      this.setCursor(to);
    };
    const actions = {
      ArrowLeft: () => stepped(-1),
      ArrowRight: () => stepped(1),
      Home: () => this.setCursor(0),
      End: () => this.setCursor(this.end),
      "+": () => this.zoom(0.5, at),
      "=": () => this.zoom(0.5, at),
      "-": () => this.zoom(2, at),
      0: () => this.reset(),
    };
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  }
}

/** A reading as the server's columns, see store/extract.go. */
export function sampleRow(s) {
  const row = {
    host: s.held || (s.anon || 0) + (s.shmem || 0),
    resident: s.rss,
    processes: s.procs,
  };
  if (s.cgroup) {
    row.cgroup = s.cgroup.current;
    if (s.cgroup.limit) row.cgroup_limit = s.cgroup.limit;
  }
  if (s.machine)
    Object.assign(row, {
      machine: s.machine.total,
      shm: s.machine.shm_used || 0,
      shm_total: s.machine.shm_total || 0,
    });
  (s.gpus || []).forEach((d, i) =>
    Object.assign(row, {
      [`gpu${i}.used`]: d.used,
      [`gpu${i}.total`]: d.total,
      [`gpu${i}.util`]: d.util || 0,
    }),
  );
  return row;
}

export function stepRow(s) {
  const who =
    (s.rank === undefined || s.rank === null ? `pid${s.pid}` : `rank${s.rank}`) +
    (s.device >= 0 ? `/gpu${s.device}` : "");
  return {
    [`${who}.step`]: s.step,
    [`${who}.allocated`]: s.allocated,
    [`${who}.reserved`]: s.reserved,
    [`${who}.duration_ns`]: s.duration_ns,
  };
}

function amount(v, unit) {
  if (unit === "bytes") return bytes(Math.round(v));
  if (unit === "ns")
    return v >= 1e9 ? `${(v / 1e9).toFixed(2)} s` : `${(v / 1e6).toFixed(v < 1e7 ? 1 : 0)} ms`;
  return unit === "number" ? Number(v.toPrecision(3)).toString() : count(Math.round(v));
}

function highest(list) {
  let most = 0;
  for (const v of list) if (v > most) most = v;
  return most;
}

function lowestPositive(list) {
  let least = Infinity;
  for (const v of list) if (v > 0 && v < least) least = v;
  return least === Infinity ? 0 : least;
}

/** The first index whose value is at least x. */
function search(sorted, x) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const mid = (low + high) >> 1;
    if (sorted[mid] < x) low = mid + 1;
    else high = mid;
  }
  return low;
}

function niceStep(ms) {
  for (const s of [
    100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 900000,
    1800000, 3600000, 7200000, 14400000, 21600000, 43200000,
  ]) {
    if (s >= ms) return s;
  }
  return Math.ceil(ms / 86400000) * 86400000;
}

/** The colour of a phase's band. */
export function phaseInk(kind) {
  return { eval: "#7a4fa3", save: "#d9822b", load: "#7d8a97" }[kind] || "#45b5c4";
}
