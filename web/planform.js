// The plan: a form whose state is in the address, and the answer as a bar that moves with it.

import { bytes, count, el, percent } from "memroom/format.js";
import { getJSON } from "memroom/net.js";
import { typedLine } from "memroom/reason.js";

const fields = [
  {
    name: "preset",
    label: "model",
    list: "presets",
    text: "Qwen/Qwen2.5-7B",
    otherwise: "gpt2",
  },
  { name: "gpu", label: "card", list: "cards", text: "RTX 4090, 24GiB", otherwise: "24GiB" },
  { name: "batch", label: "batch", range: [1, 256], otherwise: "8" },
  { name: "seq", label: "sequence", range: [64, 32768], otherwise: "1024" },
  { name: "precision", label: "precision", from: "precisions", otherwise: "" },
  { name: "optimizer", label: "optimizer", from: "optimizers", otherwise: "adamw" },
  { name: "attn", label: "attention", options: ["sdpa", "eager", "flash"], otherwise: "sdpa" },
  { name: "checkpointing", label: "gradient checkpointing", check: true },
  { name: "lora-rank", label: "LoRA rank", range: [0, 256], otherwise: "0" },
  { name: "load-in", label: "load weights in", options: ["", "8bit", "4bit"], otherwise: "" },
  { name: "ranks", label: "ranks", range: [1, 64], otherwise: "1" },
  { name: "shard", label: "shard", from: "shards", otherwise: "" },
  { name: "devices", label: "spread over cards", text: "8xA100-80", otherwise: "" },
];

const shades = {
  weights: "#3b6fb6",
  gradients: "#d9822b",
  optimizer: "#7a4fa3",
  activations: "#3f9f6b",
  loss: "#c9423a",
  temporary: "#d7b93c",
  workspace: "#7d8a97",
  input: "#45b5c4",
  unknown: "#a9a39a",
  rounding: "#cfcac2",
  cache: "#b9c4cf",
  context: "#5c626b",
};

export class PlanView {
  constructor(main) {
    document.title = "Plan · memroom";
    this.form = el("form", { "aria-label": "Setup" });
    this.form.addEventListener("submit", (e) => e.preventDefault());
    this.form.addEventListener("dragover", (e) => e.preventDefault());
    this.form.addEventListener("drop", (e) => {
      e.preventDefault();
      this.take(e.dataTransfer.files[0]);
    });
    this.answer = el("section", { "aria-label": "Prediction" });
    main.append(
      el("h1", {}, "Plan: will it fit?"),
      el("div", { class: "plan" }, this.form, this.answer),
    );
    this.load();
  }

  async load() {
    try {
      this.names = await getJSON("/api/presets");
    } catch (problem) {
      this.fail(problem);
      return;
    }
    this.build();
    this.ask();
  }

  fail(problem) {
    this.answer.replaceChildren(el("p", { class: "problem", role: "alert" }, problem.message));
  }

  build() {
    const q = new URLSearchParams(location.search);
    this.inputs = {};
    for (const f of fields) {
      const id = `plan-${f.name}`;
      const value = q.get(f.name) ?? f.otherwise;
      let input;
      let beside = "";
      if (f.check) {
        input = el("input", { type: "checkbox", id });
        input.checked = q.get(f.name) === "true";
      } else if (f.range) {
        input = el("input", {
          type: "number",
          id,
          min: String(f.range[0]),
          max: String(f.range[1] * 1024),
        });
        input.value = value;
        beside = el("input", {
          type: "range",
          min: "0",
          max: "1000",
          "aria-label": `${f.label}, slider`,
        });
        const [low, high] = f.range;
        const scale = Math.log((high + 1) / (low + 1));
        const toSlider = () => {
          beside.value = String((1000 * Math.log((Number(input.value) + 1) / (low + 1))) / scale);
        };
        beside.addEventListener("input", () => {
          input.value = String(
            Math.round((low + 1) * Math.exp((Number(beside.value) / 1000) * scale) - 1),
          );
          this.changed();
        });
        input.addEventListener("input", toSlider);
        toSlider();
      } else if (f.from || f.options) {
        input = el(
          "select",
          { id },
          ...(f.options || this.names[f.from]).map((v) =>
            el("option", { value: v }, v || "(default)"),
          ),
        );
        if (value && ![...input.options].some((o) => o.value === value))
          input.append(el("option", { value }, value));
        input.value = value;
      } else {
        input = el("input", {
          type: "text",
          id,
          placeholder: f.text || "",
          list: f.list ? `plan-${f.list}` : undefined,
        });
        input.value = value;
      }
      input.addEventListener("input", () => this.changed());
      this.inputs[f.name] = input;
      this.form.append(
        el("label", { for: id }, f.label),
        el("span", { class: "pairs" }, input, beside),
      );
      if (f.name === "preset") this.form.append(...this.fileField());
    }
    this.form.append(
      el(
        "datalist",
        { id: "plan-presets" },
        ...this.names.presets.map((name) => el("option", { value: name })),
      ),
      el(
        "datalist",
        { id: "plan-cards" },
        ...this.names.cards.map((c) => el("option", { value: c.name }, bytes(c.total))),
      ),
    );
  }

  /** The way in for a model that has no name: its config.json, chosen or dropped. */
  fileField() {
    this.file = el("input", {
      type: "file",
      id: "plan-file",
      accept: ".json,application/json",
      onchange: (e) => this.take(e.target.files[0]),
    });
    this.chosen = el("span", { class: "soft small" }, "or drop one here");
    this.drop = el(
      "button",
      { type: "button", hidden: "", onclick: () => this.take(undefined) },
      "use the name again",
    );
    return [
      el("label", { for: "plan-file" }, "its config.json"),
      el("span", { class: "file" }, this.file, this.chosen, this.drop),
    ];
  }

  async take(file) {
    this.config = file ? await file.text() : undefined;
    this.chosen.textContent = file ? `planned: ${file.name}` : "or drop one here";
    this.drop.hidden = !file;
    this.inputs.preset.disabled = Boolean(file);
    if (!file) this.file.value = "";
    this.ask();
  }

  /** The answer about a setup; the model is its file where there is one. */
  predict(q, signal) {
    if (this.config === undefined) return getJSON(`/api/plan?${q}`, { signal });
    const without = new URLSearchParams(q);
    without.delete("preset");
    return getJSON(`/api/plan?${without}`, {
      signal,
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: this.config,
    });
  }

  query() {
    const q = new URLSearchParams();
    for (const f of fields) {
      const input = this.inputs[f.name];
      const value = f.check ? (input.checked ? "true" : "") : input.value.trim();
      if (
        value &&
        !(f.name === "lora-rank" && value === "0") &&
        !(f.name === "ranks" && value === "1")
      )
        q.set(f.name, value);
    }
    return q;
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      history.replaceState(null, "", `/plan?${this.query()}`);
      this.ask();
    }, 150);
  }

  async ask() {
    if (this.stop) this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    const q = this.query();
    this.answer.setAttribute("aria-busy", "true");
    try {
      const quick = await this.predict(q, signal);
      this.show(quick);
      if (quick.prediction.fits === false && !quick.device_map) {
        q.set("fit", "true");
        this.ladder(await this.predict(q, signal));
        q.delete("fit");
      }
      if (!quick.device_map) {
        await this.curve("batch", quick.prediction, signal);
        await this.curve("seq", quick.prediction, signal);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") this.fail(problem);
      else return;
    }
    this.answer.setAttribute("aria-busy", "false");
  }

  show({ prediction: p, device_map: map, command }) {
    const total = !map && p.card && p.fits !== null ? p.card.total : 0;
    const most = Math.max(total, p.device_peak) || 1;
    const bar = el("div", {
      class: "plan-bar",
      role: "img",
      "aria-label": `${bytes(p.device_peak)} of ${total ? bytes(total) : "an unnamed card"}`,
    });
    const rows = [];
    for (const [name, size] of Object.entries(p.categories)
      .filter(([, v]) => v > 0)
      .sort((a, b) => b[1] - a[1])) {
      const part = el("span");
      part.style.width = `${(100 * size) / most}%`;
      part.style.background = shades[name] || shades.unknown;
      bar.append(part);
      const box = el("span", { class: "swatch" });
      box.style.background = shades[name] || shades.unknown;
      rows.push(
        el(
          "tr",
          {},
          el("td", {}, box, name),
          el("td", { class: "num" }, bytes(size)),
          el("td", { class: "num" }, percent(size, p.device_peak)),
        ),
      );
    }
    if (total) {
      const wall = el("span", { class: "wall" });
      wall.style.left = `${Math.min(99.8, (100 * total) / most)}%`;
      bar.append(wall);
    }
    const verdict = map
      ? mapVerdict(map)
      : p.fits === null
        ? ["plain", `Needs ${bytes(p.device_peak)}.`]
        : p.fits
          ? [
              "good",
              `Fits: ${bytes(p.device_peak)} of ${bytes(total)}, ${bytes(Math.max(0, total - p.high))} left at least.`,
            ]
          : [
              p.verdict === "probably fits" ? "warn" : "bad",
              `${p.verdict[0].toUpperCase()}${p.verdict.slice(1)}: needs ${bytes(p.device_peak)} of ${bytes(p.room)}, at most ${bytes(p.high)}.`,
            ];
    const facts = [
      ["interval", `${bytes(p.low)} to ${bytes(p.high)}`],
      ["allocated", bytes(p.allocated_peak)],
      ["reserved", bytes(p.reserved_peak)],
      ["peak in", `${p.phase}${p.peak_op ? `, ${p.peak_op}` : ""}`],
      [
        "largest batch",
        p.max_batch === null || p.max_batch === undefined ? "" : count(p.max_batch),
      ],
      ["longest sequence", p.max_seq ? count(p.max_seq) : ""],
      ["parameters", p.parameters ? count(p.parameters) : ""],
    ];
    this.answer.replaceChildren(
      el(
        "div",
        { class: `banner ${verdict[0]}`, role: "status" },
        el("p", { class: "headline" }, verdict[1]),
        el("div", { class: "soft" }, p.assumed),
      ),
      bar,
      el("table", {}, el("tbody", {}, ...rows)),
      el("h2", {}, "Figures"),
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          ...facts
            .filter(([, v]) => v)
            .map(([k, v]) => el("tr", {}, el("th", { scope: "row" }, k), el("td", {}, v))),
        ),
      ),
      el("ul", { class: "notes" }, ...(p.warnings || []).map((w) => el("li", {}, w))),
      map ? this.map(map) : "",
      el("div", { id: "ladder" }),
      el("div", { id: "curves", class: "curves" }),
      el("h2", {}, "The same in a terminal"),
      typedLine(command),
    );
  }

  map(m) {
    const rows = m.devices.map((d, i) =>
      el(
        "tr",
        {},
        el("td", {}, `${i}: ${d.name}`),
        el("td", { class: "num" }, bytes(d.device_peak)),
        el("td", { class: "num" }, bytes(d.total)),
        el("td", {}, d.units.join(", ")),
      ),
    );
    return el(
      "div",
      {},
      el("h2", {}, "Device map"),
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", {}, "card"),
            el("th", { class: "num" }, "needs"),
            el("th", { class: "num" }, "of"),
            el("th", {}, "holds"),
          ),
        ),
        el("tbody", {}, ...rows),
      ),
    );
  }

  /** How the need grows with one number, with the card's line. */
  async curve(name, p, signal) {
    const here = Number(this.inputs[name].value);
    if (!(here > 0) || !p.parameters) return;
    const points = [];
    // a model may take no longer sequence than this one, but for the longest that fits
    const factors = name === "seq" ? [0.125, 0.25, 0.5, 1] : [0.25, 0.5, 1, 2, 4];
    const values = factors.map((factor) => Math.max(1, Math.round(here * factor)));
    if (name === "seq" && p.max_seq > here) values.push(p.max_seq);
    for (const value of new Set(values)) {
      const q = this.query();
      q.set(name, String(value));
      const { prediction } = value === here ? { prediction: p } : await this.predict(q, signal);
      points.push({ value, need: prediction.device_peak, verdict: prediction.verdict });
    }
    const at = document.getElementById("curves");
    if (!at || points.length < 2) return;
    const total = p.card && p.fits !== null ? p.card.total : 0;
    at.append(curvePicture(name === "seq" ? "sequence" : name, points, total, here));
  }

  ladder({ ladder: l }) {
    const at = document.getElementById("ladder");
    if (!l || !at) return;
    // The remedy's own title speaks of one halving; the search may have halved several times.
    const title = (r) =>
      r.pieces > 1 ? `${r.pieces} micro-batches, gradients accumulated over them` : r.title;
    const row = (r) =>
      el(
        "tr",
        {},
        el("td", {}, title(r)),
        el("td", { class: "num" }, bytes(r.saves)),
        el("td", { class: "num" }, bytes(r.device_peak)),
        el("td", { class: "num" }, r.slowdown ? `${r.slowdown.toFixed(2)} x` : "-"),
        el("td", {}, r.equivalence),
        el("td", {}, r.fits ? "yes" : "no"),
      );
    const table = (list) =>
      el(
        "table",
        {},
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", {}, "remedy"),
            el("th", { class: "num" }, "saves"),
            el("th", { class: "num" }, "then needs"),
            el("th", { class: "num" }, "step takes"),
            el("th", {}, "results"),
            el("th", {}, "fits"),
          ),
        ),
        el("tbody", {}, ...list.map(row)),
      );
    at.replaceChildren(
      el(
        "h2",
        {},
        l.fits
          ? "The cheapest way to make it fit, each on top of the ones before"
          : "What helps, though not enough",
      ),
      l.reason ? el("p", { class: "problem" }, l.reason) : "",
      (l.remedies || []).length > 0 ? table(l.remedies) : "",
      (l.alone || []).length > 0
        ? el("details", {}, el("summary", {}, "each remedy by itself"), table(l.alone))
        : "",
    );
  }

  close() {
    clearTimeout(this.timer);
    if (this.stop) this.stop.abort();
  }
}

/** The verdict about several cards: what was asked, not one of them. */
function mapVerdict(map) {
  const fullest = map.devices.reduce((a, b) =>
    b.device_peak / b.total > a.device_peak / a.total ? b : a,
  );
  const text = `the fullest needs ${bytes(fullest.device_peak)} of ${bytes(fullest.total)}`;
  const cards = map.devices.length === 1 ? "this card" : `these ${count(map.devices.length)} cards`;
  return map.fits
    ? ["good", `Fits on ${cards}: ${text}.`]
    : ["bad", `Does not fit on ${cards}: ${text}.`];
}

/** The need over batch or sequence as a table with bars: it reads the same to everybody. */
function curvePicture(name, points, total, here) {
  const most = Math.max(total, ...points.map((x) => x.need));
  const rows = points.map(({ value, need, verdict }) => {
    const bar = el("span", { class: `need ${total && need > total ? "over" : ""}` });
    bar.style.width = `${(100 * need) / most}%`;
    const ground = el("span", { class: "plan-curve", "aria-hidden": "true" }, bar);
    if (total) {
      const wall = el("span", { class: "wall" });
      wall.style.left = `${Math.min(99.5, (100 * total) / most)}%`;
      ground.append(wall);
    }
    return el(
      "tr",
      { class: value === here ? "best" : undefined },
      el("td", { class: "num" }, count(value)),
      el("td", { class: "wide" }, ground),
      el("td", { class: "num" }, bytes(need)),
      total ? el("td", {}, verdict) : "",
    );
  });
  return el(
    "table",
    {},
    el("caption", {}, `Need over ${name}${total ? `; the line is the card, ${bytes(total)}` : ""}`),
    el("tbody", {}, ...rows),
  );
}
