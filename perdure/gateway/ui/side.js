// The column beside the transcript: meters, identity, errors, delegates, todos.

import { Code, html } from "./common.js";
import { clock, line, money, moment, plural } from "./format.js";

/** What is used of each limit, with a forecast. */
export function Meters({ meters }) {
  if (!meters.length) return null;
  return html`<section class="card" aria-labelledby="meters-title"><h2 id="meters-title">Used</h2>
    <dl class="meters">${meters.map((found) => html`<div><dt>${found.name}</dt><dd>${found.text}
      ${found.share === null ? null : html`<meter min="0" max="1" low="0.79" high="0.9" optimum="0" value=${found.share} aria-label=${`${found.name}: ${found.text}`}></meter>`}
      ${found.forecast ? html`<small>${found.forecast}</small>` : null}</dd></div>`)}</dl></section>`;
}

/** Who and what the job is. */
export function Identity({ state, turn, temporal }) {
  if (turn === undefined) return null;
  const fallbacks = turn.fallbacks.map((found) => `${found.failed} failed (${found.code})`).join(", ");
  const run = temporal && `${temporal}/${encodeURIComponent(state.session)}`;
  const rows = [
    ["Session", html`<code>${state.session}</code>`],
    ["Turn", `${turn.number} of ${state.turns.length}`],
    ["Agent", html`${turn.agent} <code title="Hash of the frozen definition">${turn.definition.slice(0, 12)}</code>`],
    ["Model", turn.fallbacks.length ? html`${turn.fallbacks.at(-1).model}<br /><small>${fallbacks}</small>` : turn.model],
    ["Tenant", turn.tenant],
    ["Started by", turn.by],
    ["Caller", turn.delegatedBy ? html`<a href=${page(turn.delegatedBy)}>${turn.delegatedBy}</a>` : null],
    ["From", turn.resumedFrom ? from(turn.resumedFrom, state.session) : null],
    ["Started", html`<time datetime=${turn.startedAt}>${moment(turn.startedAt)}</time>`],
    ["Ended", turn.endedAt ? html`<time datetime=${turn.endedAt}>${moment(turn.endedAt)}</time>` : null],
    ["Context", Object.keys(turn.context ?? {}).length ? html`<code class="text">${JSON.stringify(turn.context)}</code>` : null],
    ["Temporal", run ? html`<a href=${run} rel="noreferrer">Workflow in the Temporal UI</a>` : null],
  ];
  return html`<section class="card" aria-labelledby="identity-title"><h2 id="identity-title">Job</h2>
    <dl class="facts">${rows.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}

function page(session) {
  return `/ui/sessions/${encodeURIComponent(session)}`;
}

function from(origin, own) {
  const session = origin.session ?? own;
  const where = [origin.turn === null || origin.turn === undefined ? "" : `turn ${origin.turn}`, origin.step === null || origin.step === undefined ? "" : `step ${origin.step}`].filter(Boolean).join(", ");
  return html`<a href=${page(session)}>${session}</a> ${where}`;
}

const MOST_ERRORS = 30;

/** Failures and retries, grouped by code, the newest first. */
export function Errors({ errors }) {
  if (!errors.length) return null;
  const counts = {};
  for (const error of errors) counts[error.code] = (counts[error.code] ?? 0) + 1;
  const newest = [...errors].reverse().slice(0, MOST_ERRORS);
  return html`<section class="card" aria-labelledby="errors-title"><h2 id="errors-title">Errors and retries</h2>
    <p class="codes">${Object.entries(counts).map(([code, number]) => html`<span><${Code} code=${code} /> × ${number}</span>`)}</p>
    <ol class="errors">${newest.map((error) => html`<li class=${error.kind === "retry" ? "warning" : "bad"}>
      <a href=${`#seq-${error.seq}`}>step ${error.step} · ${clock(error.at)}</a> <b>${error.tool ?? error.title}</b>${error.again ? ` · ${error.again}` : ""}${error.ended ? " · ended the turn" : ""}
      <div class="text quiet">${line(error.message, 300)}</div>
      ${error.traceback ? html`<details><summary>Traceback</summary><pre class="text">${error.traceback}</pre></details>` : null}</li>`)}</ol>
    ${errors.length > MOST_ERRORS ? html`<small>and ${errors.length - MOST_ERRORS} older ones, in the log below</small>` : null}</section>`;
}

const SIGNS = { queued: "is queued", running: "runs", waiting_for_input: "waits for a person", ended: "ended" };

/** Delegates as a tree, each with its state, cost and page. */
export function Delegates({ delegates, session }) {
  if (!delegates.length) return null;
  return html`<section class="card" aria-labelledby="delegates-title"><h2 id="delegates-title">Delegates</h2><${Tree} all=${delegates} parent=${session} depth=${0} /></section>`;
}

function Tree({ all, parent, depth }) {
  const below = all.filter((found) => found.parent === parent);
  if (!below.length || depth > 20) return null;
  return html`<ul class="tree">${below.map((found) => html`<li class=${`${found.state} ${found.stopReason ?? ""}`}>
    <a href=${page(found.session)}><i class="dot" aria-hidden="true"></i>${found.agent}</a>
    <span class="quiet"> ${found.stopReason ? found.stopReason.replaceAll("_", " ") : SIGNS[found.state]} · ${plural(found.steps ?? 0, "step")}${found.cost ? ` · ${money(found.cost)}` : ""} </span><${Code} code=${found.code} />
    ${found.sentence ? html`<div class="text quiet">${line(found.sentence, 140)}</div>` : null}
    <${Tree} all=${all} parent=${found.session} depth=${depth + 1} /></li>`)}</ul>`;
}

/** The agent's own list, and the last thing it said. */
export function Todos({ todos, sentence }) {
  if (!todos.length && !sentence) return null;
  const open = todos.filter((todo) => !todo.completed).length;
  return html`<section class="card" aria-labelledby="todos-title"><h2 id="todos-title">${todos.length ? `Todos: ${todos.length - open} of ${todos.length} done` : "Last words"}</h2>
    ${sentence ? html`<p class="text quiet">${line(sentence, 240)}</p>` : null}
    ${todos.length ? html`<ul class="todos">${todos.map((todo) => html`<li class=${todo.completed ? "done" : ""}><span aria-hidden="true">${todo.completed ? "☑" : "☐"}</span> ${todo.title}${todo.completed ? html`<span class="hidden"> (done)</span>` : null}</li>`)}</ul>` : null}</section>`;
}
