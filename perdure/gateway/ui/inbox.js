// What waits for people over all jobs, as `perdure inbox` lists it: the oldest first, each with the way to its job.

import { get } from "./api.js";
import { html, useEffect, useState } from "./common.js";
import { duration, between, line, since } from "./format.js";

const LOOK = 5000; // between two questions to the gateway
const SHOWN = 8;

/** The open requests that the filters of agent, tenant and text mean. */
export function Inbox({ filters: { agent, tenant, text }, now }) {
  const [found, setFound] = useState([]);
  const [all, setAll] = useState(false);
  useEffect(() => {
    const controller = new AbortController();
    const query = new URLSearchParams(Object.entries({ agent, tenant }).filter(([, value]) => value));
    const look = () => document.hidden || get(`/v1/inbox?${query}`, controller.signal).then((page) => setFound(page.items), () => null); // the list says what is wrong
    const soon = setTimeout(look, 100);
    const timer = setInterval(look, LOOK);
    return () => {
      controller.abort();
      clearTimeout(soon);
      clearInterval(timer);
    };
  }, [agent, tenant]);
  const items = found.filter((item) => has(item, text));
  if (!items.length) return null;
  const shown = all ? items : items.slice(0, SHOWN);
  return html`<section class="people inbox" aria-labelledby="inbox-title"><h2 id="inbox-title">Waits for you: ${items.length}</h2>
    <ul>${shown.map((item) => html`<li key=${`${item.session} ${item.request_id}`}><${Wanted} item=${item} now=${now} /></li>`)}</ul>
    ${shown.length < items.length ? html`<button type="button" class="button small" onClick=${() => setAll(true)}>Show the other ${items.length - shown.length}</button>` : null}
  </section>`;
}

function has(item, text) {
  return [item.session, item.question, item.arguments].some((said) => said.toLowerCase().includes(text.toLowerCase()));
}

function Wanted({ item, now }) {
  const page = `/ui/sessions/${encodeURIComponent(item.session)}#request-${encodeURIComponent(item.request_id)}`;
  const what = item.needs === "approval" ? `May ${item.tool} run? ${line(item.arguments, 120)}` : item.needs === "result" ? `The result of ${item.tool} ${line(item.arguments, 120)}` : line(item.question, 160);
  const expires = item.expires_at ? ` · expires in ${duration(between(new Date(now).toISOString(), item.expires_at))}` : "";
  return html`<a href=${page}>${what}</a> <span class="quiet">${item.agent} · ${item.session} · asked ${since(item.asked_at, now)} ago${expires}</span>`;
}
