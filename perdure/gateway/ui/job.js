// A job's page: the event log as it comes, folded into a state, and what the gateway says of the session beside it.

import { get, of, post } from "./api.js";
import { Button, Code, html, useEffect, useMemo, useNow, useRef, useState } from "./common.js";
import { Controls, Dialog, placed } from "./controls.js";
import { foldDelta } from "./deltas.js";
import { fold, openRequests, start, turnOf } from "./fold.js";
import { Light, Log } from "./log.js";
import { People, Standing } from "./people.js";
import { Delegates, Errors, Identity, Meters, Todos } from "./side.js";
import { follow } from "./stream.js";
import { Transcript } from "./transcript.js";
import { meters, verdict } from "./views.js";
import { Waterfall } from "./waterfall.js";

const FRAME = 60; // milliseconds at least between two drawings while events rush in
const LONGEST_FRAME = 1000; // and at most, however slow the machine
const LOOK = 4000; // between two questions to the gateway while the turn runs
const LOOK_ENDED = 8000; // and while nothing does, to learn of a new turn

/** Follow the session's events: [state, light]. `again` is a number that opens the stream anew when it changes. */
function useLog(session, again) {
  const [state, setState] = useState(() => start(session));
  const [light, setLight] = useState({ is: "connecting" });
  const kept = useRef(state);
  const place = useRef("0");
  useEffect(() => {
    let waiting = [];
    let timer = null;
    let pause = FRAME;
    const draw = () => {
      const begun = performance.now();
      timer = null;
      let next = kept.current;
      let lines = [];
      for (const item of waiting) {
        if (item.delta === undefined) {
          lines.push(item);
          continue;
        }
        if (lines.length) next = fold(next, lines);
        lines = [];
        next = foldDelta(next, item.delta);
      }
      if (lines.length) next = fold(next, lines);
      waiting = [];
      kept.current = next;
      setState(next);
      // Once it is drawn: twice that time is left to the events, or a slow machine would only draw.
      setTimeout(() => {
        pause = Math.min(Math.max(FRAME, 2 * (performance.now() - begun)), LONGEST_FRAME);
      });
    };
    const take = (items) => {
      waiting.push(...items);
      timer ??= setTimeout(draw, pause);
    };
    const delta = (piece) => (piece.session ?? session) === session && take([{ delta: piece }]);
    const stream = follow(of(session, "events"), place, { events: take, delta, light: setLight });
    return () => {
      stream.stop();
      clearTimeout(timer);
      draw(); // the stream's place is behind what waits
    };
  }, [session, again]);
  return [state, light];
}

/** What the gateway says of the session and of its limits, asked again while the page is seen. */
function useDetail(session, state, light, changed) {
  const [detail, setDetail] = useState({ session: null, budget: null, standing: [], wrong: null });
  const turn = turnOf(state);
  const open = turn === undefined || turn.end === null;
  const given = state.standing;
  const mark = `${state.turns.length} ${open} ${turn?.activity?.kind} ${turn?.step} ${given} ${changed}`;
  useEffect(() => {
    const controller = new AbortController();
    const look = async () => {
      if (document.hidden) return;
      try {
        const found = await get(of(session), controller.signal);
        const budget = found.state === "ended" ? null : await get(of(session, "budget"), controller.signal).catch(() => null);
        const status = found.state === "ended" ? null : await get(of(session, "status"), controller.signal).catch(() => null);
        const standing = given ? (await get(of(session, "standing-approvals"), controller.signal)).items : [];
        found.paused = status?.paused ?? null; // also while what runs is still finishing
        setDetail((was) => ({ session: found, budget: budget ?? (found.state === "ended" ? was.budget : null), standing, wrong: null }));
      } catch (error) {
        if (error.name !== "AbortError") setDetail((was) => ({ ...was, wrong: error }));
      }
    };
    const soon = setTimeout(look, 150);
    const timer = setInterval(look, open ? LOOK : LOOK_ENDED);
    document.addEventListener("visibilitychange", look);
    return () => {
      controller.abort();
      clearTimeout(soon);
      clearInterval(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [session, mark, light.is]);
  return detail;
}

/** The page. */
export function Job({ session, who }) {
  const [again, setAgain] = useState(0);
  const [changed, setChanged] = useState(0);
  const [form, setForm] = useState(null);
  const ask = useMemo(() => (wanted) => setForm({ ...wanted, key: Symbol(wanted.title), done: () => setChanged((was) => was + 1) }), []);
  const [state, light] = useLog(session, again);
  const { session: detail, budget, standing, wrong } = useDetail(session, state, light, changed);
  const turn = turnOf(state);
  const open = turn !== undefined && turn.end === null && !(detail?.state === "ended" && detail.turn === turn.number);
  const now = useNow(true);

  // The stream ends with its session; a new turn opens it again.
  const news = light.is === "closed" && detail !== null && (detail.state !== "ended" || (detail.turn ?? 0) > (turn?.number ?? 0));
  useEffect(() => {
    if (!news) return undefined;
    const timer = setTimeout(() => setAgain((was) => was + 1), 500);
    return () => clearTimeout(timer);
  }, [news]);

  const said = verdict(state, detail, now);
  // Without the times that change each second: a screen reader would say each.
  const calm = said.head.replace(/ (?:since|in) .*$/, "");
  useEffect(() => {
    document.title = `${calm} · ${session} · perdure`;
  }, [calm, session]);
  const may = permissions(who, open);
  const place = useMemo(() => (verb, block) => ask(placed(verb, session, block)), [session]);

  if (light.is === "refused" && !state.last) return html`<main id="main" tabindex="-1"><p class="verdict bad"><b>There is nothing to show.</b> ${light.why}</p><p><a href="/ui">All jobs</a></p></main>`;
  return html`<main id="main" class="job" tabindex="-1">
    <header class="title"><h1><a href="/ui">Jobs</a> <span aria-hidden="true">/</span> ${session}</h1><${Light} light=${light} gaps=${state.gaps} last=${state.last} /></header>
    <${Verdict} said=${said} calm=${calm} wrong=${wrong?.status ? wrong.message : ""} session=${session} may=${may} changed=${() => setChanged((was) => was + 1)} />
    <${People} requests=${openRequests(state)} session=${session} now=${now} may=${may} ask=${ask} />
    <nav class="jumps" aria-label="Parts of this page"><a href="#transcript-title">Transcript</a><a href="#controls-title">Controls</a><a href="#log-title">Raw log</a></nav>
    <div class="columns">
      <aside class="side" aria-label="About the job">
        <${Controls} session=${session} turn=${turn?.number} may=${may} paused=${Boolean(detail?.paused) || detail?.waits_for?.cause === "paused"} ask=${ask} changed=${() => setChanged((was) => was + 1)} />
        <${Standing} approvals=${standing} session=${session} may=${may} changed=${() => setChanged((was) => was + 1)} />
        <${Meters} meters=${meters(state, budget, now)} />
        <${Todos} todos=${state.todos} sentence=${open ? state.sentence : ""} />
        <${Delegates} delegates=${state.delegates} session=${session} />
        <${Errors} errors=${state.errors} />
        <${Identity} state=${state} turn=${turn} temporal=${who.temporal_ui} />
      </aside>
      <div class="flow">
        <${Waterfall} steps=${state.steps} now=${now} />
        <${Transcript} state=${state} now=${now} session=${session} may=${may} place=${place} />
        <${Log} lines=${state.lines} session=${session} />
      </div>
    </div>
    <${Dialog} key=${form?.key} form=${form} close=${() => setForm((was) => (was === form ? null : was))} />
  </main>`;
}

function Verdict({ said, calm, wrong, session, may, changed }) {
  return html`<section class=${`verdict ${said.tone}`} aria-label="State of the job">
    <p><b>${said.head}</b>${said.text ? html`<span class="text">: ${said.text}</span>` : null} <${Code} code=${said.code} /></p>
    ${said.next ? html`<p class="next">Next: ${said.next}</p>` : null}
    ${said.resume ? html`<${Resume} key=${said.head} text=${said.resume} session=${session} why=${may.run || may.idle} changed=${changed} />` : null}
    ${wrong ? html`<p class="wrong">The gateway does not say more: ${wrong}</p>` : null}
    <p class="hidden" aria-live="polite">${calm}</p></section>`;
}

/** The way on from an end, beside what it does. */
function Resume({ text, session, why, changed }) {
  const [state, setState] = useState({ busy: false, wrong: "" });
  const resume = async () => {
    setState({ busy: true, wrong: "" });
    try {
      await post(of(session, "resume"), {});
      changed();
    } catch (error) {
      setState({ busy: false, wrong: error.message });
    }
  };
  return html`<p class="row"><${Button} why=${why || (state.busy ? "the next turn begins" : "")} onClick=${resume}>Resume now<//> <span class="quiet">${text}</span>
    ${why ? html`<small class="why">${why}</small>` : null}<span class="wrong" role="alert">${state.wrong}</span></p>`;
}

/** Why a need is not met; an empty text is that it is. */
function permissions(who, open) {
  const scopes = new Set(who.scopes);
  const lacks = (scope) => (scopes.has("admin") || scopes.has(scope) ? "" : `your token lacks the scope ${scope}`);
  return { run: lacks("run"), approve: lacks("approve"), admin: lacks("admin"), busy: open ? "" : "no turn runs", idle: open ? "a turn runs" : "" };
}
