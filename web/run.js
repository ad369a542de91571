// One run: the verdict, its course, the account at the cursor, what happened, attempts, log.
//
// The view takes its data from a source, so that the served page and the page in one file are the
// same: {record, series(from, to, points), account(ms), events(), reports(), log(stream)}.

import { asSet, beside, bytes, clock, count, duration } from "memroom/format.js";
import { el, percent, span, when } from "memroom/format.js";
import { Course, inks, phaseInk } from "memroom/course.js";
import { fromText, judgement, roomBar, stateMark, worthShowing } from "memroom/rooms.js";
import { became, nameOf } from "memroom/rooms.js";
import { reasonParts, typedLine } from "memroom/reason.js";
import { plainTable } from "memroom/tables.js";

const $ = (id) => document.getElementById(id);

export class RunView {
  constructor(source) {
    this.source = source;
    this.course = new Course($("course"), (from, to, points) => source.series(from, to, points), {
      cursor: (ms) => this.showAccount(ms),
      view: () => this.courseText(),
    });
    this.stop = new AbortController();
    const { signal } = this.stop;
    window.addEventListener("resize", () => this.course.request(), { signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener(
      "change",
      () => this.course.request(),
      { signal },
    );
    $("course-in").addEventListener("click", () => this.course.zoom(0.5, this.middle()));
    $("course-out").addEventListener("click", () => this.course.zoom(2, this.middle()));
    $("course-all").addEventListener("click", () => this.course.reset());
    $("course-peak").addEventListener("click", () => this.course.setCursor(this.course.peak()));
    $("follow").addEventListener("change", (e) => {
      this.course.follow = e.target.checked;
    });
  }

  middle() {
    const c = this.course;
    return c.cursor !== null && c.cursor >= c.from && c.cursor <= c.to
      ? c.cursor
      : (c.from + c.to) / 2;
  }

  async open() {
    this.showRecord(this.source.record);
    this.course.hostLimit = this.source.record.run.host_mem || 0;
    this.course.hostPeak = ranOutOfHost(this.source.record);
    const [events] = await Promise.all([
      this.source.events(),
      this.course.open(),
      this.showLog("output"),
    ]);
    this.events = events;
    this.showEvents();
    this.showReports();
    this.legend();
    const ooms = events.filter((h) => h.kind === "oom" || h.kind === "died");
    const last = this.record.is_oom ? this.course.end : this.course.peak();
    this.course.setCursor(ooms.length > 0 ? ooms[0].at_ms : (this.newest() ?? last));
    this.placed = this.course.cursor;
    this.showReason();
  }

  /** The numbers that the program reported, on the same axis. */
  async showReports() {
    try {
      this.course.showReports(await this.source.reports());
    } catch {
      /* the rest of the picture stands without them */
    }
  }

  /** Why memory ran out, once that is known: reading the logs for it may take a while. */
  async showReason() {
    let reason = null;
    try {
      reason = await this.source.explanation();
    } catch {
      /* the rest of the page stands without it */
    }
    const section = $("reason-section");
    if (!section) return; // another page is shown by now
    // what was cured needs no cure
    section.hidden = !reason || (this.record.state === "ok" && Boolean(this.record.fit));
    if (reason) $("reason").replaceChildren(...reasonParts(reason));
  }

  /** The last moment of a run that goes on; undefined of one that is over. */
  newest() {
    return this.record.status === "running" && this.source.live ? this.course.end : undefined;
  }

  /** While nobody has chosen a moment, the account is that of now. */
  keepUp() {
    if (this.course.cursor !== this.placed || !this.course.follow || this.newest() === undefined)
      return;
    this.course.setCursor(this.newest());
    this.placed = this.course.cursor;
  }

  showRecord(r) {
    this.record = r;
    document.title = `${nameOf(r)} ${became(r)} · memroom`;
    $("run-title").replaceChildren(nameOf(r), " ", stateMark(r));
    $("run-line").replaceChildren(
      typedLine((r.run && r.run.command ? r.run.command.join(" ") : r.command) || ""),
      el(
        "span",
        { class: "soft" },
        [
          when(r.started),
          r.seconds ? `${r.status === "running" ? "for" : "took"} ${span(r.seconds)}` : "",
          r.model && `model ${r.model}`,
          `run ${r.id}`,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
    );
    this.banner(r);
    $("run-notes").replaceChildren(
      ...[r.newer, r.reported && fromText(r), ...(r.notes || [])]
        .filter(Boolean)
        .map((n) => el("li", {}, n)),
    );
    $("rooms").replaceChildren(...worthShowing(r.room).map(roomBar));
    $("follow-label").hidden = r.status !== "running" || !this.source.live;
    this.findings(r);
    this.attempts(r);
    this.commands(r);
    $("dumps-section").hidden = (r.dumps || []).length === 0;
    $("dumps").replaceChildren(
      ...(r.dumps || []).map((d) =>
        el(
          "li",
          {},
          this.source.live
            ? el("a", { href: `/snapshots/${encodeURIComponent(d.id)}` }, d.name)
            : d.name,
          ` ${bytes(d.size)}`,
        ),
      ),
    );
    this.details(r);
  }

  banner(r) {
    const [kind, text] = judgement(r);
    const end = r.end || {};
    const lines = [];
    const add = (label, list) =>
      []
        .concat(list || [])
        .filter(Boolean)
        .forEach((line, i) =>
          lines.push(el("div", {}, el("b", {}, i === 0 ? `${label} ` : ""), line)),
        );
    add("why", end.why);
    add("done", end.done);
    add("results", end.results);
    add("time", end.time);
    $("banner").className = `banner ${kind}`;
    $("banner").replaceChildren(el("p", { class: "headline" }, text), ...lines);
  }

  /** Only the lines that are drawn have a key, and the marks that there are. */
  legend() {
    const names = {
      used: "in use",
      reserved: "reserved by the allocator",
      allocated: "allocated",
      resident: "with the files it has read",
      cgroup: "as the kernel counts it for the limit",
    };
    const drawn = new Set(
      (this.course.lanes || [])
        .filter((lane) => lane.unit === "bytes")
        .flatMap((lane) => lane.lines.map((line) => line.ink)),
    );
    const keys = Object.entries(names)
      .filter(([key]) => drawn.has(inks[key]))
      .map(([key, text]) => [inks[key], text]);
    const kinds = new Set(this.course.marks.filter((m) => m.until).map((m) => m.kind));
    keys.push(...[...kinds].map((kind) => [phaseInk(kind), kind]));
    $("course-legend").replaceChildren(
      ...keys.map(([ink, text]) => {
        const box = el("span", { class: "swatch" });
        box.style.background = ink;
        return el("span", { class: "key" }, box, text);
      }),
    );
  }

  courseText() {
    const c = this.course;
    if (!c.data) return;
    const n = c.data.samples.count;
    $("course-text").textContent =
      `${clock(c.from / 1000)} to ${clock(c.to / 1000)}, ${c.data.samples.sketch ? "reading a long record: a sketch, peaks may be missing" : `${count(n)} ${n === 1 ? "reading" : "readings"}`}`;
    $("follow").checked = c.follow;
  }

  async showAccount(ms) {
    const turn = (this.turn = (this.turn || 0) + 1);
    let m;
    try {
      m = await this.source.account(ms);
    } catch (problem) {
      $("accounts").replaceChildren(el("p", { class: "problem" }, problem.message));
      return;
    }
    if (turn !== this.turn) return;
    const boxes = [];
    for (const card of m.cards || [])
      boxes.push(accountBox(card.name || card.uuid || "card", card));
    if (m.host) boxes.push(accountBox("host memory", m.host));
    const steps = (m.steps || [])
      .slice(0, 16)
      .map((s) =>
        el(
          "li",
          {},
          `${s.rank === undefined || s.rank === null ? `process ${s.pid}` : `rank ${s.rank}`}: step ${count(s.step)}, ${duration(s.duration_ns / 1e6)}` +
            (s.device >= 0
              ? `, ${bytes(s.allocated)} allocated, ${bytes(s.reserved)} reserved`
              : ""),
        ),
      );
    $("accounts").replaceChildren(
      el(
        "p",
        { class: "soft" },
        `at ${clock(ms / 1000)}${m.sample ? `, ${count(m.sample.procs)} ${m.sample.procs === 1 ? "process" : "processes"}` : ""}`,
      ),
      ...boxes,
      steps.length > 0 ? el("ul", { class: "soft" }, ...steps) : "",
    );
    if (boxes.length === 0)
      $("accounts").append(el("p", { class: "soft" }, "No reading at that moment."));
  }

  showEvents() {
    const phases = {};
    const marks = [];
    const list = [];
    const ends = ((this.record.fit && this.record.fit.attempts) || []).slice(0, -1);
    for (const h of this.events) {
      if (h.kind === "phase") {
        const name = (h.data && h.data.phase) || h.text || "phase";
        const key = `${h.pid} ${name}`;
        if (h.data && h.data.begin) phases[key] = h.at_ms;
        else if (phases[key] !== undefined) {
          marks.push({ at: phases[key], until: h.at_ms, kind: name });
          delete phases[key];
        }
        continue;
      }
      const [word, text, bad] = happened(h, this.record, ends);
      const before = list[list.length - 1];
      // a finding may be told again with more, and each attempt has an end
      if (before && before.said === text && before.word === word) continue;
      const severity = h.finding ? h.finding.severity : "";
      const key = (h.finding && h.finding.key) || "";
      const attempt = list.findLastIndex((row) => row.word === "ended");
      const earlier = key ? list.findIndex((row, i) => i > attempt && row.key === key) : -1;
      let since;
      if (earlier >= 0) {
        const [row] = list.splice(earlier, 1); // the latest of a key counts
        marks.splice(marks.indexOf(row.mark), 1);
        since = row.since ?? row.at;
      }
      const mark = { at: h.at_ms, bad, ink: severity === "warning" ? "#d9822b" : undefined, word };
      marks.push(mark);
      const first = since === undefined ? "" : ` (first at ${clock(since / 1000)})`;
      list.push({ at: h.at_ms, word, said: text, text: text + first, bad, key, mark, since });
    }
    for (const [key, at] of Object.entries(phases))
      marks.push({ at, until: this.course.end, kind: key.split(" ")[1] });
    this.course.marks = marks;
    this.course.request();
    $("marks-section").hidden = list.length === 0;
    $("marks").replaceChildren(
      ...list
        .slice(-200)
        .map(({ at, word, text, bad }) =>
          el(
            "li",
            { class: bad ? "bad" : undefined },
            el(
              "button",
              { type: "button", class: "link", onclick: () => this.course.setCursor(at) },
              clock(at / 1000),
            ),
            el("b", {}, word),
            el("span", {}, text),
          ),
        ),
    );
  }

  findings(r) {
    // a forecast is for the time to come
    const all = lastOfEach(r.all_findings || []).filter(
      (f) => f.kind !== "forecast" || r.status === "running",
    );
    $("findings-section").hidden = all.length === 0;
    $("findings").replaceChildren(
      ...all.map((f) =>
        el(
          "details",
          { class: `finding ${f.severity}`, open: f.severity === "error" ? "" : false },
          el("summary", {}, f.title),
          el(
            "ul",
            {},
            ...(f.evidence || []).map((e) => el("li", {}, e)),
            ...(f.frames || []).map((x) => el("li", {}, `at ${x.file}:${x.line} in ${x.name}`)),
            (f.remedies || []).length > 0 ? el("li", {}, `may help: ${f.remedies.map((id) => (r.cures || {})[id] || id).join("; ")}`) : "",
          ),
        ),
      ),
    );
  }

  attempts(r) {
    const tried = (r.fit && r.fit.attempts) || [];
    const tries = r.tries || [];
    $("attempts-section").hidden = tried.length < 1 && tries.length < 2;
    if (tried.length > 0) {
      const columns = [
        ["attempt and what it changed", attemptCell],
        ["ended", attemptEnd],
        ["allocated", (t) => size(t.allocated)],
        ["reserved", (t) => size(t.reserved)],
        ["host memory", (t) => size(t.host)],
        ["step", (t) => (t.step_ms ? duration(t.step_ms) : "")],
      ].filter(([, cell]) => tried.some((t) => cell(t) !== ""));
      plainTable(
        $("attempts"),
        columns.map(([name]) => name),
        tried.map((t) => ({ cells: columns.map(([, cell]) => cell(t) || "-") })),
      );
      return;
    }
    plainTable(
      $("attempts"),
      ["attempt and what it changed", "ended"],
      tries.map((t) => ({
        cells: [
          `${t.number}: ${(t.changed || ["as the command was"]).join("; ")}`,
          t.exit ? exitWords(t.exit.exit_code) : "-",
        ],
      })),
    );
  }

  commands(r) {
    const next = ((r.end && r.end.next) || []).map(shellLine).filter((c) => c.line);
    const typed = new Set();
    const list = [...next, ...(r.commands || [])].filter(
      (c) => !typed.has(c.line) && typed.add(c.line),
    );
    $("commands").replaceChildren(
      ...list.map((c) => el("li", {}, typedLine(c.line), el("span", { class: "soft" }, c.does))),
    );
    $("next-section").hidden = list.length === 0;
  }

  async showLog(stream) {
    const sizes = this.record.output || {};
    const names = ["output", "errors"].filter((n) => sizes[n] > 0 || n === stream);
    $("log-bar").replaceChildren(
      ...(names.length > 1
        ? names.map((n) =>
            el(
              "button",
              {
                type: "button",
                "aria-pressed": String(n === stream),
                onclick: () => this.showLog(n),
              },
              n === "output" ? "stdout" : "stderr",
            ),
          )
        : []),
    );
    this.stream = stream;
    try {
      const log = await this.source.log(stream);
      this.logNext = log.next;
      $("log").textContent = log.text || "(nothing was printed)";
      if (log.from > 0)
        $("log").prepend(
          `(${bytes(log.from)} before this: memroom show ${this.record.id} --output)\n`,
        );
    } catch (problem) {
      $("log").textContent = problem.message;
    }
    $("log").scrollTop = $("log").scrollHeight;
  }

  details(r) {
    const run = r.run || {};
    const rows = [
      ["run", r.id],
      ["folder it ran in", run.dir],
      ["host", run.host],
      ["started", when(run.started)],
      ["took", r.seconds && r.status !== "running" ? span(r.seconds) : ""],
      [
        "steps",
        r.steps
          ? `${count(r.steps)}${r.summary && r.summary.step_ms ? `, ${duration(r.summary.step_ms)} each (median)` : ""}`
          : "",
      ],
      ["exit code", r.exit_code === undefined ? "" : String(r.exit_code)],
      ["group", run.group],
      ["tags", (run.tags || []).join(", ")],
      ["limit on host memory", run.host_mem ? asSet(run.host_mem) : ""],
      ["limit on GPU memory", run.gpu_mem ? asSet(run.gpu_mem) : ""],
      ["memroom", run.version],
      [
        "cost of watching",
        r.summary
          ? `${r.summary.cost_cpu_seconds.toFixed(2)} s of processor time, ${bytes(r.summary.cost_rss)}`
          : "",
      ],
    ];
    $("details").replaceChildren(
      el(
        "tbody",
        {},
        ...rows
          .filter(([, v]) => v)
          .map(([k, v]) => el("tr", {}, el("th", { scope: "row" }, k), el("td", {}, v))),
      ),
    );
  }

  close() {
    this.stop.abort();
    clearTimeout(this.course.timer);
    clearTimeout(this.course.sketched);
  }
}

/** The most that a run held which ran out of host memory: no reading may have seen it. */
function ranOutOfHost(r) {
  const host = (r.room || []).find((room) => room.kind === "host");
  return r.is_oom && host && (r.state || "").includes("host memory") ? host.peak : 0;
}

function size(n) {
  return n ? bytes(n) : "";
}

function attemptCell(t) {
  const lines = [t.title || "", ...(t.changed || [])].filter(Boolean);
  const said = (t.said || [])
    .filter((s) => s.kind !== "note")
    .slice(0, 6)
    .map((s) => el("li", {}, `${s.kind}: ${s.text}`));
  return el(
    "div",
    {},
    el("b", {}, `${t.number}`),
    ` ${lines.length > 0 ? lines.join("; ") : "as the command was"}`,
    t.resumed ? el("div", { class: "soft" }, `went on from ${t.resumed}`) : "",
    said.length > 0 ? el("ul", { class: "soft" }, ...said) : "",
  );
}

function attemptEnd(t) {
  if (t.out_of) return `ran out of ${memoryNames[t.out_of] || t.out_of}`;
  return t.failed ? `failed: ${t.failed}` : exitWords(t.exit_code);
}

const memoryNames = {
  gpu: "GPU memory",
  host: "host memory",
  cgroup: "host memory",
  shm: "shared memory",
  mps: "MPS memory",
};

function exitWords(code) {
  return code === 0 ? "finished" : `ended with exit code ${code}`;
}

/**
 * What an event is called, what it says and whether it is bad. ends are the attempts before the
 * last one; each that has ended is taken out.
 */
function happened(h, record, ends) {
  const text = h.text || (h.data && h.data.text) || "";
  if (h.finding) return ["found", h.finding.title, h.finding.severity === "error"];
  switch (h.kind) {
    case "verdict":
      if (ends.length > 0) return ["ended", attemptEnd(ends.shift()), true];
      return ["ended", text || became(record), Boolean(record.is_oom)];
    case "oom":
      return ["out of memory", text, true];
    case "died":
      return ["died", text, true];
    case "action":
      return ["memroom", text, false];
    case "pressure":
      return ["pressure", text, false];
    case "remedy":
      return ["cure", text, false];
    case "attempt":
      return ["began", text.replace(/ began$/, ""), false];
  }
  return [h.kind, text, false];
}

/** Findings without those that were told again with more. */
function lastOfEach(findings) {
  const plain = (f) => `${f.kind} ${f.title.replace(/[\d.]+([KMGT]i)?B?/g, "#")}`;
  return findings.filter((f, i) => !findings.slice(i + 1).some((g) => plain(g) === plain(f)));
}

/** A line of advice as what to type and what that does. */
function shellLine(text) {
  const line = text.split("\n").find((l) => l.trim().startsWith("memroom ")) || "";
  const [typed, does] = line.trim().split(/\s{3,}/);
  return { line: typed, does: does || "" };
}

const shades = [
  "#3b6fb6",
  "#d9822b",
  "#7a4fa3",
  "#3f9f6b",
  "#d7b93c",
  "#c9423a",
  "#7d8a97",
  "#45b5c4",
  "#a9a39a",
];

/** One account: a bar whose parts add up to the limit, and the same as a list. */
export function accountBox(name, account) {
  const bar = el("div", { class: "stack-bar", "aria-hidden": "true" });
  const rows = [];
  account.lines
    .filter((l) => l.bytes > 0)
    .forEach((l, i) => {
      const free = l.name === "free";
      const ink = free ? "transparent" : shades[i % shades.length];
      const part = el("span");
      part.style.width = `${((100 * l.bytes) / account.limit).toFixed(2)}%`;
      part.style.background = ink;
      bar.append(part);
      const box = el("span", { class: "swatch" });
      box.style.background = ink;
      if (free) box.classList.add("free");
      rows.push(
        el(
          "tr",
          {},
          el("td", {}, box, l.name),
          el("td", { class: "num" }, beside(l.bytes, account.limit)),
          el("td", { class: "num" }, percent(l.bytes, account.limit)),
          el("td", { class: "soft" }, l.note || ""),
        ),
      );
    });
  return el(
    "div",
    { class: "account" },
    el("h3", {}, `${name}: ${asSet(account.limit)}`),
    bar,
    el("table", {}, el("tbody", {}, ...rows)),
  );
}
