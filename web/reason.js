// Why memory ran out, in words, with the cures and what to type for each.

import { el } from "memroom/format.js";

/** The elements of an explanation, the one cure that is best first. */
export function reasonParts(reason) {
  const [few, rest] = [reason.evidence || [], []];
  if (few.length > 3) rest.push(...few.slice(3));
  const list = (items) => el("ul", {}, ...items.map((e) => el("li", {}, e)));
  const cures = reason.cures || [];
  return [
    el("p", { class: "verdict" }, reason.verdict),
    list([...(reason.line ? [`your line: ${reason.line}`] : []), ...few.slice(0, 3)]),
    rest.length > 0
      ? el("details", {}, el("summary", {}, `${rest.length} more pieces of evidence`), list(rest))
      : "",
    cures.length > 0 ? el("ol", { class: "cures" }, ...cures.slice(0, 3).map(cure)) : "",
    cures.length > 3
      ? el(
          "details",
          {},
          el("summary", {}, `${cures.length - 3} more that may help`),
          el("ol", { class: "cures", start: "4" }, ...cures.slice(3).map(cure)),
        )
      : "",
    reason.next ? el("p", {}, el("b", {}, `${reason.when} `), reason.next) : "",
    ...(reason.warnings || []).map((w) => el("p", { class: "soft" }, w)),
  ];
}

function cure(c) {
  return el(
    "li",
    {},
    el("b", {}, c.title),
    el("span", { class: "soft" }, ` ${c.cost}`),
    c.typed ? typedLine(c.typed) : "",
    c.words ? el("p", { class: "soft" }, c.words) : "",
  );
}

/** What to type, with a button that copies it. */
export function typedLine(text) {
  const label = `copy ${text.split("\n")[0]}`;
  const button = el("button", { type: "button", "aria-label": label }, "copy");
  button.addEventListener("click", () => copy(button, text));
  return el("div", { class: "typed" }, el("code", {}, text), button);
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
