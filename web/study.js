// A study: trials over time, the memory they reserved, how the best value came down, and which
// settings gave it. The data is what trial.Picture holds; where it comes from is the caller's
// business, so that a file shows the same.

import { bytes, clock, count, el, percent, span } from "memroom/format.js";

const left = 76; // pixels for the scale
const right = 12;
const inks = {
  finished: "#3f9f6b",
  running: "#3b6fb6",
  oom: "#c9423a",
  failed: "#7a4fa3",
  stopped: "#7d8a97",
  infeasible: "#d9822b",
  waiting: "#b9c4cf",
};
const words = {
  finished: "finished",
  running: "runs",
  oom: "ran out of memory",
  failed: "failed",
  stopped: "stopped early",
  infeasible: "does not fit",
  waiting: "waits",
};
const mostRows = 200;

export class StudyView {
  /** link(run) gives the address of a run's page, or undefined. */
  constructor(root, link) {
    this.root = root;
    this.link = link;
    this.chosen = null;
    this.order = "value";
    this.stop = new AbortController();
    this.banner = el("section", { class: "banner", role: "status", "aria-live": "polite" });
    this.figures = el("div", { class: "figures" });
    this.time = picture(
      "study-time",
      "Attempts over time, one bar each, and the host memory they reserved. Arrow keys choose a trial.",
    );
    this.axes = picture(
      "study-axes",
      "Settings of each trial and its value, one line each. Arrow keys choose a trial.",
    );
    this.detail = el(
      "div",
      { class: "soft", role: "status", "aria-live": "polite" },
      "Click a bar or a line, or use the arrow keys, to choose a trial.",
    );
    this.table = el("table", { class: "trials" });
    this.search = el("input", {
      type: "search",
      "aria-label": "Filter trials",
      placeholder: "state, setting",
      oninput: () => this.drawTable(),
    });
    this.more = el("p", { class: "soft" });
    root.append(
      this.banner,
      this.figures,
      section("Trials over time", legend(), this.time),
      section("Settings and values", this.axes),
      this.detail,
      section(
        "Trials",
        el("div", { class: "bar" }, this.search),
        el("div", { class: "scroll", tabindex: "0" }, this.table),
        this.more,
      ),
    );
    const redraw = () => this.draw();
    window.addEventListener("resize", redraw, { signal: this.stop.signal });
    for (const canvas of [this.time, this.axes]) {
      canvas.addEventListener("keydown", (e) => this.key(e));
      canvas.addEventListener("click", (e) => this.click(canvas, e.offsetX, e.offsetY));
    }
  }

  close() {
    this.stop.abort();
  }

  /** Shows a study, or a newer state of the same. */
  show(data) {
    this.data = data;
    this.byID = new Map(data.trials.map((t) => [t.id, t]));
    this.ranked = ranked(data);
    this.drawHead();
    this.draw();
    this.drawTable();
    if (this.chosen !== null) this.choose(this.chosen);
  }

  drawHead() {
    const d = this.data;
    const over = ["finished", "failed", "infeasible", "stopped"].reduce(
      (sum, s) => sum + (d.states[s] || 0),
      0,
    );
    const best = d.best === null ? null : this.byID.get(d.best);
    const state = d.working
      ? "Runs: "
      : over >= d.wanted
        ? ""
        : "Stands still, memroom tune resume goes on: ";
    this.banner.className = `banner ${best ? "good" : "plain"}`;
    this.banner.replaceChildren(
      el(
        "p",
        { class: "headline" },
        best
          ? `Best ${d.metric}: ${number(best.value)} in trial ${best.id}`
          : `No value of ${d.metric} yet`,
      ),
      el(
        "div",
        { class: "soft" },
        best ? `${settings(d, best)}. ` : "",
        `${state}${count(over)} of ${count(d.wanted)} trials are over.`,
      ),
    );
    const figure = (name, value, note) =>
      el(
        "div",
        { class: "figure" },
        el("span", {}, name),
        el("b", {}, value),
        el("small", {}, note),
      );
    const most = d.held.reduce((a, h) => Math.max(a, h.host_bytes), 0);
    const peaks = d.trials.reduce((a, t) => Math.max(a, t.peak_host_bytes), 0);
    this.figures.replaceChildren(
      figure(
        "trials over",
        `${count(over)} of ${count(d.wanted)}`,
        `${count(d.states.running || 0)} run now, ${count(d.states.stopped || 0)} stopped early`,
      ),
      figure(
        "ran out of memory",
        `${count(d.ooms)} of ${count(d.attempts)}`,
        `attempts; ${count(d.states.infeasible || 0)} trials do not fit`,
      ),
      figure(
        "reserved at most",
        bytes(most),
        d.host_bytes
          ? `${percent(most, d.host_bytes)} of the ${bytes(d.host_bytes)} given`
          : "of host memory, at once",
      ),
      figure("largest trial", bytes(peaks), "of host memory, at its peak"),
      figure("took", span(d.seconds), `search: ${d.search || "own"}`),
    );
  }

  draw() {
    if (!this.data) return;
    this.drawTime();
    this.drawAxes();
  }

  drawTime() {
    const d = this.data;
    const bars = d.trials.flatMap((t) =>
      t.attempts.map((a, i) => ({ ...a, trial: t, last: i === t.attempts.length - 1 })),
    );
    const lanes = bars.reduce((n, b) => Math.max(n, b.lane + 1), 1);
    const row = Math.max(4, Math.min(16, Math.floor(220 / lanes)));
    const foot = 20;
    const memory = { top: 4, height: 90 };
    const top = memory.top + memory.height + 16;
    this.time.style.height = `${top + lanes * row + foot}px`;
    const g = prepare(this.time);
    if (!g) return;
    const width = this.time.clientWidth - left - right;
    const end = Math.max(1e-9, d.seconds);
    const x = (s) => left + (s / end) * width;
    const most = Math.max(1, d.host_bytes || 0, ...d.held.map((h) => h.host_bytes));
    const y = (v) => memory.top + memory.height - (v / (most * 1.05)) * memory.height;
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      g.globalAlpha = 0.15;
      g.fillRect(left, y(most * share), width, 1);
      g.globalAlpha = 1;
      g.fillText(
        bytes(Math.round(most * share)),
        left - 5,
        Math.max(memory.top + 5, y(most * share)),
      );
    }
    g.beginPath();
    g.moveTo(left, y(0));
    let held = 0;
    for (const h of d.held) {
      g.lineTo(x(h.at), y(held));
      g.lineTo(x(h.at), y(h.host_bytes));
      held = h.host_bytes;
    }
    g.lineTo(x(end), y(held));
    g.strokeStyle = inks.running;
    g.lineWidth = 1.4;
    g.stroke();
    g.lineTo(x(end), y(0));
    g.closePath();
    g.globalAlpha = 0.2;
    g.fillStyle = inks.running;
    g.fill();
    g.globalAlpha = 1;
    g.fillStyle = this.ink(g);
    g.textAlign = "left";
    g.font = "600 11px system-ui, sans-serif";
    g.fillText("reserved host memory", left + 4, memory.top + 8);
    g.fillText(`attempts (${count(bars.length)})`, left + 4, top - 8);
    g.font = "11px system-ui, sans-serif";
    this.hits = [];
    for (const b of bars) {
      const [x0, y0] = [x(b.from), top + b.lane * row];
      const w = Math.max(2, x(b.to) - x0 - 0.5);
      g.fillStyle = inks[kindOf(b)];
      g.fillRect(x0, y0, w, row - 1);
      if (b.trial.id === this.chosen) {
        g.strokeStyle = this.ink(g);
        g.lineWidth = 2;
        g.strokeRect(x0, y0, w, row - 1);
      }
      this.hits.push([x0, y0, w, row, b.trial.id]);
    }
    g.fillStyle = this.ink(g);
    g.textAlign = "center";
    const step = end / Math.max(2, Math.floor(width / 120));
    for (let t = 0; t < end * 0.98; t += step)
      g.fillText(
        end < 10 ? `${t.toFixed(1)} s` : clock(t),
        Math.max(left + 14, x(t)),
        top + lanes * row + 10,
      );
  }

  drawAxes() {
    const d = this.data;
    this.axes.style.height = "260px";
    const g = prepare(this.axes);
    if (!g) return;
    const lines = d.axes.length + 1;
    const width = this.axes.clientWidth - left - right - 60;
    const x = (i) => left + (lines > 1 ? (i / (lines - 1)) * width : 0);
    const [top, bottom] = [34, 236];
    const values = d.trials.filter((t) => t.value !== null).map((t) => t.value);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const place = (v) => (high > low ? (v - low) / (high - low) : 0.5);
    const ink = this.ink(g);
    g.textAlign = "center";
    g.textBaseline = "middle";
    const name = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
    const text = (words, i, at) => {
      g.fillStyle = ink;
      g.fillText(words, x(i), at);
    };
    d.axes.forEach((a, i) => {
      g.fillStyle = ink;
      g.globalAlpha = 0.3;
      g.fillRect(x(i) - 0.5, top, 1, bottom - top);
      g.globalAlpha = 1;
      g.font = "600 11px system-ui, sans-serif";
      text(name(a.name), i, 8);
      g.font = "11px system-ui, sans-serif";
      if (a.choices && a.choices.length > 0) {
        a.choices
          .slice(0, 12)
          .forEach((c, n) =>
            text(
              name(c),
              i,
              bottom -
                (a.choices.length > 1 ? n / (a.choices.length - 1) : 0.5) * (bottom - top) -
                7,
            ),
          );
      } else {
        text(number(a.high), i, 22);
        text(number(a.low), i, bottom + 12);
      }
    });
    const last = lines - 1;
    g.fillStyle = ink;
    g.globalAlpha = 0.3;
    g.fillRect(x(last) - 0.5, top, 1, bottom - top);
    g.globalAlpha = 1;
    g.font = "600 11px system-ui, sans-serif";
    text(name(d.metric), last, 8);
    g.font = "11px system-ui, sans-serif";
    if (values.length > 0) {
      text(number(high), last, 22);
      text(number(low), last, bottom + 12);
    }
    this.paths = [];
    const better = (t) =>
      t.value === null ? -1 : d.mode === "max" ? place(t.value) : 1 - place(t.value);
    for (const t of [...d.trials].sort(
      (a, b) => (a.id === this.chosen) - (b.id === this.chosen) || better(a) - better(b),
    )) {
      const points = t.at.map((p, i) => [x(i), p === null ? null : bottom - p * (bottom - top)]);
      points.push([x(last), t.value === null ? null : bottom - place(t.value) * (bottom - top)]);
      const shown = points.filter((p) => p[1] !== null);
      if (shown.length === 0) continue;
      g.beginPath();
      shown.forEach(([px, py], i) => (i === 0 ? g.moveTo(px, py) : g.lineTo(px, py)));
      const best = t.id === d.best;
      g.strokeStyle =
        t.id === this.chosen
          ? ink
          : best
            ? inks.finished
            : t.value === null
              ? inks[t.state] || inks.waiting
              : inks.running;
      g.globalAlpha = t.id === this.chosen || best ? 1 : 0.12 + 0.5 * Math.max(0, better(t));
      g.lineWidth = t.id === this.chosen || best ? 2.5 : 1.2;
      g.stroke();
      g.globalAlpha = 1;
      this.paths.push([shown, t.id]);
    }
  }

  ink(g) {
    return getComputedStyle(g.canvas).color;
  }

  drawTable() {
    const d = this.data;
    if (!d) return;
    const wanted = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = this.ranked.filter((t) =>
      wanted.every((w) =>
        `${t.id} ${t.state} ${t.why || ""} ${settings(d, t)}`.toLowerCase().includes(w),
      ),
    );
    const head = el(
      "tr",
      {},
      el("th", { class: "num" }, "trial"),
      el("th", {}, "state"),
      el("th", { class: "num" }, d.metric),
      ...d.axes.map((a) => el("th", {}, a.name)),
      el("th", { class: "num" }, "attempts"),
      el("th", { class: "num" }, "peak"),
      el("th", { class: "num" }, "reserved"),
      el("th", {}, "run"),
    );
    this.table.replaceChildren(
      el("thead", {}, head),
      el("tbody", {}, ...rows.slice(0, mostRows).map((t) => this.row(t))),
    );
    this.more.textContent =
      rows.length > mostRows
        ? `${count(rows.length - mostRows)} more: the filter finds them.`
        : rows.length === 0
          ? "No trial to show."
          : "";
  }

  row(t) {
    const last = t.attempts[t.attempts.length - 1];
    const address = last && this.link(last.run);
    const button = el(
      "button",
      {
        type: "button",
        class: "link",
        "aria-label": `Choose trial ${t.id}`,
        onclick: () => this.choose(t.id),
      },
      String(t.id),
    );
    return el(
      "tr",
      { class: t.id === this.data.best ? "best" : "" },
      el("td", { class: "num" }, button),
      el("td", {}, t.state, t.why ? el("div", { class: "soft small" }, t.why) : ""),
      el("td", { class: "num" }, t.value === null ? "-" : number(t.value)),
      ...t.params.map((p) => el("td", {}, setting(p))),
      el("td", { class: "num" }, count(t.attempts.length)),
      el("td", { class: "num" }, t.peak_host_bytes ? bytes(t.peak_host_bytes) : "-"),
      el("td", { class: "num" }, last ? bytes(last.reserved_bytes) : "-"),
      el("td", {}, address ? el("a", { href: address }, last.run) : last ? last.run : "-"),
    );
  }

  /** Chooses a trial: marked in both pictures, and told in words. */
  choose(id) {
    const t = this.byID.get(id);
    if (!t) return;
    this.chosen = id;
    const tries = t.attempts.map(
      (a, i) =>
        `attempt ${i + 1} ${a.how} after ${span(a.to - a.from)} with ${bytes(a.reserved_bytes)} reserved${a.peak_bytes ? `, ${bytes(a.peak_bytes)} used` : ""}${a.fit ? ", with the remedies of --fit" : ""}`,
    );
    this.detail.textContent = `Trial ${id}, ${t.state}${t.value === null ? "" : `, ${this.data.metric} ${number(t.value)}`}: ${settings(this.data, t)}. ${tries.join("; ")}.${t.why ? ` ${t.why}.` : ""}`;
    this.draw();
  }

  key(e) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (!step || !this.data || this.data.trials.length === 0 || e.ctrlKey || e.metaKey || e.altKey)
      return;
    e.preventDefault();
    const list = this.data.trials;
    const at = list.findIndex((t) => t.id === this.chosen);
    this.choose(list[Math.max(0, Math.min(list.length - 1, at < 0 ? 0 : at + step))].id);
  }

  click(canvas, x, y) {
    if (canvas === this.time) {
      const hit = (this.hits || []).find(
        ([x0, y0, w, h]) => x >= x0 - 2 && x <= x0 + w + 2 && y >= y0 && y <= y0 + h,
      );
      if (hit) this.choose(hit[4]);
      return;
    }
    let [best, id] = [12, null];
    for (const [points, trial] of this.paths || []) {
      for (let i = 0; i + 1 < points.length; i++) {
        const [[ax, ay], [bx, by]] = [points[i], points[i + 1]];
        if (x < ax || x > bx || bx === ax) continue;
        const far = Math.abs(y - (ay + ((x - ax) / (bx - ax)) * (by - ay)));
        if (far < best) [best, id] = [far, trial];
      }
    }
    if (id !== null) this.choose(id);
  }
}

function kindOf(bar) {
  if (bar.going) return "running";
  if (bar.oom) return "oom";
  return bar.last ? bar.trial.state : "stopped";
}

/** Finished ones by value, then the rest by number. */
function ranked(d) {
  const sign = d.mode === "max" ? -1 : 1;
  const rank = (t) => (t.state === "running" ? 0 : t.value === null ? 2 : 1);
  return [...d.trials].sort(
    (a, b) => rank(a) - rank(b) || (rank(a) === 1 ? sign * (a.value - b.value) : a.id - b.id),
  );
}

function settings(d, t) {
  return d.axes.map((a, i) => `${a.name}=${setting(t.params[i])}`).join(", ");
}

function number(v) {
  return Number.isInteger(v) && Math.abs(v) < 1e9 ? String(v) : String(Number(v.toPrecision(5)));
}

/** A setting as the terminal writes it: numbers of many digits are shortened. */
function setting(text) {
  return /^-?\d*\.\d{6,}(e-?\d+)?$/.test(text) ? number(Number(text)) : text;
}

function picture(id, label) {
  return el("canvas", { id, tabindex: "0", role: "img", "aria-label": label });
}

function section(title, ...children) {
  return el("section", {}, el("h2", {}, title), ...children);
}

function legend() {
  const bar = el("div", { class: "bar" });
  for (const [kind, text] of Object.entries(words)) {
    if (kind === "waiting") continue;
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = inks[kind];
    bar.append(el("span", {}, swatch, text));
  }
  return bar;
}

/** A canvas of the right size, cleared; undefined where it is not seen. */
function prepare(canvas) {
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  if (w === 0) return undefined;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(w * ratio)) canvas.width = Math.round(w * ratio);
  if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, w, h);
  g.fillStyle = getComputedStyle(canvas).color;
  g.font = "11px system-ui, sans-serif";
  return g;
}
