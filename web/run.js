// One run: the verdict, its course, the account at the cursor, what happened, attempts, log.
//
// The view takes its data from a source, so that the served page and the page in one file are the
// same: {record, series(from, to, points), account(ms), events(), log(stream)}.

import { bytes, clock, count, el, percent, span } from "memroom/format.js";
import { Course, inks } from "memroom/course.js";
import { fromText, judgement, roomBar, stateMark, worthShowing } from "memroom/rooms.js";
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
    const [events] = await Promise.all([
      this.source.events(),
      this.course.open(),
      this.showLog("output"),
    ]);
    this.events = events;
    this.legend();
    this.showEvents();
    const ooms = events.filter((h) => h.kind === "oom" || h.kind === "died");
    this.course.setCursor(ooms.length > 0 ? ooms[0].at_ms : (this.newest() ?? this.course.peak()));
    this.placed = this.course.cursor;
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
    document.title = `${r.name || r.id} · memroom`;
    $("run-title").textContent = r.name ? `${r.name} (${r.id})` : r.id;
    $("run-state").replaceChildren(stateMark(r));
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
    add("memory", end.memory);
    add("time", end.time);
    add("evidence", !end.why && r.verdict && r.verdict.is_oom ? r.verdict.evidence : []);
    $("banner").className = `banner ${kind}`;
    $("banner").replaceChildren(el("p", { class: "headline" }, text), ...lines);
  }

  legend() {
    const names = {
      used: "in use",
      reserved: "reserved by the allocator",
      allocated: "allocated",
      resident: "resident",
      cgroup: "cgroup",
    };
    const d = this.course.data;
    const allocator = d && Object.keys(d.steps.columns).some((name) => /alloc|reserved/.test(name));
    if (!allocator && !(this.record.room || []).some((r) => r.kind === "gpu")) {
      // lines that this run cannot have
      delete names.reserved;
      delete names.allocated;
    }
    $("course-legend").replaceChildren(
      ...Object.entries(names).map(([key, text]) => {
        const box = el("span", { class: "swatch" });
        box.style.background = inks[key];
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
          `${s.rank === undefined || s.rank === null ? `process ${s.pid}` : `rank ${s.rank}`}: step ${count(s.step)}, ${(s.duration_ns / 1e6).toFixed(1)} ms` +
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
      const severity = h.finding ? h.finding.severity : "";
      const bad =
        h.kind === "oom" ||
        h.kind === "died" ||
        severity === "error" ||
        (h.kind === "verdict" && this.record.is_oom);
      marks.push({ at: h.at_ms, bad, ink: severity === "warning" ? "#d9822b" : undefined });
      list.push({ h, bad });
    }
    for (const [key, at] of Object.entries(phases))
      marks.push({ at, until: this.course.end, kind: key.split(" ")[1] });
    this.course.marks = marks;
    this.course.request();
    $("marks-section").hidden = list.length === 0;
    $("marks").replaceChildren(
      ...list
        .slice(-200)
        .map(({ h, bad }) =>
          el(
            "li",
            { class: bad ? "bad" : undefined },
            el(
              "button",
              { type: "button", class: "link", onclick: () => this.course.setCursor(h.at_ms) },
              clock(h.at_ms / 1000),
            ),
            ` ${h.kind}: `,
            h.finding ? h.finding.title : h.text || (h.data && h.data.text) || "",
          ),
        ),
    );
  }

  findings(r) {
    const all = r.all_findings || [];
    $("findings-section").hidden = all.length === 0;
    $("findings").replaceChildren(
      ...all.map((f) =>
        el(
          "details",
          { class: `finding ${f.severity}`, open: f.severity === "error" ? "" : false },
          el("summary", {}, `${f.severity}: ${f.title}`),
          el(
            "ul",
            {},
            ...(f.evidence || []).map((e) => el("li", {}, e)),
            ...(f.frames || []).map((x) => el("li", {}, `at ${x.file}:${x.line} in ${x.name}`)),
            (f.remedies || []).length > 0 ? el("li", {}, `may help: ${f.remedies.join(", ")}`) : "",
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
      plainTable(
        $("attempts"),
        ["attempt and what it changed", "ended", "allocated", "reserved", "host", "step"],
        tried.map((t) => ({
          cells: [
            attemptCell(t),
            t.out_of
              ? `out of ${t.out_of} memory`
              : t.failed
                ? `failed: ${t.failed}`
                : `exit ${t.exit_code}`,
            size(t.allocated),
            size(t.reserved),
            size(t.host),
            t.step_ms ? `${t.step_ms.toFixed(1)} ms` : "-",
          ],
        })),
      );
      return;
    }
    plainTable(
      $("attempts"),
      ["attempt and what it changed", "ended"],
      tries.map((t) => ({
        cells: [
          `${t.number}: ${(t.changed || ["as the command was"]).join("; ")}`,
          t.exit ? `exit ${t.exit.exit_code}` : "-",
        ],
      })),
    );
  }

  commands(r) {
    const next = ((r.end && r.end.next) || []).map((line) => ({
      line: shellLine(line),
      does: line,
    }));
    const list = [...next.filter((c) => c.line), ...(r.commands || [])];
    $("commands").replaceChildren(
      ...list.map((c) =>
        el(
          "li",
          {},
          el("code", {}, c.line),
          " ",
          el("button", { type: "button", onclick: (e) => copy(e.target, c.line) }, "copy"),
          el("span", { class: "soft" }, ` ${c.does === c.line ? "" : c.does}`),
        ),
      ),
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
      ["command", (run.command || []).join(" ")],
      ["folder it ran in", run.dir],
      ["host", run.host],
      ["started", run.started],
      ["took", r.seconds ? span(r.seconds) : ""],
      [
        "steps",
        r.steps
          ? `${count(r.steps)}${r.summary && r.summary.step_ms ? `, ${r.summary.step_ms.toFixed(1)} ms each (median)` : ""}`
          : "",
      ],
      ["exit code", r.exit_code === undefined ? "" : String(r.exit_code)],
      ["group", run.group],
      ["tags", (run.tags || []).join(", ")],
      ["limit on host memory", run.host_mem ? bytes(run.host_mem) : ""],
      ["limit on GPU memory", run.gpu_mem ? bytes(run.gpu_mem) : ""],
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

function size(n) {
  return n ? bytes(n) : "-";
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

/** The command in a sentence of advice: what begins with memroom. */
function shellLine(text) {
  const line = text.split("\n").find((l) => l.trim().startsWith("memroom "));
  return line ? line.trim().split(/\s{3,}/)[0] : "";
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // not allowed, as in a file: select it instead
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "selected";
    return;
  }
  button.textContent = "copied";
  setTimeout(() => {
    button.textContent = "copy";
  }, 1500);
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
          el("td", { class: "num" }, bytes(l.bytes)),
          el("td", { class: "num" }, percent(l.bytes, account.limit)),
          el("td", { class: "soft" }, l.note || ""),
        ),
      );
    });
  return el(
    "div",
    { class: "account" },
    el("h3", {}, `${name}: ${bytes(account.limit)}`),
    bar,
    el("table", {}, el("tbody", {}, ...rows)),
  );
}
