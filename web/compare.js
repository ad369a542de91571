// Two runs side by side.

import { bytes, count, el, span } from "memroom/format.js";
import { getJSON } from "memroom/net.js";
import { Course } from "memroom/course.js";

export class CompareView {
  constructor(main) {
    document.title = "Compare · memroom";
    this.main = main;
    this.stop = new AbortController();
    this.load();
  }

  async load() {
    const q = new URLSearchParams(location.search);
    let both;
    try {
      both = await getJSON(
        `/api/compare?a=${encodeURIComponent(q.get("a") || "")}&b=${encodeURIComponent(q.get("b") || "")}`,
      );
    } catch (problem) {
      this.main.append(
        el("h1", {}, "Compare"),
        el("p", { class: "problem", role: "alert" }, problem.message),
        el("p", {}, el("a", { href: "/" }, "Choose two runs")),
      );
      return;
    }
    const name = (r) => r.name || r.id;
    const head = (r) =>
      el("th", { scope: "col" }, el("a", { href: `/runs/${encodeURIComponent(r.id)}` }, name(r)));
    const rows = both.rows.map((row) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, row.name),
        el("td", {}, value(row.a, row.unit, row.text_a)),
        el("td", {}, value(row.b, row.unit, row.text_b)),
        el("td", { class: "soft" }, change(row)),
      ),
    );
    this.main.append(
      el("h1", {}, "Compare two runs"),
      el(
        "div",
        { class: "scroll", tabindex: "0" },
        el(
          "table",
          { class: "compare" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", {}, el("span", { class: "unseen" }, "what is compared")),
              head(both.a),
              head(both.b),
              el("th", {}, "second against first"),
            ),
          ),
          el("tbody", {}, ...rows),
        ),
      ),
    );
    const courses = el("div", { class: "pair" });
    this.main.append(courses);
    const opened = [];
    for (const r of [both.a, both.b]) {
      const canvas = el("canvas", {
        tabindex: "0",
        role: "img",
        "aria-label": `Memory over time of ${name(r)}`,
      });
      courses.append(el("section", {}, el("h2", {}, name(r)), canvas));
      const course = new Course(
        canvas,
        (from, to, points) =>
          getJSON(
            `/api/runs/${encodeURIComponent(r.id)}/series?points=${points}&from=${from}${to === undefined ? "" : `&to=${to}`}`,
          ),
        { cursor: () => {}, view: () => {} },
      );
      course.hostLimit = r.run.host_mem || 0;
      opened.push(course.open().then(() => course));
      window.addEventListener("resize", () => course.request(), { signal: this.stop.signal });
    }
    try {
      const [a, b] = await Promise.all(opened);
      a.standBeside(b);
      b.standBeside(a);
    } catch (problem) {
      courses.append(el("p", { class: "problem" }, problem.message));
    }
  }

  close() {
    this.stop.abort();
  }
}

function value(v, unit, text) {
  if (unit === "text") return text || "-";
  if (v === null || v === undefined) return "-";
  if (unit === "bytes") return bytes(v);
  if (unit === "seconds") return span(v);
  if (unit === "ms") return `${v.toFixed(1)} ms`;
  return count(v);
}

function change(row) {
  if (row.unit === "text") return (row.text_a || "") === (row.text_b || "") ? "same" : "differs";
  if (row.a === null || row.b === null || row.a === undefined || row.b === undefined) return "";
  const d = row.b - row.a;
  if (d === 0) return "same";
  const part = row.a !== 0 ? d / Math.abs(row.a) : 0;
  const share =
    Math.abs(part) < 0.0005
      ? ""
      : part > 9
        ? ` (${(part + 1).toFixed(0)} times)`
        : ` (${d > 0 ? "+" : ""}${(100 * part).toFixed(1)} %)`;
  const text =
    row.unit === "bytes"
      ? bytes(d)
      : row.unit === "seconds"
        ? `${d < 0 ? "-" : ""}${span(Math.abs(d))}`
        : row.unit === "ms"
          ? `${d.toFixed(1)} ms`
          : count(d);
  return `${d > 0 ? "+" : ""}${text}${share}`;
}
