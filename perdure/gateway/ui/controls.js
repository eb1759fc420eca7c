// What can be done with a job. A control that cannot be used now stays visible and says why.

import { of, post } from "./api.js";
import { Ask, Button, html, useState } from "./common.js";

const FORMATS = ["openai", "jsonl", "chat", "turns", "events"];

/** Message box and verbs. `may` says for each need why it is not met: {run, approve, idle, busy}. */
export function Controls({ session, turn, may, paused, ask, changed }) {
  return html`<section class="card controls" aria-labelledby="controls-title"><h2 id="controls-title">Controls</h2>
    <${Message} session=${session} may=${may} changed=${changed} />
    <div class="verbs">
      <${Verb} text="Cancel the turn" kind="danger" why=${may.run || may.busy} onClick=${() => ask(cancel(session, turn))} />
      ${paused
        ? html`<${Verb} text="Go on" why=${may.run || may.busy} onClick=${() => ask(unpause(session))} />`
        : html`<${Verb} text="Pause" why=${may.run || may.busy} onClick=${() => ask(pause(session))} />`}
      <${Verb} text="Extend limits" why=${may.run || may.busy} onClick=${() => ask(extend(session))} />
      <${Verb} text="Compact" why=${may.run || may.idle} onClick=${() => ask(compact(session))} />
      <${Verb} text="Fork" why=${may.run} onClick=${() => ask(placed("fork", session))} />
      <${Verb} text="Export" why="" onClick=${() => ask(exported(session))} />
      <${Verb} text="Erase" kind="danger" why=${may.admin || may.idle} onClick=${() => ask(erase(session))} />
    </div></section>`;
}

function Verb({ text, why, kind, onClick }) {
  return html`<div><${Button} kind=${kind} why=${why} onClick=${onClick}>${text}<//>${why ? html`<small class="why" aria-hidden="true">${why}</small>` : null}</div>`;
}

function Message({ session, may, changed }) {
  const [text, setText] = useState("");
  const [how, setHow] = useState("queue");
  const [state, setState] = useState({ busy: false, wrong: "", sent: "" });
  const busy = !may.busy;
  const send = async (event) => {
    event.preventDefault();
    if (!text.trim() || may.run || state.busy) return;
    setState({ busy: true, wrong: "", sent: "" });
    try {
      const ticket = await post(of(session, "messages"), { prompt: text, ...(busy ? { when_busy: how } : {}) });
      setText("");
      setState({ busy: false, wrong: "", sent: ticket.turn ? `Taken by turn ${ticket.turn}.` : "Sent." });
      changed();
    } catch (error) {
      setState({ busy: false, wrong: error.message, sent: "" });
    }
  };
  return html`<form onSubmit=${send}><div class="field"><label for="message">Message</label>
      <textarea id="message" rows="2" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && send(event)}></textarea></div>
    <div class="row">${busy
        ? html`<label>While it runs <select value=${how} onChange=${(event) => setHow(event.target.value)}>
            <option value="queue">queue: next turn</option><option value="steer">steer: into this turn</option><option value="interrupt">interrupt: cancel, then this</option></select></label>`
        : html`<small class="quiet">starts the next turn</small>`}
      <button type="submit" class="button primary" aria-disabled=${may.run || !text.trim() ? "true" : undefined}>Send</button></div>
    ${may.run ? html`<small class="why">${may.run}</small>` : null}
    <p role="status" class="quiet">${state.sent}</p><p class="wrong" role="alert">${state.wrong}</p></form>`;
}

function cancel(session, turn) {
  return {
    title: "Cancel the turn",
    text: `Turn ${turn} stops within seconds; what it has done stays, and a message goes on from there.`,
    fields: [{ name: "reason", label: "Reason", hint: "kept with the turn" }, { name: "drop_queue", label: "Drop waiting messages too", type: "checkbox" }],
    action: "Cancel the turn",
    kind: "danger",
    submit: (values) => post(of(session, "cancel"), { reason: values.reason, turn, drop_queue: values.drop_queue }),
  };
}

function pause(session) {
  return {
    title: "Pause the job",
    text: "What runs finishes, then the job stands still until somebody lets it go on. That time counts against no limit.",
    fields: [{ name: "reason", label: "Reason", hint: "shown to whoever asks why it stands still" }],
    action: "Pause",
    submit: (values) => post(of(session, "pause"), values.reason ? { reason: values.reason } : {}),
  };
}

function unpause(session) {
  return { title: "Go on", text: "The job goes on where it was paused.", fields: [], action: "Go on", submit: () => post(of(session, "unpause"), {}) };
}

function extend(session) {
  const hint = "the whole limit, no increment";
  return {
    title: "Extend limits",
    text: "Only what you fill in changes. The turn goes on with the new limits at once.",
    fields: [
      { name: "max_steps", label: "Steps", type: "number", min: 1, hint },
      { name: "cost_usd", label: "Cost in US dollars", type: "number", min: 0, step: "any", hint },
      { name: "llm_calls", label: "Model calls", type: "number", min: 1, hint },
      { name: "tool_calls", label: "Tool calls", type: "number", min: 0, hint },
      { name: "seconds", label: "Seconds since the turn began", type: "number", min: 1, hint },
    ],
    action: "Extend",
    submit: (values) => {
      const limits = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "").map(([name, value]) => [name, name === "cost_usd" ? value : Number(value)]));
      if (!Object.keys(limits).length) throw new Error("fill in a limit");
      return post(of(session, "extend"), limits);
    },
  };
}

function compact(session) {
  return {
    title: "Compact the conversation",
    text: "A model summarises the beginning; later turns read the summary. The transcript keeps every message.",
    fields: [{ name: "guidance", label: "What the summary must keep in mind", type: "textarea" }],
    action: "Compact",
    submit: (values) => post(of(session, "compact"), values.guidance ? { guidance: values.guidance } : {}),
  };
}

/** The form for a fork or a rewind, from a step or from the end. */
export function placed(verb, session, block) {
  const where = block ? `step ${block.step} of turn ${block.turn}` : "the end of its last turn";
  const fork = verb === "fork";
  return {
    title: fork ? `Fork from ${where}` : `Resume from ${where}`,
    text: fork ? "A new session begins there; this one stays as it is." : "What came after stays stored and leaves the conversation. Effects of its tools are not undone.",
    fields: [
      { name: "prompt", label: "Prompt", type: "textarea", hint: "empty: the model answers what stands there" },
      ...(fork ? [{ name: "into", label: "Id of the new session", hint: "empty: one is made" }] : []),
    ],
    action: fork ? "Fork" : "Resume",
    submit: async (values) => {
      const body = { ...(block ? { at: block.step, turn: block.turn } : {}) };
      if (values.prompt) body.prompt = values.prompt;
      if (values.into) body.into = values.into;
      const ticket = await post(of(session, verb), body);
      if (fork) location.assign(`/ui/sessions/${encodeURIComponent(ticket.session)}`);
    },
  };
}

function exported(session) {
  return {
    title: "Export",
    fields: [{ name: "format", label: "Format", options: FORMATS.map((name) => [name, name]) }],
    action: "Download",
    submit: async (values) => {
      const link = document.createElement("a");
      link.href = `${of(session, "export")}?format=${values.format}`;
      link.download = `${session}.${values.format}.json`;
      link.click();
    },
  };
}

function erase(session) {
  return {
    title: "Erase the session",
    text: "Its conversation, events and files are deleted from the store, those of its delegates too. Nothing brings them back.",
    fields: [
      { name: "name", label: `Type ${session} to confirm`, required: true },
      { name: "histories", label: "Also what Temporal has of it", type: "checkbox" },
    ],
    action: "Erase",
    kind: "danger",
    submit: async (values) => {
      if (values.name.trim() !== session) throw new Error(`that is not ${session}`);
      await post(`${of(session)}?histories=${values.histories}`, {}, "DELETE");
      location.assign("/ui");
    },
  };
}

/** The dialog of the form that is open, if one is. */
export function Dialog({ form, close }) {
  if (form === null) return null;
  const submit = async (values) => {
    await form.submit(values);
    form.done?.();
  };
  return html`<${Ask} ...${form} submit=${submit} close=${close} />`;
}
