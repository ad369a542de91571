// The list of runs, live and past.

import { count, el, span, when } from "memroom/format.js";
import { Live, getJSON } from "memroom/net.js";
import { forecastText, fromText, roomBar, stateMark, worthShowing } from "memroom/rooms.js";
import { linkState } from "memroom/status.js";

export class RunsView {
  constructor(main) {
    document.title = "Runs · memroom";
    this.chosen = new Set();
    this.older = [];
    this.body = el("tbody");
    this.more = el(
      "button",
      { type: "button", hidden: "", onclick: () => this.loadMore() },
      "older runs",
    );
    this.compare = el("a", { class: "button off", "aria-disabled": "true" }, "compare two");
    this.filter = el("input", {
      type: "search",
      placeholder: "name, command, state",
      "aria-label": "Filter runs",
      oninput: () => this.draw(),
    });
    this.problem = el("p", { class: "problem", role: "alert", hidden: "" });
    main.append(
      el(
        "header",
        { class: "page" },
        el("h1", {}, "Runs"),
        el("div", { class: "bar" }, this.filter, this.compare),
      ),
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
              el("th", {}, "memory: used or peak, and what was left"),
              el("th", {}, "found"),
              el("th", { class: "num" }, "steps"),
              el("th", { class: "num" }, "took"),
              el("th", {}, "command"),
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
    const rows = all.filter((r) =>
      words.every((w) =>
        `${r.id} ${r.name || ""} ${r.command} ${r.state} ${r.host || ""} ${(r.tags || []).join(" ")}`
          .toLowerCase()
          .includes(w),
      ),
    );
    const focused =
      document.activeElement && document.activeElement.dataset
        ? document.activeElement.dataset.focus
        : undefined;
    this.body.replaceChildren(...rows.map((r) => this.row(r)));
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
          : "No run matches the filter.";
      this.body.append(el("tr", {}, el("td", { colspan: "8", class: "soft" }, text)));
    }
    this.more.hidden = !this.next;
  }

  row(r) {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `Compare ${r.name || r.id}`,
      "data-focus": `c${r.id}`,
    });
    box.checked = this.chosen.has(r.id);
    box.addEventListener("change", () => this.choose(r.id, box.checked));
    const found = el("td", {});
    for (const f of r.forecasts || [])
      found.append(el("div", { class: "forecast" }, forecastText(f)));
    for (const text of r.found || []) found.append(el("div", { class: "found" }, text));
    if (found.childNodes.length === 0)
      found.append(
        el("span", { class: "soft" }, r.findings > 0 ? `${count(r.findings)} notes` : "nothing"),
      );
    return el(
      "tr",
      {},
      el("td", {}, box),
      el(
        "td",
        {},
        el(
          "a",
          { href: `/runs/${encodeURIComponent(r.id)}`, "data-focus": `r${r.id}` },
          r.name || r.id,
        ),
        el("div", { class: "soft small" }, `${r.name ? `${r.id}, ` : ""}${when(r.started)}`),
        r.reported ? el("div", { class: "soft small" }, fromText(r)) : "",
      ),
      el(
        "td",
        {},
        stateMark(r),
        r.attempts > 1 ? el("div", { class: "soft small" }, `${r.attempts} attempts`) : "",
      ),
      el(
        "td",
        { class: "rooms-cell" },
        ...worthShowing(r.room).slice(0, 10).map(roomBar),
        (r.room || []).length === 0 ? el("span", { class: "soft" }, "no readings") : "",
      ),
      found,
      el("td", { class: "num" }, r.steps ? count(r.steps) : "-"),
      el("td", { class: "num" }, r.seconds ? span(r.seconds) : "-"),
      el("td", { class: "command" }, r.command),
    );
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
    if (this.live) this.live.close();
  }
}
