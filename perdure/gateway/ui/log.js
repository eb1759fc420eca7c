// The raw log: every event as it is, filtered by type, and the same as a command.

import { Copy, html, useState } from "./common.js";
import { clock, count, line } from "./format.js";

const WINDOW = 100;

/** The last events of the chosen type; the whole JSON of one opens on demand. */
export function Log({ lines, session }) {
  const [open, setOpen] = useState(false);
  const [type, setType] = useState("");
  const [shown, setShown] = useState(WINDOW);
  const types = open ? [...new Set(lines.map((event) => event.type))].sort() : [];
  const chosen = !open ? [] : type ? lines.filter((event) => event.type === type) : lines;
  const first = Math.max(chosen.length - shown, 0);
  const path = `${location.origin}/v1/sessions/${encodeURIComponent(session)}/events?after=0`;
  return html`<details class="card log" onToggle=${(event) => setOpen(event.target.open)}>
    <summary><h2 id="log-title">Raw log</h2><span class="quiet">${count(lines.length)} events</span></summary>
    <div class="row"><label>Type <select value=${type} onChange=${(event) => { setType(event.target.value); setShown(WINDOW); }}>
      <option value="">all</option>${types.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <${Copy} text=${`curl -N -H "Authorization: Bearer $PERDURE_TOKEN" '${path}'`}>Copy as curl<//>
      <${Copy} text=${`perdure follow ${session} --after 0 --json`}>Copy as CLI<//></div>
    ${first > 0 ? html`<button type="button" class="button wide" onClick=${() => setShown(shown + WINDOW)}>Show ${Math.min(WINDOW, first)} earlier of ${count(first)}</button>` : null}
    <ol class="events">${chosen.slice(first).map((event) => html`<${Line} key=${event.seq} event=${event} />`)}</ol>
  </details>`;
}

function Line({ event }) {
  const [open, setOpen] = useState(false);
  const { seq, type, session, turn, step, at, ...body } = event;
  return html`<li><details onToggle=${(toggled) => setOpen(toggled.target.open)}><summary><span class="n">${seq}</span> <time>${clock(at)}</time> <b>${type}</b> <span class="quiet">${turn}.${step} ${line(JSON.stringify(body), 110)}</span></summary>
    ${open ? html`<pre class="text">${JSON.stringify(event, null, 2)}</pre>` : null}</details></li>`;
}

const LIGHTS = {
  connecting: ["waiting", "connecting"],
  live: ["live", "live"],
  closed: ["closed", "at its end"],
  reconnecting: ["waiting", "reconnecting"],
  dropped: ["bad", "dropped"],
  refused: ["bad", "refused"],
};

/** How the connection stands, in a word and a colour. */
export function Light({ light, gaps, last }) {
  const [tone, text] = LIGHTS[light.is];
  const after = light.after !== undefined ? ` after ${light.after}` : last ? ` · ${count(last)}` : "";
  const gap = gaps.at(-1);
  return html`<span class="lights" role="status"><span class=${`light ${tone}`} title=${light.why || undefined}><i aria-hidden="true"></i>${text}${light.is === "closed" ? "" : after}</span>
    ${gap ? html`<span class="light bad"><i aria-hidden="true"></i>gap after ${gap.after}</span>` : null}</span>`;
}
