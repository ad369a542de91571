// A run in one file: the same view as the served page, its data inside.

import { RunView } from "memroom/run.js";

/** Shows the run of a decoded payload. */
export async function showRunFile(payload) {
  const { moments } = payload;
  const view = new RunView({
    record: payload.record,
    live: false,
    series: async () => structuredClone(payload.series),
    account: async (ms) => nearest(moments, ms),
    events: async () => payload.events,
    reports: async () => payload.reports,
    explanation: async () => payload.explanation,
    log: async (stream) => payload.logs[stream] || { text: "", from: 0, next: 0 },
  });
  await view.open();
}

/** The last account that was made before a moment, else the first. */
function nearest(moments, ms) {
  let best = moments[0] || { at_ms: 0 };
  for (const m of moments) if (m.at_ms <= ms) best = m;
  return best;
}
