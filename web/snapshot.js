// The page of one snapshot: figures, timeline, segment map and tables, tied together by one chosen
// moment.

import { bytes, count, el, frameText, percent, seconds } from "memroom/format.js";
import { Device } from "memroom/model.js";
import { Timeline } from "memroom/timeline.js";
import { SegmentMap } from "memroom/segmentmap.js";
import { Flame } from "memroom/flame.js";
import { groupTable, legend, plainTable, tellingFrames } from "memroom/tables.js";

const $ = (id) => document.getElementById(id);

/** Builds the page from a decoded payload. signal ends what it listens to. */
export function showSnapshot(payload, signal) {
  const page = new SnapshotPage(payload, signal);
  $("loading").remove();
  return page;
}

class SnapshotPage {
  constructor(payload, signal) {
    this.payload = payload;
    this.signal = signal;
    this.hidden = new Set();
    this.found = null;
    this.timeline = new Timeline($("timeline"), {
      moment: (at) => this.choose(at),
      hover: (block, at, x, y) => this.tip(block === null ? null : this.blockText(block), x, y),
    });
    this.map = new SegmentMap($("segments"), {
      hover: (piece, x, y) =>
        this.tip(
          piece &&
            (piece.block < 0
              ? [`free: ${bytes(piece.end - piece.begin)}`]
              : this.blockText(piece.block)),
          x,
          y,
        ),
    });
    this.flame = new Flame($("flame"), {
      hover: (node, x, y) => this.tip(node && this.flame.text(node), x, y),
      chosen: (node) => {
        $("flame-text").textContent = node.parent ? this.flame.text(node).join(", ") : "";
      },
    });
    this.controls();
    this.open(0);
  }

  controls() {
    $("title").textContent = this.payload.file;
    const select = $("device");
    for (const [i, d] of this.payload.devices.entries())
      select.append(el("option", { value: String(i) }, `device ${d.device}`));
    select.parentElement.hidden = this.payload.devices.length < 2;
    select.addEventListener("change", () => this.open(Number(select.value)));
    $("moment").addEventListener("input", (e) => this.choose(Number(e.target.value)));
    $("to-peak").addEventListener("click", () => this.choose(this.device.peakAt));
    $("to-oom").addEventListener("click", () => this.choose(this.device.snapshot.ooms[0].at));
    $("zoom-in").addEventListener("click", () => this.timeline.zoom(0.5, this.at));
    $("zoom-out").addEventListener("click", () => this.timeline.zoom(2, this.at));
    $("zoom-all").addEventListener("click", () => this.timeline.reset());
    $("search").addEventListener("input", (e) => this.search(e.target.value));
    $("search-peak").addEventListener("click", () => this.choose(this.foundPeak.at));
    $("flame-all").addEventListener("click", () => this.flame.zoom(this.flame.root));
    const again = () => {
      this.timeline.draw();
      this.map.draw();
      this.flame.draw();
    };
    window.addEventListener("resize", again, { signal: this.signal });
    window
      .matchMedia("(prefers-color-scheme: dark)")
      .addEventListener("change", again, { signal: this.signal });
  }

  open(index) {
    this.device = new Device(this.payload.devices[index]);
    const d = this.device;
    $("moment").max = String(d.last);
    $("to-oom").hidden = !(d.snapshot.ooms && d.snapshot.ooms.length > 0);
    $("omitted").textContent =
      d.omitted > 0
        ? `${count(d.omitted)} blocks below ${bytes(d.smallest)} are summed up as small blocks; the map below does not draw them.`
        : "";
    this.figures();
    this.failures();
    this.growth();
    this.whatIf();
    this.timeline.show(d, d.peakAt, null);
    this.choose(d.peakAt);
    if ($("search").value.trim() || this.found) this.search($("search").value);
  }

  /** Shows where a function or file occurs: the rest turns pale. */
  search(text) {
    const d = this.device;
    this.found = d.findStacks(text);
    const wanted = text.trim().toLowerCase();
    this.timeline.setFound(this.found);
    this.flame.setMatch(this.found && ((node) => onPath(node, wanted)));
    this.foundPeak = this.found ? d.peakOf(this.found) : null;
    $("search-peak").hidden = !this.found || this.found.size === 0;
    this.searchText();
    groupTable($("groups"), d, this.live, this.found);
  }

  searchText() {
    const { found, device: d } = this;
    if (!found) {
      $("search-text").textContent = "";
      return;
    }
    let sum = 0;
    for (const i of this.live) if (found.has(d.stack[i])) sum += d.size[i];
    $("search-text").textContent =
      found.size === 0
        ? "found in no call stack"
        : `${count(found.size)} call stacks: ${bytes(sum)} at this moment, at most ${bytes(this.foundPeak.bytes)} at entry ${count(this.foundPeak.at)}`;
  }

  /** The server compares settings after the page is up. */
  comparing() {
    $("whatif").hidden = false;
    $("whatif-text").textContent = "Replaying the recording under other settings ...";
  }

  compared(tables, problem) {
    for (const t of tables) {
      const d = this.payload.devices.find((x) => x.device === t.device);
      if (d) d.what_if = t.table;
    }
    this.device.what_if = (
      this.payload.devices.find((x) => x.device === this.device.device) || {}
    ).what_if;
    this.whatIf();
    const warning = problem || tables.map((t) => t.warning).find(Boolean);
    if ($("whatif").hidden && warning) {
      $("whatif").hidden = false;
      $("whatif-table").replaceChildren();
      $("whatif-text").textContent = warning;
    }
  }

  figures() {
    const s = this.device.snapshot;
    const where = s.peak.step > 0 ? `, step ${s.peak.step}, ${s.peak.phase}` : "";
    const facts = [
      [
        "peak allocated",
        bytes(s.allocated_peak),
        s.entries === 0
          ? "when the snapshot was taken"
          : s.peak.at < 0
            ? "when recording began"
            : `entry ${count(s.peak.at)}${where}`,
      ],
      [
        "peak reserved",
        bytes(s.reserved_peak),
        `${bytes(s.reserved.reserved - s.reserved.allocated)} unused then`,
      ],
      [
        "unused at the peak",
        bytes(s.peak.reserved - s.peak.allocated),
        `longest free piece ${bytes(s.peak.largest_free)}`,
      ],
      [
        "recorded",
        `${count(s.allocs)} allocations`,
        (s.steps || []).length > 0 ? `${count(s.steps.length)} steps` : "no steps recognised",
      ],
    ];
    $("figures").replaceChildren(
      ...facts.map(([name, value, note]) =>
        el(
          "div",
          { class: "figure" },
          el("span", {}, name),
          el("b", {}, value),
          el("small", {}, note),
        ),
      ),
    );
    $("warnings").replaceChildren(
      ...(this.payload.warnings || []).concat(s.warnings || []).map((w) => el("li", {}, w)),
    );
  }

  failures() {
    const ooms = this.device.snapshot.ooms || [];
    $("failures").hidden = ooms.length === 0;
    $("failure-help").textContent = "";
    $("failure-list").replaceChildren(
      ...ooms
        .slice(0, 5)
        .map((o) =>
          el(
            "li",
            {},
            o.text || "",
            o.frames && o.frames.length > 0
              ? el(
                  "div",
                  { class: "where" },
                  o.frames.map((f) => frameText([f.file, f.name, f.line])).join(" ← "),
                )
              : "",
          ),
        ),
    );
  }

  growth() {
    const g = this.device.snapshot.growth;
    $("growth").hidden = !g;
    if (!g) return;
    $("growth-text").textContent =
      `From step ${g.first_step} to ${g.last_step} the least allocated memory rises by ${bytes(g.per_step)} a step, to ${bytes(g.floor)}.`;
    $("suspects").replaceChildren(
      ...(g.suspects || []).map((s) =>
        el(
          "li",
          {},
          `${bytes(s.bytes)} a step, ${s.category}: `,
          tellingFrames((s.frames || []).map((f) => [f.file, f.name, f.line]))
            .map(frameText)
            .join(" ← "),
        ),
      ),
    );
  }

  whatIf() {
    const table = this.device.what_if;
    $("whatif").hidden = !table || !table.outcomes || table.outcomes.length === 0;
    if ($("whatif").hidden) return;
    plainTable(
      $("whatif-table"),
      ["settings", "peak reserved", "overhead", "retries", "out of memory"],
      table.outcomes.map((r) => ({
        class: r.recommended ? "best" : undefined,
        cells: [
          r.conf || "default",
          bytes(r.reserved_peak),
          bytes(r.overhead),
          count(r.num_alloc_retries),
          r.oom ? "yes" : "no",
        ],
      })),
    );
    $("whatif-text").textContent = table.reason || "";
    const helps = table.outcomes.some((r) => r.recommended) ? table.reason : "";
    $("failure-help").textContent = helps ? `What helps: ${helps}.` : "";
  }

  /** Chooses a moment: the map, the legend and the table follow. */
  choose(at) {
    const d = this.device;
    this.at = Math.max(0, Math.min(d.last, at));
    $("moment").value = String(this.at);
    this.timeline.setMoment(this.at);
    const live = d.liveAt(this.at);
    this.map.show(d, this.at, live);
    const mark = d.markAt(this.at);
    const free = this.map.freeSummary();
    const allocated = d.allocatedAt(this.at);
    const reserved = d.reservedAt(this.at);
    $("moment-text").textContent =
      (d.entries === 0
        ? "when the snapshot was taken"
        : `entry ${count(this.at)} of ${count(d.entries)}`) +
      (d.timeWhen.length > 0 ? `, ${seconds(d.secondsAt(this.at))}` : "") +
      (mark.step > 0 ? `, step ${mark.step}, ${mark.phase}` : "") +
      `: ${bytes(allocated)} allocated, ${bytes(reserved)} reserved`;
    $("segments-text").textContent =
      `${count(this.map.segments.length)} segments; ${bytes(Math.max(0, reserved - allocated))} free (${percent(Math.max(0, reserved - allocated), reserved)})` +
      (d.omitted > 0 ? "" : ` in ${count(free.pieces)} pieces, the longest ${bytes(free.longest)}`);
    this.live = live;
    this.keys();
    this.flame.show(d, live, d.restAt(this.at));
    this.searchText();
    groupTable($("groups"), d, live, this.found);
  }

  keys() {
    legend(
      $("legend"),
      this.device,
      this.live,
      this.device.restAt(this.at),
      this.hidden,
      (name) => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.timeline.setHidden(this.hidden);
        this.keys();
      },
    );
  }

  blockText(i) {
    const d = this.device;
    const life = d.end[i] > d.entries ? "never freed" : `freed at entry ${count(d.end[i])}`;
    const born = d.start[i] < 0 ? "older than the recording" : `made at entry ${count(d.start[i])}`;
    return [
      `${bytes(d.size[i])} · ${d.category(i)}`,
      `${born}, ${life}`,
      ...tellingFrames(d.frames(i)).map(frameText),
    ];
  }

  tip(lines, x, y) {
    const tip = $("tip");
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((line) => el("div", {}, line)));
    tip.style.left = `${Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(y + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  }
}

/** Whether a node of the flame view, one above it or one below it has the text in its name. */
function onPath(node, text) {
  for (let n = node; n; n = n.parent)
    if (`${n.name} ${n.file || ""}`.toLowerCase().includes(text)) return true;
  return below(node, text);
}

function below(node, text) {
  for (const child of node.children.values()) {
    if (`${child.name} ${child.file || ""}`.toLowerCase().includes(text) || below(child, text))
      return true;
  }
  return false;
}
