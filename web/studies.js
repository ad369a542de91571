// The served views of studies: the list, and one that follows live.

import { count, el, when } from "memroom/format.js";
import { Live, getJSON } from "memroom/net.js";
import { linkState } from "memroom/status.js";
import { StudyView } from "memroom/study.js";

export class StudiesView {
  constructor(main) {
    document.title = "Studies · memroom";
    this.body = el("tbody");
    this.problem = el("p", { class: "problem", role: "alert", hidden: "" });
    main.append(
      el("h1", {}, "Studies"),
      this.problem,
      el(
        "div",
        { class: "scroll", tabindex: "0" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", {}, "study"),
              el("th", {}, "state"),
              el("th", { class: "num" }, "trials"),
              el("th", { class: "num" }, "failed"),
              el("th", { class: "num" }, "do not fit"),
              el("th", {}, "best"),
              el("th", {}, "begun"),
            ),
          ),
          this.body,
        ),
      ),
    );
    this.load();
  }

  async load() {
    let list;
    try {
      list = (await getJSON("/api/studies")).studies;
    } catch (problem) {
      this.problem.hidden = false;
      this.problem.textContent = problem.message;
      return;
    }
    this.body.replaceChildren(...list.map(row));
    if (list.length === 0)
      this.body.append(
        el(
          "tr",
          {},
          el(
            "td",
            { colspan: "7", class: "soft" },
            "No studies yet. Begin one with: memroom tune --metric loss -- python train.py --lr 'loguniform(1e-5,1e-2)'",
          ),
        ),
      );
    if (!this.closed) this.timer = setTimeout(() => this.load(), 5000);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}

function row(s) {
  if (s.problem)
    return el(
      "tr",
      {},
      el("td", {}, s.name),
      el("td", { colspan: "6", class: "problem" }, s.problem),
    );
  const over = ["finished", "failed", "infeasible", "stopped"].reduce(
    (sum, k) => sum + (s.states[k] || 0),
    0,
  );
  const state = s.working
    ? ["running", "runs"]
    : over >= s.wanted
      ? ["ok", "over"]
      : ["failed", "stands still"];
  return el(
    "tr",
    {},
    el("td", {}, el("a", { href: `/studies/${encodeURIComponent(s.name)}` }, s.name)),
    el("td", {}, el("span", { class: `state ${state[0]}` }, state[1])),
    el("td", { class: "num" }, `${count(over)} of ${count(s.wanted)}`),
    el("td", { class: "num" }, count(s.states.failed || 0)),
    el("td", { class: "num" }, count(s.states.infeasible || 0)),
    el("td", {}, s.best === null ? "-" : `${s.metric} = ${Number(s.best.toPrecision(6))}`),
    el("td", {}, when(s.created)),
  );
}

export class ServedStudy {
  constructor(main, name) {
    document.title = `${name} · memroom`;
    this.main = main;
    this.at = `/api/studies/${encodeURIComponent(name)}`;
    this.name = name;
    this.load();
  }

  async load() {
    let data;
    try {
      data = await getJSON(this.at);
    } catch (problem) {
      this.main.replaceChildren(
        el("h1", {}, problem.status === 404 ? "No such study" : "The study cannot be shown"),
        el("p", { class: "problem", role: "alert" }, problem.message),
        el("p", {}, el("a", { href: "/studies" }, "All studies")),
      );
      return;
    }
    if (this.closed) return;
    this.main.replaceChildren(
      el("h1", {}, this.name),
      el("p", { class: "soft" }, el("code", {}, data.command.join(" "))),
    );
    const body = el("div");
    this.main.append(body);
    this.view = new StudyView(body, (run) => `/runs/${encodeURIComponent(run)}`);
    this.view.show(data);
    this.live = new Live(`${this.at}/live`, {
      changed: () => this.refresh(),
      link: (up) => linkState(up),
    });
    // bars that go on grow between two changes
    this.timer = setInterval(() => this.view.data.working && this.refresh(), 3000);
  }

  /** Asks for the newest state, one request at a time. */
  async refresh() {
    if (this.asking || this.closed) return;
    this.asking = true;
    try {
      const data = await getJSON(this.at);
      if (!this.closed) this.view.show(data);
    } catch {
      /* the line above says that the connection is lost */
    }
    this.asking = false;
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    if (this.live) this.live.close();
    if (this.view) this.view.close();
  }
}
