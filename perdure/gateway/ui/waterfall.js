// The waterfall: a row for each step, and in it what took the time; attempts are segments of their own.

import { html, useState } from "./common.js";
import { clock, duration, plural } from "./format.js";
import { layout } from "./timeline.js";

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
const LANE = 12; // pixels

/** Each step as a row; all are on one axis, on which each begins at zero. */
export function Waterfall({ steps, now }) {
  const [all, setAll] = useState(false);
  if (!steps.length) return null;
  const { rows, scale, ticks } = layout(all ? steps : steps.slice(-SHOWN), now);
  const folded = rows.some((row) => row.parts.some((part) => part.folded));
  return html`<details class="card" open>
    <summary><h2>Waterfall</h2><span class="quiet">${plural(steps.length, "step")}; the longest shown took ${duration(Math.max(...rows.map((row) => row.seconds)))}</span></summary>
    <ul class="legend" aria-hidden="true">${Object.entries(KINDS).map(([kind, text]) => html`<li><i class=${`bar of-${kind}`}></i>${text}</li>`)}${folded ? html`<li><i class="bar folded"></i>a long wait, folded</li>` : null}</ul>
    ${rows.length < steps.length ? html`<button type="button" class="button small" onClick=${() => setAll(true)}>Show the ${steps.length - rows.length} earlier steps</button>` : null}
    <ol class="waterfall"><${Axis} ticks=${ticks} scale=${scale} />${rows.map((row) => html`<${Row} key=${row.key} row=${row} scale=${scale} ticks=${ticks} />`)}</ol>
  </details>`;
}

function share(seconds, scale) {
  return `${(seconds / scale) * 100}%`;
}

function Axis({ ticks, scale }) {
  return html`<li class="axis" aria-hidden="true"><span class="step">step</span><span class="names">tools</span>
    <svg class="track" height="14">${ticks.map((tick) => html`<text x=${share(tick, scale)} y="11" text-anchor=${tick === 0 ? "start" : tick > scale * 0.95 ? "end" : "middle"}>${tick === 0 ? "0" : duration(tick)}</text>`)}</svg>
    <span class="time">took</span></li>`;
}

function Row({ row: { key, turn, step, names, parts, seconds }, scale, ticks }) {
  const height = (Math.max(...parts.map((part) => part.lane), 0) + 1) * LANE;
  const said = parts.map((part) => describe(part)).join("; ");
  return html`<li><a href=${`#step-${key}`} class="step">${turn}.${step}</a><span class="names" title=${names}>${names}</span>
    <svg class="track" height=${height} role="img" aria-label=${`Step ${step}: ${said}`}>
      ${ticks.map((tick) => html`<line class="tick" x1=${share(tick, scale)} x2=${share(tick, scale)} y1="0" y2=${height} />`)}
      ${parts.map((part) => html`<${Part} part=${part} scale=${scale} />`)}
    </svg>
    <span class="time">${duration(seconds)}</span></li>`;
}

function Part({ part, scale }) {
  const mark = part.lost ? "lost" : part.failed ? "failed" : "";
  const width = Math.max((part.width / scale) * 100, 0.35);
  const y = part.lane * LANE + 1;
  return html`<rect class=${`segment of-${part.kind} ${mark} ${part.open ? "open" : ""} ${part.folded ? "folded" : ""}`} x=${share(part.x, scale)} y=${y} width=${`${width}%`} height=${LANE - 2} rx="1.5"><title>${describe(part)}</title></rect>
    ${part.folded ? html`<text class="fold" x=${share(part.x + part.width / 2, scale)} y=${y + LANE - 4} text-anchor="middle">≈ ${duration(part.folded)} ≈</text>` : null}`;
}

function describe(part) {
  const attempt = part.attempt > 1 ? ` attempt ${part.attempt}` : "";
  const label = part.label ? ` ${part.label}` : "";
  const fate = part.lost ? ", its worker was lost" : part.failed ? `, ${part.failed}` : part.open ? ", now" : "";
  return `${KINDS[part.kind]}${label}${attempt} ${duration((part.end - part.start) / 1000)}${fate} (from ${clock(part.start)})`;
}
