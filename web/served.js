// A run on the served page: its data comes from the server, and goes on coming while it lives.

import { el } from "memroom/format.js";
import { Live, getJSON } from "memroom/net.js";
import { RunView } from "memroom/run.js";
import { linkState } from "memroom/status.js";

export class ServedRun {
  constructor(main, id) {
    this.main = main;
    this.at = `/api/runs/${encodeURIComponent(id)}`;
    this.load();
  }

  async load() {
    let record;
    try {
      record = await getJSON(this.at);
    } catch (problem) {
      this.main.replaceChildren(
        el("h1", {}, problem.status === 404 ? "No such run" : "The run cannot be shown"),
        el("p", { class: "problem", role: "alert" }, problem.message),
        el("p", {}, el("a", { href: "/" }, "All runs")),
      );
      return;
    }
    if (this.closed) return;
    this.main.replaceChildren(document.getElementById("run-template").content.cloneNode(true));
    const query = (values) =>
      new URLSearchParams(Object.entries(values).filter(([, v]) => v !== undefined)).toString();
    this.view = new RunView({
      record,
      live: true,
      series: (from, to, points) => getJSON(`${this.at}/series?${query({ from, to, points })}`),
      account: (ms) => getJSON(`${this.at}/account?at_ms=${Math.round(ms)}`),
      events: () => this.events(),
      reports: () => getJSON(`${this.at}/reports`),
      explanation: async () => (await getJSON(`${this.at}/explanation`)).explanation,
      log: (stream) => getJSON(`${this.at}/log?stream=${stream}`),
    });
    try {
      await this.view.open();
    } catch (problem) {
      this.main.prepend(el("p", { class: "problem", role: "alert" }, problem.message));
      return;
    }
    if (record.status === "running" && !this.closed) this.follow();
  }

  async events() {
    const all = [];
    for (let cursor = 0, more = true; more && all.length < 20000;) {
      const page = await getJSON(`${this.at}/events?cursor=${cursor}`);
      all.push(...page.events);
      [cursor, more] = [page.next, page.more];
    }
    return all;
  }

  /** Begins where the pictures end, so that no reading is missing between the two. */
  follow() {
    const { data } = this.view.course;
    // a sketch does not reach the end: then from the end on
    const at =
      data.samples.sketch || data.steps.sketch
        ? ""
        : `?from=${data.samples.offset}.${data.steps.offset}.0`;
    const seen = new Set(this.view.events.map((h) => `${h.at_ms} ${h.kind} ${h.text || ""}`));
    let refetch = false;
    this.received = 0;
    this.live = new Live(`${this.at}/live${at}`, {
      samples: async (list) => {
        this.received += list.length;
        const full = this.view.course.append(list, []);
        if (full && !refetch) {
          refetch = true;
          const c = this.view.course;
          await c.fetch(c.from === 0 ? 0 : Math.max(0, 2 * c.from - c.to), 2 ** 50);
          refetch = false;
        }
        this.view.courseText();
      },
      steps: (list) => {
        this.view.course.append([], list);
      },
      events: (list) => {
        const fresh = list.filter((h) => !seen.has(`${h.at_ms} ${h.kind} ${h.text || ""}`));
        if (fresh.length === 0) return;
        this.view.events.push(...fresh);
        this.view.showEvents();
      },
      state: (overview) => this.state(overview),
      over: () => {
        this.live.close();
        linkState(true);
        document.getElementById("link-state").textContent = "the run is over";
        this.reload();
      },
      link: (up) => linkState(up),
    });
  }

  state(overview) {
    Object.assign(this.view.record, overview);
    this.view.banner(this.view.record);
    this.view.keepUp();
    this.view.showRecord(this.view.record);
    if (Date.now() - (this.logged || 0) > 2000) {
      this.logged = Date.now();
      this.view.showReports();
      const log = document.getElementById("log");
      if (log && log.scrollTop + log.clientHeight >= log.scrollHeight - 30)
        this.view.showLog(this.view.stream);
    }
  }

  /** Once more when the run is over: the final report is there. */
  async reload() {
    try {
      this.view.showRecord(await getJSON(this.at));
      this.view.showLog(this.view.stream);
      this.view.showReports();
      this.view.showReason();
    } catch {
      /* it was deleted meanwhile: what is shown stays */
    }
  }

  close() {
    this.closed = true;
    if (this.live) this.live.close();
    if (this.view) this.view.close();
  }
}
