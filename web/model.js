// One device's history: which blocks live when. Moments are indexes of recorded entries.

import { categories } from "memroom/palette.js";

export class Device {
  /** data: one element of the payload's devices. */
  constructor(data) {
    Object.assign(this, data);
    this.names = categories;
    this.length = this.start.length;
    this.last = Math.max(0, this.entries - 1);
    this.peakAt = Math.max(0, this.snapshot.peak.at);
    this.buildChanges();
  }

  /**
   * changeAt and changeSum: where the allocated bytes change and what they are then, without the
   * smallest blocks.
   */
  buildChanges() {
    const freed = new Float64Array(this.length); // its end, then its index: numbers sort fast
    let count = 0;
    for (let i = 0; i < this.length; i++)
      if (this.end[i] <= this.entries) freed[count++] = this.end[i] * 2 ** 21 + i;
    const ends = new Int32Array(count);
    freed
      .subarray(0, count)
      .sort()
      .forEach((key, i) => {
        ends[i] = key % 2 ** 21;
      });
    this.changeAt = new Int32Array(this.length + ends.length);
    this.changeSum = new Float64Array(this.length + ends.length);
    let sum = 0;
    for (let i = 0, j = 0, n = 0; n < this.changeAt.length; n++) {
      const until = j < ends.length ? this.end[ends[j]] : Infinity;
      if (i < this.length && this.start[i] < until) {
        sum += this.size[i];
        this.changeAt[n] = this.start[i++];
      } else {
        sum -= this.size[ends[j++]];
        this.changeAt[n] = until;
      }
      this.changeSum[n] = sum;
    }
  }

  /** The blocks that live at a moment, oldest first. */
  liveAt(at) {
    const live = [];
    for (let i = 0; i < this.length && this.start[i] <= at; i++) {
      if (this.end[i] > at) live.push(i);
    }
    return live;
  }

  /** Bytes of the blocks too small to be listed one by one. */
  restAt(at) {
    return stepValue(this.restWhen, this.restBytes, at);
  }

  reservedAt(at) {
    return stepValue(this.reservedWhen, this.reservedBytes, at);
  }

  allocatedAt(at) {
    return stepValue(this.changeAt, this.changeSum, at) + this.restAt(at);
  }

  secondsAt(at) {
    return stepValue(this.timeWhen, this.timeSeconds, at);
  }

  category(i) {
    return categories[this.kind[i]] || "unknown";
  }

  frames(i) {
    return (this.stacks[this.stack[i]] || []).map((f) => this.frameTable[f]);
  }

  /**
   * The stacks in which a text occurs, in the name of a function or of a file; null for no text.
   */
  findStacks(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const frames = new Set();
    this.frameTable.forEach(([file, name], i) => {
      if (`${name} ${file}`.toLowerCase().includes(wanted)) frames.add(i);
    });
    const found = new Set();
    this.stacks.forEach((stack, i) => {
      if (stack.some((f) => frames.has(f))) found.add(i);
    });
    return found;
  }

  /** The most that the blocks of some stacks held at once, and when. */
  peakOf(stacks) {
    const changes = [];
    for (let i = 0; i < this.length; i++) {
      if (!stacks.has(this.stack[i])) continue;
      changes.push([this.start[i], this.size[i]]);
      if (this.end[i] <= this.entries) changes.push([this.end[i], -this.size[i]]);
    }
    changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let [sum, best, at] = [0, 0, 0];
    for (const [when, size] of changes) {
      sum += size;
      if (sum > best) [best, at] = [sum, Math.max(0, when)];
    }
    return { bytes: best, at };
  }

  /** The step and phase at a moment. */
  markAt(at) {
    const marks = this.snapshot.marks || [];
    let low = 0;
    let high = marks.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (marks[mid].at <= at) low = mid + 1;
      else high = mid;
    }
    return marks[low - 1] || { step: 0, phase: "unknown" };
  }

  /**
   * The reserved ranges at a moment by address; neighbouring pages of expandable segments are one.
   */
  segmentsAt(at) {
    const found = [];
    for (let i = 0; i < this.segStart.length; i++) {
      if (this.segStart[i] <= at && this.segEnd[i] > at) {
        found.push({
          begin: this.segAddr[i],
          end: this.segAddr[i] + this.segSize[i],
          expandable: this.segExpandable[i] === 1,
        });
      }
    }
    found.sort((a, b) => a.begin - b.begin);
    const merged = [];
    for (const s of found) {
      const before = merged[merged.length - 1];
      if (before && before.expandable && s.expandable && before.end === s.begin) before.end = s.end;
      else merged.push(s);
    }
    return merged;
  }
}

/** The last index whose value is at most x, or -1. */
export function lastAtMost(sorted, x) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (sorted[mid] <= x) low = mid + 1;
    else high = mid;
  }
  return low - 1;
}

function stepValue(when, value, at) {
  const i = lastAtMost(when, at);
  return i < 0 ? 0 : value[i];
}
