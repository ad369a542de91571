// Words and numbers as people read them, and elements made without ever parsing HTML: text from
// files is only text.

const units = [
  ["PiB", 2 ** 50],
  ["TiB", 2 ** 40],
  ["GiB", 2 ** 30],
  ["MiB", 2 ** 20],
  ["KiB", 2 ** 10],
];

/** 1610612736 -> "1.5GiB": as the terminal writes it. */
export function bytes(n) {
  if (n < 0) return "-" + bytes(-n);
  for (const [i, [name, size]] of units.entries()) {
    if (n < size) continue;
    const text = (n / size).toFixed(2).replace(/\.?0+$/, "");
    return text === "1024" && i > 0 ? `1${units[i - 1][0]}` : text + name;
  }
  return `${n}B`;
}

/** A limit as a person sets it: "1500MiB", where bytes rounds to "1.46GiB". */
export function asSet(n) {
  const unit = units.slice(0, 4).find(([, size]) => n % size === 0 && n / size < 10000);
  return unit && n > 0 ? `${n / unit[1]}${unit[0]}` : bytes(n);
}

/** A size in the unit of a limit that stands next to it, as long as that shows it. */
export function beside(n, limit) {
  const unit = units.find(([name]) => asSet(limit).endsWith(name));
  if (!unit || !(limit > 0) || n < unit[1] / 10) return bytes(n);
  return (n / unit[1]).toFixed(2).replace(/\.?0+$/, "") + unit[0];
}

/** A size and the limit that it is a part of, in one unit: "1198.5MiB of 1200MiB". */
export function partOf(n, limit) {
  return `${beside(n, limit)} of ${asSet(limit)}`;
}

const whole = new Intl.NumberFormat("en");

export function count(n) {
  return whole.format(n);
}

export function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.0995 ? 1 : 0)} %` : "0 %";
}

export function seconds(s) {
  if (s < 0.001) return "0 s";
  if (s < 1) return `${(s * 1000).toFixed(0)} ms`;
  return s < 120 ? `${s.toFixed(2)} s` : `${(s / 60).toFixed(1)} min`;
}

/** 3725 -> "1:02:05"; 42.5 -> "0:42" */
export function clock(s) {
  const [h, m, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, Math.floor(s) % 60];
  const two = (n) => String(n).padStart(2, "0");
  return h > 0 ? `${h}:${two(m)}:${two(rest)}` : `${m}:${two(rest)}`;
}

/** 3725 -> "1 h 2 min": how long something took, as the terminal writes it. */
export function span(s) {
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** Milliseconds in the unit that people use for so much: "12.3 ms", "55.0 s". */
export function duration(ms) {
  if (ms < 999.5) return `${Number(ms.toPrecision(3))} ms`;
  return ms < 99950 ? `${(ms / 1000).toPrecision(3)} s` : span(ms / 1000);
}

/** el("td", {class: "num"}, "12") */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const child of children) node.append(child);
  return node;
}

/** "modeling_gpt2.py:239 forward" */
export function frameText([file, name, line]) {
  const base = file.replace(/\\/g, "/").split("/").pop() || file;
  return `${base}:${line} ${shortName(name)}`;
}

/** A C++ function without its arguments. */
function shortName(name) {
  const plain = name.replaceAll("(anonymous namespace)::", "");
  return plain.includes("::") ? plain.replace(/\(.*$/, "") : plain;
}

/** "16 Nov 04:12", by this machine's clock; runs of other machines carry their own. */
export function when(text) {
  const t = new Date(text);
  if (Number.isNaN(t.getTime()) || t.getTime() < 0) return "";
  const ahead = t.getTime() - Date.now() > 60000 ? " (its clock is ahead of this one)" : "";
  return (
    t.toLocaleString("en-GB", {
      day: "numeric",
      month: "short",
      hour: "2-digit",
      minute: "2-digit",
    }) + ahead
  );
}

/** "3 min ago"; of more than a week the day. */
export function ago(text) {
  const s = (Date.now() - new Date(text).getTime()) / 1000;
  if (Number.isNaN(s) || s < -60 || s > 7 * 86400) return when(text);
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  return s < 86400 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86400)} d ago`;
}
