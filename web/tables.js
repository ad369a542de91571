// Tables and the legend: the same facts as the pictures, as text.

import { bytes, count, el, frameText, percent } from "memroom/format.js";
import { categories, colour } from "memroom/palette.js";

/** The legend: one switch a category, with what it holds at the moment. */
export function legend(target, device, live, rest, hidden, toggle) {
  const sums = new Map(categories.map((c) => [c, 0]));
  let total = rest;
  for (const i of live) {
    sums.set(device.category(i), sums.get(device.category(i)) + device.size[i]);
    total += device.size[i];
  }
  const items = [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]);
  target.replaceChildren(
    ...items.map(([name, sum]) =>
      el(
        "button",
        {
          type: "button",
          class: hidden.has(name) ? "key off" : "key",
          "data-category": name,
          "aria-pressed": String(!hidden.has(name)),
          onclick: () => toggle(name),
        },
        swatch(name),
        `${name} `,
        el("b", {}, bytes(sum)),
        ` ${percent(sum, total)}`,
      ),
    ),
  );
  if (rest > 0)
    target.append(
      el("span", { class: "key" }, swatch("rest"), "small blocks ", el("b", {}, bytes(rest))),
    );
}

function swatch(name) {
  const box = el("span", { class: "swatch" });
  box.style.background = colour(name);
  return box;
}

/** What lives at the moment by call stack, the largest first. */
export function groupTable(target, device, live, found = null, limit = 40) {
  const groups = new Map();
  for (const i of live) {
    if (found && !found.has(device.stack[i])) continue;
    const key = `${device.stack[i]} ${device.kind[i]}`;
    const g = groups.get(key) || { block: i, bytes: 0, blocks: 0 };
    g.bytes += device.size[i];
    g.blocks++;
    groups.set(key, g);
  }
  const rows = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  const total = rows.reduce((sum, g) => sum + g.bytes, 0);
  target.replaceChildren(
    ...rows
      .slice(0, limit)
      .map((g) =>
        el(
          "tr",
          {},
          el("td", { class: "num" }, bytes(g.bytes)),
          el("td", { class: "num" }, percent(g.bytes, total)),
          el("td", { class: "num" }, count(g.blocks)),
          el("td", {}, swatch(device.category(g.block)), device.category(g.block)),
          el("td", {}, stackCell(device, g.block)),
        ),
      ),
  );
  if (rows.length > limit) {
    const others = rows.slice(limit).reduce((sum, g) => sum + g.bytes, 0);
    target.append(
      el(
        "tr",
        {},
        el("td", { class: "num" }, bytes(others)),
        el("td", { class: "num" }, percent(others, total)),
        el("td"),
        el("td"),
        el("td", {}, `${count(rows.length - limit)} more stacks`),
      ),
    );
  }
}

function stackCell(device, block) {
  const frames = device.frames(block);
  if (frames.length === 0) {
    return device.start[block] < 0
      ? "(made before recording began)"
      : "(no Python stack: made by the autograd engine or a library)";
  }
  const telling = tellingFrames(frames);
  return el(
    "details",
    {},
    el("summary", {}, telling.map(frameText).join(" ← ")),
    el(
      "ol",
      { class: "stack" },
      ...frames.map(([file, name, line]) => el("li", {}, `${file}:${line} ${name}`)),
    ),
  );
}

/**
 * The innermost frame and the first two others that are no plumbing; Python's before those of C++.
 */
export function tellingFrames(frames) {
  const plumbing = new Set(["_call_impl", "_wrapped_call_impl", "wrapper", "decorate_context"]);
  const useful = frames.filter(
    ([, name]) =>
      !plumbing.has(name) &&
      !name.startsWith("torch::unwind") &&
      !name.startsWith("torch::CapturedTraceback"),
  );
  const python = useful.filter(([file]) => file.endsWith(".py"));
  return (python.length > 0 ? python : useful).slice(0, 3);
}

/** A plain table from rows of cells; the first column is text, the others numbers. */
export function plainTable(target, heads, rows) {
  target.replaceChildren(
    el(
      "thead",
      {},
      el("tr", {}, ...heads.map((h, i) => el("th", { class: i > 0 ? "num" : undefined }, h))),
    ),
    el(
      "tbody",
      {},
      ...rows.map((row) =>
        el(
          "tr",
          { class: row.class },
          ...row.cells.map((cell, i) => el("td", { class: i > 0 ? "num" : undefined }, cell)),
        ),
      ),
    ),
  );
}
