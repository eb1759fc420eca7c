// The transcript: prompts, answers as they are written, tool cards, notes. All text is shown as text, never as markup.

import { get, of } from "./api.js";
import { Button, Code, html, useEffect, useLayoutEffect, useRef, useState } from "./common.js";
import { about, between, clock, count, duration, line, money, moment, plural, pretty, readable } from "./format.js";

const WINDOW = 120;

/** Where the block stands to which the address leads, by `#seq-123` or `#step-TURN/STEP`; -1 if it leads to none. */
function linkedBlock(blocks, link) {
  const found = /^#(?:seq-(\d+)|step-(\d+)\/(\d+))$/.exec(link);
  if (!found) return -1;
  const [seq, turn, step] = found.slice(1).map(Number);
  return blocks.findIndex((block) => (found[1] ? block.seq >= seq : block.turn === turn && block.step >= step));
}

/** The last blocks, with earlier ones on demand; the block to which the address leads stays among them. */
export function Transcript({ state, now, session, may, place }) {
  const [shown, setShown] = useState(WINDOW);
  const [link, setLink] = useState(location.hash);
  const [thinking, setThinking] = useState(null);
  const blocks = state.blocks;
  const linked = linkedBlock(blocks, link);
  const first = Math.max(Math.min(blocks.length - shown, linked < 0 ? blocks.length : linked - 20), 0);
  const reached = useRef("");
  useLayoutEffect(() => {
    if (linked < 0 || reached.current === link) return;
    reached.current = link;
    const target = document.getElementById(link.slice(1)) ?? document.getElementById(`seq-${blocks[linked].seq}`);
    target?.scrollIntoView({ block: "start" });
    target?.focus({ preventScroll: true });
  });
  useEffect(() => {
    const follow = () => {
      reached.current = "";
      setLink(location.hash);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const think = async () => setThinking(await thoughts(session));
  return html`<section class="card transcript" aria-labelledby="transcript-title">
    <header class="row"><h2 id="transcript-title">Transcript</h2><span class="quiet grow">${plural(blocks.length, "block")}</span>
      ${thinking === null ? html`<button type="button" class="button small" onClick=${think}>Load the model's thinking</button>` : html`<small class="quiet">${plural(Object.keys(thinking).length, "step")} with thinking</small>`}
      <a class="button small" href="#latest">Latest</a></header>
    ${first > 0 ? html`<button type="button" class="button wide" onClick=${() => setShown(blocks.length - first + WINDOW)}>Show ${Math.min(WINDOW, first)} earlier of ${count(first)}</button>` : null}
    <div class="blocks">${blocks.slice(first).map((block) => html`<${Block} key=${block.seq + block.kind} block=${block} state=${state} now=${now} session=${session} may=${may} place=${place} thoughts=${thinking?.[`${block.turn}/${block.step}`]} />`)}
      <${Live} live=${state.live} /></div>
    <div id="latest" tabindex="-1"></div>
  </section>`;
}

/** The model's blocks of reasoning by turn and step: they are in the stored steps only. */
async function thoughts(session) {
  const found = {};
  let cursor = "";
  do {
    const query = new URLSearchParams({ limit: "200", ...(cursor ? { cursor } : {}) });
    const page = await get(`${of(session, "steps")}?${query}`).catch(() => ({ items: [] }));
    for (const step of page.items) {
      const texts = step.messages.flatMap((message) => message.thinking ?? []).map(textOf).filter(Boolean);
      if (texts.length) found[`${step.turn}/${step.step}`] = texts.join("\n\n");
    }
    cursor = page.next;
  } while (cursor);
  return found;
}

function textOf(block) {
  if (block?.type === "reasoning_details") return (block.details ?? []).map((detail) => detail?.text ?? detail?.summary ?? "").join("");
  return block?.thinking ?? block?.text ?? "";
}

function Live({ live }) {
  if (live === null) return null;
  const { text, thinking, tool_call: call } = live.parts;
  return html`<article class="block answer live" aria-label="The answer that is being written">
    <header><b>Agent</b><span class="quiet">is writing${live.key[2] > 1 ? `, attempt ${live.key[2]}` : ""}</span></header>
    ${thinking?.text ? html`<details><summary>Thinking</summary><div class="text quiet">${thinking.text}</div></details>` : null}
    ${text?.lost ? html`<p class="quiet">A piece was missed; the whole text comes in a moment.</p>` : html`<div class="text">${text?.text ?? ""}<i class="cursor" aria-hidden="true"></i></div>`}
    ${call ? html`<p class="quiet">writes a call of ${call.tool || "a tool"}${call.characters ? `, ${plural(call.characters, "character")}` : ""}</p>` : null}
  </article>`;
}

const VIEWS = {
  prompt: Prompt,
  answer: Answer,
  note: Note,
  request: RequestNote,
  error: ErrorNote,
  end: End,
};

function Block(props) {
  const View = VIEWS[props.block.kind];
  return html`<${View} ...${props} />`;
}

function Head({ block, who, children }) {
  return html`<header><b>${who}</b>${children}<a class="seq" href=${`#seq-${block.seq}`} title=${moment(block.at)}><time datetime=${block.at}>${clock(block.at)}</time> #${block.seq}</a></header>`;
}

function Prompt({ block, session }) {
  const turn = block.steered ? "into the running turn" : `turn ${block.turn}`;
  return html`<article class="block prompt" id=${`seq-${block.seq}`} tabindex="-1">
    <${Head} block=${block} who=${block.by || "Prompt"}><span class="quiet">${turn}</span><//>
    <div class="text">${block.text}</div>
    <${Files} parts=${block.parts} session=${session} /></article>`;
}

function Files({ parts, session }) {
  if (!parts?.length) return null;
  return html`<div class="files">${parts.map((part) => {
    const href = of(session, "artifacts", part.artifact);
    const name = part.name || part.artifact;
    return html`<a href=${href}><${Picture} src=${href} name=${name} image=${part.media_type?.startsWith("image/")} /></a>`;
  })}</div>`;
}

/** The image, or its name where it is none. */
function Picture({ src, name, image }) {
  const [broken, setBroken] = useState(!image);
  return broken ? name : html`<img src=${src} alt=${name} loading="lazy" width="240" height="160" onError=${() => setBroken(true)} />`;
}

function Answer({ block, state, now, session, may, place, thoughts: thinking }) {
  const end = block.end;
  return html`<article class="block answer" id=${`seq-${block.seq}`} tabindex="-1">
    <span id=${`step-${block.turn}/${block.step}`}></span>
    <${Head} block=${block} who="Agent"><span class="quiet">step ${block.step}${end ? ` · ${duration(end.seconds)} · ${about(end.usage)}${count(end.usage.input_tokens + end.usage.output_tokens)} tokens · ${end.cost === null ? "price unknown" : money(end.cost)}${end.recorded ? " · recorded" : ""}` : ""}</span>
      ${end && place ? html`<span class="row places"><${Button} kind="link" aria-label=${`Fork from step ${block.step}`} why=${may.run} onClick=${() => place("fork", block)}>Fork from here<//>
        <${Button} kind="link" aria-label=${`Resume from step ${block.step}`} why=${may.run || may.idle} onClick=${() => place("resume", block)}>Resume from here<//></span>` : null}<//>
    ${thinking ? html`<details><summary>Thinking</summary><div class="text quiet">${thinking}</div></details>` : null}
    ${block.text ? html`<div class="text">${block.text}</div>` : null}
    ${block.calls.map((id) => html`<${Tool} key=${id} call=${state.calls[id]} now=${now} session=${session} />`)}
  </article>`;
}

const STATES = { asked: "asked for", running: "runs", ended: "done", failed: "failed", left: "not finished" };
const RECOVERED = {
  run_again: (was) => `ran again after its worker was ${was}`,
  result_found: (was) => `its worker was ${was}; the result was found`,
  given_up: (was) => `its worker was ${was}; nobody knows its effect`,
};

function Tool({ call, now, session }) {
  const time = call.seconds ?? (call.startedAt ? between(call.startedAt, call.endedAt ?? (call.state === "running" ? now : call.startedAt)) : null);
  const share = call.progress?.total ? `${Math.round((call.progress.done / call.progress.total) * 100)} %` : "";
  const progress = call.state === "running" && call.progress ? ` · ${share} ${call.progress.message}`.trimEnd() : "";
  const preview = call.error ? call.error.message : call.result;
  return html`<details class=${`tool ${call.state}`} id=${`seq-${call.startSeq ?? `call-${call.call_id}`}`}>
    <summary><i class="dot" aria-hidden="true"></i><b>${call.tool}</b><span class="args">${line(readable(call.arguments), 90)}</span>
      <span class="fate">${STATES[call.state]}${time === null ? "" : ` · ${duration(time)}`}${progress}${call.recorded ? " · recorded" : ""}</span>
      ${call.error ? html`<span class="preview">${line(call.error.message, 200)}</span>` : null}</summary>
    <h4>Arguments</h4><pre class="text">${pretty(call.arguments)}</pre>
    ${call.recovery ? html`<p class="warning">${RECOVERED[call.recovery.decision](call.recovery.was)}: ${call.recovery.reason}</p>` : null}
    ${call.delegate ? html`<p>Works as <a href=${`/ui/sessions/${encodeURIComponent(call.delegate)}`}>${call.delegate}</a></p>` : null}
    ${call.error ? html`<h4>Error</h4><p class="text bad">${call.error.message}</p><p><${Code} code=${call.error.code} />${call.error.exception ? html` <code>${call.error.exception}</code>` : null}</p>` : null}
    ${call.traceback ? html`<h4>Traceback</h4><pre class="text">${call.traceback}</pre>` : null}
    ${call.result !== undefined && !call.error ? html`<h4>Result</h4><pre class="text">${call.result}</pre>` : null}
    ${call.artifact ? html`<p><a href=${of(session, "artifacts", call.artifact)}>The whole output</a></p>` : null}
    <${Files} parts=${call.attachments} session=${session} />
    ${preview === undefined && call.state === "asked" ? html`<p class="quiet">It has not begun.</p>` : null}
  </details>`;
}

function Note({ block }) {
  return html`<p class=${`block note ${block.tone}`} id=${`seq-${block.seq}`} tabindex="-1"><span class="text">${block.text}</span> <${Code} code=${block.code} />
    ${block.detail ? html`<details><summary>Summary</summary><div class="text">${block.detail}</div></details>` : null}
    <a class="seq" href=${`#seq-${block.seq}`}>#${block.seq}</a></p>`;
}

function RequestNote({ block, state }) {
  const request = state.requests[block.request];
  const what = request.needs === "answer" ? request.question : `${request.needs === "result" ? "Result" : "Approval"} of ${request.tool} ${line(readable(request.arguments), 200)}`;
  const open = request.decision === null;
  return html`<p class="block note person" id=${`seq-${block.seq}`} tabindex="-1"><span class="text">${what}</span>
    ${open ? html` <a href=${`#request-${request.request_id}`}>decide</a>` : null} <a class="seq" href=${`#seq-${block.seq}`}>#${block.seq}</a></p>`;
}

function ErrorNote({ block }) {
  return html`<div class="block note bad" id=${`seq-${block.seq}`} tabindex="-1"><b>${block.error.title}</b> <span class="text">${block.error.message}</span> <${Code} code=${block.error.code} /> <a class="seq" href=${`#seq-${block.seq}`}>#${block.seq}</a></div>`;
}

function End({ block, state }) {
  const turn = state.turns.find((found) => found.number === block.turn);
  const reason = turn?.end?.stop_reason ?? "ended";
  const tone = reason === "finished" ? "good" : reason === "error" ? "bad" : "warning";
  return html`<p class=${`block note end ${tone}`} id=${`seq-${block.seq}`} tabindex="-1">Turn ${block.turn} ended: ${reason.replaceAll("_", " ")} <${Code} code=${turn?.end?.reason_code} /> <a class="seq" href=${`#seq-${block.seq}`}>#${block.seq}</a></p>`;
}
