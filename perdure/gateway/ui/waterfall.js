// The waterfall: a row for each step, and in it what took the time; attempts are segments of their own.

import { html, useState } from "./common.js";
import { between, clock, duration, plural } from "./format.js";

const KINDS = {
  worker: "waiting for a worker",
  model: "model",
  retry: "retry wait",
  tool: "tools",
  people: "people",
  delegate: "delegates",
  compaction: "compaction",
};
const SHOWN = 40;

/** Each step as a row on the scale of its own turn's longest step. */
export function Waterfall({ steps, now }) {
  const [all, setAll] = useState(false);
  if (!steps.length) return null;
  const shown = all ? steps : steps.slice(-SHOWN);
  const rows = shown.map((step) => row(step, now));
  const longest = Math.max(...rows.map((found) => found.seconds), 0.001);
  return html`<details class="card" open>
    <summary><h2>Waterfall</h2><span class="quiet">${plural(steps.length, "step")}; the longest shown took ${duration(longest)}</span></summary>
    <ul class="legend" aria-hidden="true">${Object.entries(KINDS).map(([kind, text]) => html`<li><i class=${`bar of-${kind}`}></i>${text}</li>`)}</ul>
    ${shown.length < steps.length ? html`<button type="button" class="button small" onClick=${() => setAll(true)}>Show the ${steps.length - shown.length} earlier steps</button>` : null}
    <ol class="waterfall">${rows.map((found) => html`<${Row} key=${found.key} row=${found} longest=${longest} />`)}</ol>
  </details>`;
}

function row(step, now) {
  const parts = step.segments.map((part) => {
    const planned = part.planned && Date.parse(part.from) > now;
    const to = part.to === null ? Math.max(now, Date.parse(part.from)) : part.planned ? Math.min(now, Date.parse(part.to)) : Date.parse(part.to);
    return { ...part, planned, start: Date.parse(part.from), end: Math.max(to, Date.parse(part.from)) };
  }).filter((part) => !part.planned);
  const from = Math.min(...parts.map((part) => part.start));
  const to = Math.max(...parts.map((part) => part.end));
  return { key: step.key, turn: step.turn, step: step.step, from, parts, lanes: lanes(parts), seconds: parts.length ? (to - from) / 1000 : 0 };
}

/** Which of few lanes each segment has: those that overlap get lanes of their own. */
function lanes(parts) {
  const ends = [];
  return parts.map((part) => {
    let lane = ends.findIndex((end) => end <= part.start);
    if (lane < 0) lane = Math.min(ends.length, 5);
    ends[lane] = part.end;
    return lane;
  });
}

function Row({ row: { key, turn, step, from, parts, lanes: placed, seconds }, longest }) {
  const height = (Math.max(...placed, 0) + 1) * 10;
  const said = parts.map((part) => describe(part)).join("; ");
  return html`<li><a href=${`#step-${key}`} class="step">${turn}.${step}</a>
    <svg class="track" height=${height} role="img" aria-label=${`Step ${step}: ${said}`}>
      ${parts.map((part, at) => {
        const x = ((part.start - from) / 1000 / longest) * 100;
        const width = Math.max(((part.end - part.start) / 1000 / longest) * 100, 0.35);
        const mark = part.lost ? "lost" : part.failed ? "failed" : "";
        return html`<rect class=${`segment of-${part.kind} ${mark} ${part.to === null ? "open" : ""}`} x=${`${x}%`} y=${placed[at] * 10 + 1} width=${`${width}%`} height="8" rx="1.5"><title>${describe(part)}</title></rect>`;
      })}
    </svg>
    <span class="time">${duration(seconds)}</span></li>`;
}

function describe(part) {
  const attempt = part.attempt > 1 ? ` attempt ${part.attempt}` : "";
  const label = part.label ? ` ${part.label}` : "";
  const fate = part.lost ? ", its worker was lost" : part.failed ? `, ${part.failed}` : part.to === null ? ", now" : "";
  return `${KINDS[part.kind]}${label}${attempt} ${duration(between(part.from, part.end))}${fate} (from ${clock(part.start)})`;
}
