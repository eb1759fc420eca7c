// What waits for a person: questions and approvals, with the buttons that decide them; and approvals that stand.

import { of, post } from "./api.js";
import { Button, html, useEffect, useRef, useState } from "./common.js";
import { duration, between, line, moment, pretty, since } from "./format.js";

/** The open requests; the focus goes to the first one when it comes and nobody types elsewhere. */
export function People({ requests, session, now, may, ask }) {
  const card = useRef(null);
  const first = requests[0]?.request_id;
  useEffect(() => {
    const busy = document.activeElement && document.activeElement !== document.body;
    if (first && !busy) card.current?.focus({ preventScroll: true });
  }, [first]);
  if (!requests.length) return null;
  return html`<section class="people" ref=${card} tabindex="-1" aria-labelledby="people-title">
    <h2 id="people-title">Waits for a person</h2>
    ${requests.map((request) => html`<${Request} key=${request.request_id} request=${request} session=${session} now=${now} may=${may} ask=${ask} />`)}
  </section>`;
}

/** The form that approves a call and the further ones that the person chooses. */
export function always(request, session) {
  return {
    title: `Approve ${request.tool} and stop asking`,
    text: "This call runs, and so do further ones in this session without asking, in later turns too, until somebody revokes it here. A rule that denies outranks it.",
    fields: [
      { name: "always", label: "Further calls", options: [["arguments", "with these arguments"], ["tool", `all calls of ${request.tool}`]] },
      { name: "until", label: "Until", type: "datetime-local", hint: "empty: until somebody revokes it" },
      { name: "reason", label: "Reason", hint: "kept with it" },
    ],
    action: "Approve and stop asking",
    submit: ({ always, until, reason }) => post(of(session, "answers", request.request_id), standing(request, { always, until, reason })),
  };
}

/** The body of such an approval; a date of the form is in the browser's time zone. */
export function standing(request, { always, until, reason }) {
  const body = { action: "approve", always, ...(request.digest ? { digest: request.digest } : {}) };
  if (until) body.until = new Date(until).toISOString();
  if (reason) body.reason = reason;
  return body;
}

/** The approvals that stand, each with the way to revoke it. */
export function Standing({ approvals, session, may, changed }) {
  if (!approvals.length) return null;
  return html`<section class="card" aria-labelledby="standing-title"><h2 id="standing-title">Approvals that stand</h2>
    <ul class="standing">${approvals.map((given) => html`<li key=${given.id}><${Stands} given=${given} session=${session} may=${may} changed=${changed} /></li>`)}</ul></section>`;
}

function Stands({ given, session, may, changed }) {
  const [state, setState] = useState({ busy: false, wrong: "" });
  const revoke = async () => {
    setState({ busy: true, wrong: "" });
    try {
      await post(of(session, "standing-approvals", given.id), {}, "DELETE");
      changed();
    } catch (error) {
      setState({ busy: false, wrong: error.message });
    }
  };
  return html`<b>${given.tool}</b> ${given.scope === "tool" ? "with any arguments" : html`<code class="text">${line(given.arguments, 200)}</code>`}
    <div class="quiet text">by ${given.by}, ${moment(given.given_at)}${given.until ? `, until ${moment(given.until)}` : ""}${given.reason ? `: ${given.reason}` : ""}</div>
    <div class="row"><${Button} kind="small" why=${may.approve || (state.busy ? "it is being revoked" : "")} onClick=${revoke}>Revoke<span class="hidden"> the approval of ${given.tool}</span><//><span class="wrong" role="alert">${state.wrong}</span></div>`;
}

function Request({ request, session, now, may, ask }) {
  const [text, setText] = useState("");
  const [state, setState] = useState({ busy: false, wrong: "" });
  const id = `request-${request.request_id}`;
  const reply = async (where, body) => {
    if (state.busy) return;
    setState({ busy: true, wrong: "" });
    try {
      await post(of(session, where, request.request_id), body);
      setState({ busy: true, wrong: "" }); // until the event of the decision comes
    } catch (error) {
      setState({ busy: false, wrong: error.message });
    }
  };
  const decide = (action, more) => reply("answers", { action, ...more });
  const submit = (outcome) => reply("results", { ...outcome, digest: request.digest });
  const approval = request.needs === "approval", result = request.needs === "result";
  const missing = result ? may.run : may.approve;
  const why = missing || (state.busy ? "the decision is on its way" : "");
  return html`<article class="request" id=${id}>
    <p class="quiet">asked ${since(request.at, now)} ago in step ${request.step}, turn ${request.turn}
      ${request.expires_at ? html` · expires in ${duration(between(new Date(now).toISOString(), request.expires_at))}` : null}</p>
    ${approval
      ? html`<h3>May <b>${request.tool}</b> run?</h3><pre class="text">${pretty(request.arguments)}</pre>
          ${request.digest ? html`<p class="quiet">Digest of the call <code>${request.digest}</code>: the approval holds for these arguments only.</p>` : null}`
      : result
        ? html`<h3>The caller runs <b>${request.tool}</b>; what is its result?</h3><pre class="text">${pretty(request.arguments)}</pre>`
        : html`<h3 class="text">${request.question}</h3>`}
    ${!approval && request.options.length
      ? html`<div class="row" role="group" aria-label="Offered answers">${request.options.map((option) => html`<${Button} why=${why} onClick=${() => decide("answer", { value: option })}>${option}<//>`)}</div>`
      : null}
    <div class="field"><label for=${`${id}-text`}>${approval ? "Reason (the model reads the reason of a denial)" : request.options.length ? "Or in your own words" : result ? "Result, or why there is none" : "Answer"}</label>
      <textarea id=${`${id}-text`} rows=${approval ? 1 : 2} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></div>
    <div class="row">
      ${approval
        ? html`<${Button} kind="primary" why=${why} onClick=${() => decide("approve", request.digest ? { digest: request.digest } : {})}>Approve<//>
            <${Button} why=${why} onClick=${() => ask(always(request, session))}>Stop asking…<//>
            <${Button} kind="danger" why=${why} onClick=${() => decide("deny", { reason: text })}>Deny<//>`
        : result
        ? html`<${Button} kind="primary" why=${why} onClick=${() => submit({ value: text })}>Submit the result<//>
            <${Button} why=${why || (text.trim() ? "" : "write why there is none first")} onClick=${() => submit({ error: text })}>It failed<//>`
        : html`<${Button} kind="primary" why=${why || (text.trim() ? "" : "write an answer first")} onClick=${() => decide("answer", { value: text })}>Answer<//>
            <${Button} why=${why} onClick=${() => decide("deny", { reason: text })}>Nobody will answer<//>`}
      ${missing ? html`<small class="why">${missing}</small>` : null}
    </div>
    <p class="wrong" role="alert">${state.wrong}</p>
  </article>`;
}
