// How much of each kind of memory is left, as bars and in words.

import { beside, bytes, el, partOf, percent, span, when } from "memroom/format.js";

/** What is left: under the limit at the peak, or now where others on the machine leave less. */
export function leftOf(room) {
  const under = Math.max(0, room.limit - room.peak);
  return room.free !== undefined && room.free < under
    ? { bytes: room.free, now: true }
    : { bytes: under, now: false };
}

/** The rooms that a person should see: some kilobytes in /dev/shm are none of a data loader's. */
export function worthShowing(rooms) {
  return (rooms || []).filter((r) => r.kind !== "shm" || r.peak >= 2 ** 20);
}

/** Used or peak against the limit, as a bar without words. */
export function meter(room) {
  const used = room.now || room.peak;
  const share = room.limit > 0 ? Math.min(1, used / room.limit) : 0;
  const peak = room.limit > 0 ? Math.min(1, room.peak / room.limit) : 0;
  const full = room.limit > 0 ? 1 - leftOf(room).bytes / room.limit : 0;
  const bar = el("span", { class: `meter ${level(full)}`, "aria-hidden": "true" });
  const fill = el("span", { class: "fill" });
  fill.style.width = `${(share * 100).toFixed(1)}%`;
  const mark = el("span", { class: "peak" });
  mark.style.left = `${(peak * 100).toFixed(1)}%`;
  bar.append(fill, mark);
  return bar;
}

/** The same with its words. */
export function roomBar(room) {
  const text =
    room.limit > 0
      ? `${room.name}: ${room.now ? `${beside(room.now, room.limit)} now, ` : ""}peak ${partOf(room.peak, room.limit)}, ${percent(leftOf(room).bytes, room.limit)} left${leftOf(room).now ? " beside other processes" : ""}`
      : `${room.name}: peak ${bytes(room.peak)}`;
  return el("div", { class: "room" }, meter(room), el("span", { class: "room-text" }, text));
}

/** full, tight or fine: in words by the class, and by colour. */
export function level(share) {
  return share >= 0.97 ? "full" : share >= 0.85 ? "tight" : "fine";
}

export function forecastText(f) {
  return `${f.what}: runs out in about ${span(f.in_ns / 1e9)}, at step ${f.step} (${f.low_step} to ${f.high_step})`;
}

/** The sentence a person reads first, and how bad it is: bad, warn, good or plain. */
export function judgement(run) {
  if (run.status === "running") {
    if (run.forecasts && run.forecasts.length > 0)
      return ["bad", `Will run out of memory. ${run.forecasts.map(forecastText).join(". ")}.`];
    const worst = tightest(run.room);
    if (!worst) return ["plain", "Running; no readings yet."];
    const room = leftOf(worst);
    const left = `${bytes(room.bytes)} of ${worst.name} ${room.now ? "are left now, beside other processes" : "were left at the peak"} (${percent(room.bytes, worst.limit)}).`;
    const state = level(1 - room.bytes / worst.limit);
    if (state === "full") return ["bad", `Almost full: ${left}`];
    if (state === "tight") return ["warn", `Tight: ${left}`];
    return ["good", `Safe so far: ${left}`];
  }
  if (run.damaged) return ["warn", `The record is damaged: ${run.damaged}.`];
  if (run.is_oom) return ["bad", run.end ? run.end.headline : `Ran ${run.state}.`];
  if (run.state === "ok") return ["good", run.end ? run.end.headline : "Ended well."];
  if (run.status === "lost" && run.reported)
    return [
      "warn",
      `Not heard of since ${when(run.heard)}: ${run.host || "its machine"} or the network is away. The record goes on when it is back.`,
    ];
  if (run.status === "lost")
    return [
      "warn",
      run.left || "Nobody saw how it ended: memroom was killed, or the machine went down.",
    ];
  return ["warn", run.end ? run.end.headline : `Ended with ${run.state}.`];
}

/** The kind of memory with the least left, by share. */
export function tightest(rooms) {
  let worst = null;
  for (const r of rooms || [])
    if (r.limit > 0 && (!worst || leftOf(r).bytes / r.limit < leftOf(worst).bytes / worst.limit))
      worst = r;
  return worst;
}

export function stateMark(run) {
  const kind =
    run.status === "running"
      ? "running"
      : run.is_oom
        ? "oom"
        : run.state === "ok"
          ? "ok"
          : "failed";
  return el("span", { class: `state ${kind}` }, run.state);
}

/** Where a record comes from that another machine sends. */
export function fromText(r) {
  const off = r.clock_ahead_seconds || 0;
  const clock =
    off === 0
      ? ""
      : `; its clock is ${span(Math.abs(off))} ${off > 0 ? "ahead" : "behind"}, times are by this server's`;
  return `sent by ${r.host || "another machine"}${r.status === "lost" ? `, last heard ${when(r.heard)}` : ""}${clock}`;
}

/** What people know a run by. */
export function nameOf(r) {
  return r.name || r.script || r.id;
}

/** What became of a run, behind its name: "ran out of host memory". */
export function became(r) {
  const state = r.state || "";
  if (r.status === "running") return "is running";
  if (r.is_oom) return `ran ${state}`;
  if (state === "ok") return r.attempts > 1 ? `finished at attempt ${r.attempts}` : "finished";
  if (state === "interrupted") return "was interrupted";
  if (state.startsWith("exit ")) return `failed with exit code ${state.slice(5)}`;
  if (state.startsWith("unwatched")) return "goes on, and nobody watches it";
  return r.damaged ? "has a damaged record" : "was lost";
}
