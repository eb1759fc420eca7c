// The waterfall's layout: where each part of each step stands on one axis, in seconds. Pure: the time of now is an argument.
//
// Each row begins at zero. A stretch in which a step does nothing but wait is folded if it is long, so that the steps
// beside it keep their room; what stands behind it moves to the left, and the part says how long it really was.

const WAITS = new Set(["people", "retry", "worker"]);
const NAMED = new Set(["tool", "delegate", "people"]);
const FOLDED = 0.15; // the room of a long wait, as a share of the time that the longest row does something
const LANES = 6;

/** {rows, scale, ticks}: `scale` is the length of the axis. */
export function layout(steps, now) {
  const rows = steps.map((step) => read(step, now));
  const busiest = Math.max(0, ...rows.map((row) => row.seconds - row.idle.reduce((sum, [from, to]) => sum + to - from, 0)));
  const room = busiest > 0 ? busiest * FOLDED : Infinity;
  for (const row of rows) fold(row, room);
  const scale = Math.max(0.001, ...rows.map((row) => row.width));
  return { rows: rows.map(({ idle: _, ...row }) => row), scale, ticks: ticks(scale) };
}

function read(step, now) {
  const parts = step.segments.flatMap((part) => {
    const start = Date.parse(part.from);
    if (part.planned && start > now) return [];
    const end = part.to === null ? now : part.planned ? Math.min(now, Date.parse(part.to)) : Date.parse(part.to);
    return [{ ...part, start, end: Math.max(end, start) }];
  });
  const zero = Math.min(...parts.map((part) => part.start));
  for (const part of parts) Object.assign(part, { from: (part.start - zero) / 1000, to: (part.end - zero) / 1000, open: part.to === null });
  const seconds = Math.max(0, ...parts.map((part) => part.to));
  return { key: step.key, turn: step.turn, step: step.step, names: names(parts), seconds, idle: idle(parts, seconds), parts: lanes(parts) };
}

/** The stretches in which only waits go on, or nothing: between those in which something else does. */
function idle(parts, seconds) {
  const busy = parts.filter((part) => !WAITS.has(part.kind)).sort((one, other) => one.from - other.from);
  const found = [];
  let at = 0;
  for (const part of busy) {
    if (part.from > at) found.push([at, part.from]);
    at = Math.max(at, part.to);
  }
  if (seconds > at) found.push([at, seconds]);
  return found;
}

function fold(row, room) {
  const long = row.idle.filter(([from, to]) => to - from > room);
  const place = (at) => at - long.reduce((sum, [from, to]) => sum + (at <= from ? 0 : Math.min(at, to) - from - (Math.min(at, to) - from) / (to - from) * room), 0);
  row.width = place(row.seconds);
  row.parts = row.parts.map(({ from, to, ...part }) => {
    const x = place(from);
    const width = place(to) - x;
    return { ...part, x, width, ...(to - from - width > 1e-6 ? { folded: to - from } : {}) };
  });
}

/** Which of few lanes each part has: those that overlap get lanes of their own. */
function lanes(parts) {
  const ends = [];
  return parts.map((part) => {
    let lane = ends.findIndex((end) => end <= part.from);
    if (lane < 0) lane = Math.min(ends.length, LANES - 1);
    ends[lane] = part.to;
    return { ...part, lane };
  });
}

/** What the step called, each tool once: an attempt or an approval of a call is no other call. */
function names(parts) {
  const counts = new Map();
  const known = new Set();
  for (const part of parts.filter((found) => NAMED.has(found.kind) && found.label)) {
    const call = part.call?.replace(/^\w+ /, "");
    const again = (call !== undefined && known.has(call)) || (part.attempt ?? 1) > 1;
    known.add(call);
    if (part.kind === "people") counts.set(part.label, counts.get(part.label) ?? 0);
    else if (!again) counts.set(part.label, (counts.get(part.label) ?? 0) + 1);
  }
  return [...counts].map(([name, count]) => (count > 1 ? `${name} x${count}` : name)).join(", ");
}

const ROUND = [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400];
const MOST_TICKS = 6;

function ticks(scale) {
  const least = scale / (MOST_TICKS - 1);
  const decade = 10 ** Math.floor(Math.log10(least));
  const step = least > 30 ? ROUND.find((size) => size >= least) ?? Math.ceil(least / 86_400) * 86_400 : [1, 2, 5, 10].map((size) => size * decade).find((size) => size >= least * 0.999999);
  return Array.from({ length: Math.floor(scale / step + 1e-6) + 1 }, (_, at) => at * step);
}
