// The served page: which view an address shows, and what all views have in common.

import { el } from "memroom/format.js";
import { RunsView } from "memroom/runs.js";
import { ServedRun } from "memroom/served.js";
import { CompareView } from "memroom/compare.js";
import { SnapshotsView } from "memroom/snapshots.js";
import { PlanView } from "memroom/planform.js";
import { redraw } from "memroom/status.js";
import { ServedStudy, StudiesView } from "memroom/studies.js";

const views = [
  [/^\/(?:runs)?$/, "runs", (main) => new RunsView(main)],
  [/^\/runs\/([^/]+)$/, "runs", (main, id) => new ServedRun(main, id)],
  [/^\/compare$/, "runs", (main) => new CompareView(main)],
  [/^\/snapshots$/, "snapshots", (main) => new SnapshotsView(main)],
  [/^\/snapshots\/([^/]+)$/, "snapshots", (main, id) => new SnapshotsView(main, id)],
  [/^\/plan$/, "plan", (main) => new PlanView(main)],
  [/^\/studies$/, "studies", (main) => new StudiesView(main)],
  [/^\/studies\/([^/]+)$/, "studies", (main, name) => new ServedStudy(main, name)],
];

let current = null;

/** Starts the page. */
export function start() {
  theme();
  document.addEventListener("click", (e) => {
    const link = e.target.closest && e.target.closest("a[href]");
    if (
      !link ||
      e.button !== 0 ||
      e.ctrlKey ||
      e.metaKey ||
      e.shiftKey ||
      link.target ||
      link.hasAttribute("download")
    )
      return;
    if (link.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
    e.preventDefault();
    history.pushState(null, "", link.href);
    show(true);
  });
  window.addEventListener("popstate", () => show(true));
  show(false);
}

function show(moved) {
  if (current && current.close) current.close();
  current = null;
  const main = document.getElementById("main");
  main.replaceChildren();
  const link = document.getElementById("link-state");
  [link.textContent, link.className] = ["", ""];
  for (const [form, page, make] of views) {
    const found = location.pathname.match(form);
    if (!found) continue;
    for (const link of document.querySelectorAll("nav [data-page]")) {
      if (link.dataset.page === page) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    current = make(main, found[1] && decodeURIComponent(found[1]));
    if (moved) main.focus();
    return;
  }
  document.title = "Nothing here · memroom";
  for (const link of document.querySelectorAll("nav [aria-current]"))
    link.removeAttribute("aria-current");
  main.append(
    el("h1", {}, "Nothing here"),
    el("p", {}, `Nothing is shown at ${location.pathname}: it may be misspelt.`),
    el("p", {}, el("a", { href: "/" }, "All runs"), ", ", el("a", { href: "/plan" }, "a plan")),
  );
}

/** Light or dark: the system's choice until the button is pressed. */
function theme() {
  const root = document.documentElement;
  let kept = null;
  try {
    kept = localStorage.getItem("memroom-theme");
  } catch {
    /* storage is switched off */
  }
  if (kept) root.dataset.theme = kept;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try {
      localStorage.setItem("memroom-theme", root.dataset.theme);
    } catch {
      /* it lasts until the page is left */
    }
    redraw();
  });
}
