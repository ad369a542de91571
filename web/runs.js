// The list of runs, live and past.

import { ago, bytes, count, el, partOf, span, when } from "memroom/format.js";
import { Live, getJSON } from "memroom/net.js";
import { forecastText, fromText, meter, nameOf, stateMark, tightest } from "memroom/rooms.js";
import { linkState } from "memroom/status.js";

/** The states by which the list is narrowed; a run is in one of them. */
const states = [
  ["all", () => true],
  ["running", (r) => r.status === "running"],
  ["out of memory", (r) => r.status !== "running" && Boolean(r.is_oom)],
  ["failed", (r) => r.status !== "running" && !r.is_oom && r.state !== "ok"],
  ["ok", (r) => r.status !== "running" && !r.is_oom && r.state === "ok"],
];

export class RunsView {
  constructor(main) {
    document.title = "Runs · memroom";
    this.chosen = new Set();
    this.older = [];
    this.unfolded = new Set(); // studies whose trials are shown
    this.state = "all";
    this.body = el("tbody");
    this.more = el(
      "button",
      { type: "button", hidden: "", onclick: () => this.loadMore() },
      "older runs",
    );
    this.compare = el("a", { class: "button off", "aria-disabled": "true" }, "compare two");
    this.filter = el("input", {
      type: "search",
      placeholder: "name, command, state: press /",
      "aria-label": "Filter runs",
      oninput: () => this.draw(),
    });
    this.filters = el("div", { class: "bar", role: "group", "aria-label": "Runs by state" });
    this.key = (e) => this.onKey(e);
    document.addEventListener("keydown", this.key);
    this.problem = el("p", { class: "problem", role: "alert", hidden: "" });
    main.append(
      el(
        "header",
        { class: "page" },
        el("h1", {}, "Runs"),
        el("div", { class: "bar" }, this.filter, this.compare),
      ),
      this.filters,
      this.problem,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "runs" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", {}, el("span", { class: "unseen" }, "compare")),
              el("th", {}, "run"),
              el("th", {}, "state"),
              el("th", {}, "memory, of its limit"),
              el("th", {}, "over time"),
              el("th", {}, "found"),
              el("th", { class: "num" }, "took"),
              el("th", { class: "num" }, "begun"),
            ),
          ),
          this.body,
        ),
      ),
      this.more,
    );
    this.load();
  }

  async load() {
    try {
      const first = await getJSON("/api/runs?limit=50");
      this.newest = first.runs;
      this.next = first.next;
      this.home = first.home;
      this.draw();
    } catch (problem) {
      this.fail(problem);
    }
    if (this.closed) return;
    this.live = new Live("/api/live", {
      runs: (runs) => {
        this.newest = runs;
        this.draw();
      },
      link: (up) => linkState(up),
    });
  }

  fail(problem) {
    this.problem.hidden = false;
    this.problem.textContent = problem.message;
  }

  async loadMore() {
    try {
      const page = await getJSON(`/api/runs?limit=100&cursor=${encodeURIComponent(this.next)}`);
      this.older.push(...page.runs);
      this.next = page.next;
      this.draw();
    } catch (problem) {
      this.fail(problem);
    }
  }

  draw() {
    const known = new Set();
    const all = [...(this.newest || []), ...this.older].filter(
      (r) => !known.has(r.id) && known.add(r.id),
    );
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matching = all.filter((r) =>
      words.every((w) =>
        `${r.id} ${r.name || ""} ${r.command} ${r.state} ${r.host || ""} ${(r.tags || []).join(" ")}`
          .toLowerCase()
          .includes(w),
      ),
    );
    this.drawFilters(matching);
    const rows = matching.filter(states.find(([name]) => name === this.state)[1]);
    const focused =
      document.activeElement && document.activeElement.dataset
        ? document.activeElement.dataset.focus
        : undefined;
    this.body.replaceChildren(...this.lines(rows));
    if (focused) {
      const again = [...this.body.querySelectorAll("[data-focus]")].find(
        (n) => n.dataset.focus === focused,
      );
      if (again) again.focus();
    }
    if (rows.length === 0) {
      const text =
        all.length === 0
          ? `No runs yet in ${this.home || "this home"}. Start one with: memroom run -- python train.py`
          : `No run matches. ${this.next ? "Older runs are not searched before they are shown." : ""}`;
      this.body.append(el("tr", {}, el("td", { colspan: "8", class: "soft" }, text)));
    }
    this.more.hidden = !this.next;
  }

  drawFilters(matching) {
    this.filters.replaceChildren(
      ...states.map(([name, fits]) =>
        el(
          "button",
          {
            type: "button",
            "data-focus": `s${name}`,
            "aria-pressed": String(name === this.state),
            onclick: () => {
              this.state = name;
              this.draw();
            },
          },
          `${name} ${count(matching.filter(fits).length)}`,
        ),
      ),
    );
  }

  /** A line a run; the trials of a study are one line until it is unfolded. */
  lines(rows) {
    const studies = new Map();
    for (const r of rows)
      if (r.study) studies.set(r.study, [...(studies.get(r.study) || []), r]);
    const lines = [];
    const begun = new Set();
    for (const r of rows) {
      if (!r.study) lines.push(this.row(r));
      else if (!begun.has(r.study)) {
        begun.add(r.study);
        lines.push(this.study(r.study, studies.get(r.study)));
        if (this.unfolded.has(r.study))
          lines.push(...studies.get(r.study).map((trial) => this.row(trial)));
      }
    }
    return lines;
  }

  study(name, trials) {
    const open = this.unfolded.has(name);
    const sums = states
      .slice(1)
      .map(([word, fits]) => [trials.filter(fits).length, word])
      .filter(([n]) => n > 0);
    // a name that was made up of date and time is no name
    const called = (/^study-\d{8}-/.test(name) && trials[0].script) || name;
    const largest = Math.max(0, ...trials.map((t) => (tightest(t.room) || { peak: 0 }).peak));
    const fold = el(
      "button",
      {
        type: "button",
        "aria-expanded": String(open),
        "aria-label": `Trials of ${name}`,
        "data-focus": `f${name}`,
        onclick: () => {
          if (open) this.unfolded.delete(name);
          else this.unfolded.add(name);
          this.draw();
        },
      },
      open ? "−" : "+",
    );
    return el(
      "tr",
      { class: "study" },
      el("td", {}, fold),
      el(
        "td",
        { title: name },
        el("a", { href: `/studies/${encodeURIComponent(name)}`, "data-focus": `t${name}` }, called),
        el("span", { class: "soft small" }, ` study, ${count(trials.length)} trials shown`),
      ),
      el("td", {}, sums.map(([n, word]) => `${count(n)} ${word}`).join(", ")),
      el("td", { class: "soft" }, largest > 0 ? `at most ${bytes(largest)}` : ""),
      el("td", {}),
      el("td", {}),
      el("td", {}),
      el("td", { class: "num", title: when(trials[0].started) }, ago(trials[0].started)),
    );
  }

  row(r) {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `Compare ${nameOf(r)} ${r.id}`,
      "data-focus": `c${r.id}`,
    });
    box.checked = this.chosen.has(r.id);
    box.addEventListener("change", () => this.choose(r.id, box.checked));
    const soft = [
      r.model,
      r.attempts > 1 ? `${r.attempts} attempts` : "",
      r.host && r.reported && fromText(r),
    ];
    const forecast = (r.forecasts || [])[0];
    return el(
      "tr",
      { class: r.study ? "trial" : undefined },
      el("td", {}, box),
      el(
        "td",
        { title: `${r.command}\n${r.id}` },
        el(
          "a",
          { href: `/runs/${encodeURIComponent(r.id)}`, "data-focus": `r${r.id}` },
          nameOf(r),
        ),
        el("span", { class: "soft small" }, ` ${soft.filter(Boolean).join(", ")}`),
      ),
      el("td", {}, stateMark(r)),
      el("td", { class: "rooms-cell" }, this.memory(r)),
      el("td", { class: "spark-cell" }, spark(r.spark)),
      forecast
        ? el("td", { class: "forecast", title: forecastText(forecast) }, forecastText(forecast))
        : el(
            "td",
            { class: "found", title: (r.found || []).join("\n") || undefined },
            r.found_short || "",
          ),
      el("td", { class: "num" }, r.seconds ? span(r.seconds) : ""),
      el("td", { class: "num", title: when(r.started) }, ago(r.started)),
    );
  }

  /** One bar: the kind of memory with the least left. */
  memory(r) {
    const room = tightest(r.room) || (r.room || [])[0];
    if (!room) return el("span", { class: "soft" }, "no readings");
    const used = room.now || room.peak;
    const text = room.limit > 0 ? partOf(used, room.limit) : bytes(used);
    return el(
      "span",
      { class: "memory", title: `${room.name}${room.now ? "" : ", peak"}` },
      meter(room),
      el("span", {}, text, room.kind === "gpu" ? el("span", { class: "soft" }, " GPU") : ""),
    );
  }

  /** j and k, or the arrows, walk over the runs; Enter opens one, / goes to the filter. */
  onKey(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const typing =
      /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "checkbox";
    if (e.key === "/" && !typing) {
      e.preventDefault();
      this.filter.focus();
      return;
    }
    const way = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[e.key];
    if (!way || (typing && e.key.length === 1)) return;
    const links = [...this.body.querySelectorAll("a[data-focus]")];
    if (links.length === 0) return;
    const row = document.activeElement && document.activeElement.closest("tbody tr");
    const at = links.findIndex((link) => row && row.contains(link));
    const next = links[at < 0 ? 0 : Math.max(0, Math.min(links.length - 1, at + way))];
    e.preventDefault();
    next.focus();
  }

  choose(id, on) {
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    while (this.chosen.size > 2) this.chosen.delete(this.chosen.values().next().value);
    const [a, b] = [...this.chosen];
    this.compare.classList.toggle("off", this.chosen.size !== 2);
    if (this.chosen.size === 2) {
      this.compare.href = `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
      this.compare.removeAttribute("aria-disabled");
    } else {
      this.compare.removeAttribute("href");
      this.compare.setAttribute("aria-disabled", "true");
    }
    this.draw();
  }

  close() {
    this.closed = true;
    document.removeEventListener("keydown", this.key);
    if (this.live) this.live.close();
  }
}

/** Memory over time as a line of 100 by 20 pixels; shares of the limit. */
function spark(shares) {
  if (!shares || shares.length < 2) return "";
  const svg = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  // of a run far below its limit the form is shown, not the height
  const most = Math.max(...shares);
  const top = most > 0.25 ? Math.max(1, most) : Math.max(most, 0.001) * 1.5;
  const points = shares.map(
    (v, i) => `${((100 * i) / (shares.length - 1)).toFixed(1)},${(19 - (18 * v) / top).toFixed(1)}`,
  );
  const picture = svg("svg", {
    class: "spark",
    viewBox: "0 0 100 20",
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  picture.append(svg("polygon", { points: `0,20 ${points.join(" ")} 100,20` }));
  picture.append(svg("polyline", { points: points.join(" ") }));
  return picture;
}
