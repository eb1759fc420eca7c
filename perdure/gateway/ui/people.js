// What waits for a person: questions and approvals, with the buttons that decide them.

import { of, post } from "./api.js";
import { Button, html, useEffect, useRef, useState } from "./common.js";
import { duration, between, pretty, since } from "./format.js";

/** The open requests; the focus goes to the first one when it comes and nobody types elsewhere. */
export function People({ requests, session, now, may }) {
  const card = useRef(null);
  const first = requests[0]?.request_id;
  useEffect(() => {
    const busy = document.activeElement && document.activeElement !== document.body;
    if (first && !busy) card.current?.focus({ preventScroll: true });
  }, [first]);
  if (!requests.length) return null;
  return html`<section class="people" ref=${card} tabindex="-1" aria-labelledby="people-title">
    <h2 id="people-title">Waits for a person</h2>
    ${requests.map((request) => html`<${Request} key=${request.request_id} request=${request} session=${session} now=${now} may=${may} />`)}
  </section>`;
}

function Request({ request, session, now, may }) {
  const [text, setText] = useState("");
  const [state, setState] = useState({ busy: false, wrong: "" });
  const id = `request-${request.request_id}`;
  const decide = async (action, more) => {
    if (state.busy) return;
    setState({ busy: true, wrong: "" });
    try {
      await post(of(session, "answers", request.request_id), { action, ...more });
      setState({ busy: true, wrong: "" }); // until the event of the decision comes
    } catch (error) {
      setState({ busy: false, wrong: error.message });
    }
  };
  const why = may.approve || (state.busy ? "the decision is on its way" : "");
  const approval = request.needs === "approval";
  return html`<article class="request" id=${id}>
    <p class="quiet">asked ${since(request.at, now)} ago in step ${request.step}, turn ${request.turn}
      ${request.expires_at ? html` · expires in ${duration(between(new Date(now).toISOString(), request.expires_at))}` : null}</p>
    ${approval
      ? html`<h3>May <b>${request.tool}</b> run?</h3><pre class="text">${pretty(request.arguments)}</pre>
          ${request.digest ? html`<p class="quiet">Digest of the call <code>${request.digest}</code>: the approval holds for these arguments only.</p>` : null}`
      : html`<h3 class="text">${request.question}</h3>`}
    ${!approval && request.options.length
      ? html`<div class="row" role="group" aria-label="Offered answers">${request.options.map((option) => html`<${Button} why=${why} onClick=${() => decide("answer", { value: option })}>${option}<//>`)}</div>`
      : null}
    <div class="field"><label for=${`${id}-text`}>${approval ? "Reason (the model reads the reason of a denial)" : request.options.length ? "Or in your own words" : "Answer"}</label>
      <textarea id=${`${id}-text`} rows=${approval ? 1 : 2} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></div>
    <div class="row">
      ${approval
        ? html`<${Button} kind="primary" why=${why} onClick=${() => decide("approve", request.digest ? { digest: request.digest } : {})}>Approve<//>
            <${Button} kind="danger" why=${why} onClick=${() => decide("deny", { reason: text })}>Deny<//>`
        : html`<${Button} kind="primary" why=${why || (text.trim() ? "" : "write an answer first")} onClick=${() => decide("answer", { value: text })}>Answer<//>
            <${Button} why=${why} onClick=${() => decide("deny", { reason: text })}>Nobody will answer<//>`}
      ${may.approve ? html`<small class="why">${may.approve}</small>` : null}
    </div>
    <p class="wrong" role="alert">${state.wrong}</p>
  </article>`;
}
