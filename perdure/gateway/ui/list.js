// The list of jobs, with filters in the address, so that a view can be kept as a link.

import { get, post } from "./api.js";
import { Ask, Button, Code, html, useEffect, useNow, useRef, useState } from "./common.js";
import { Inbox } from "./inbox.js";
import { ago, between, duration, line, money, moment, plural } from "./format.js";

const RUSH = 3000; // between two looks while something runs
const CALM = 10_000; // and while nothing does
const FILTERS = ["text", "state", "stop_reason", "agent", "tenant", "delegates"];
const STATES = [["", "any state"], ["queued", "waits for a slot"], ["running", "running"], ["waiting_for_input", "waits for a person"], ["ended", "ended"]];
const REASONS = ["finished", "error", "cancelled", "max_steps_reached", "budget_exhausted", "stalled", "waiting_for_input"];

function asked() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
}

function path(filters, cursor) {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  query.set("delegates", filters.delegates || "false");
  query.set("limit", "50");
  if (cursor) query.set("cursor", cursor);
  return `/v1/sessions?${query}`;
}

/** The page. */
export function List({ who }) {
  const [filters, setFilters] = useState(asked);
  const [found, setFound] = useState(null);
  const [older, setOlder] = useState({ items: [], next: undefined });
  const [wrong, setWrong] = useState("");
  const now = useNow();
  const timer = useRef(null);

  useEffect(() => {
    const controller = new AbortController();
    const look = async () => {
      clearTimeout(timer.current);
      let pause = CALM;
      if (!document.hidden) {
        try {
          const page = await get(path(filters), controller.signal);
          setFound(page);
          setWrong("");
          pause = page.items.some((item) => item.state !== "ended") ? RUSH : CALM;
        } catch (error) {
          if (error.name === "AbortError") return;
          setWrong(error.message);
        }
      }
      if (!controller.signal.aborted) timer.current = setTimeout(look, pause);
    };
    const typing = setTimeout(look, found === null ? 0 : 250);
    const seen = () => document.hidden || look();
    document.addEventListener("visibilitychange", seen);
    return () => {
      controller.abort();
      clearTimeout(typing);
      clearTimeout(timer.current);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [JSON.stringify(filters)]);
  useEffect(() => {
    document.title = "Jobs · perdure";
  }, []);

  const set = (name) => (event) => {
    const next = { ...filters, [name]: event.target.value };
    setFilters(next);
    setOlder({ items: [], next: undefined });
    const query = new URLSearchParams(Object.entries(next).filter(([, value]) => value)).toString();
    history.replaceState(null, "", query ? `/ui?${query}` : "/ui");
  };
  const more = async () => {
    try {
      const page = await get(path(filters, older.next ?? found.next));
      setOlder({ items: [...older.items, ...page.items], next: page.next });
    } catch (error) {
      setWrong(error.message);
    }
  };
  const fresh = found?.items ?? [];
  const names = new Set(fresh.map((item) => item.session));
  const items = [...fresh, ...older.items.filter((item) => !names.has(item.session))];
  const next = older.next === undefined ? found?.next : older.next;
  return html`<main id="main" tabindex="-1">
    <header class="title"><h1>Jobs</h1></header>
    <form class="filters" role="search" aria-label="Filter the jobs" onSubmit=${(event) => event.preventDefault()}>
      <label>Text <input type="search" value=${filters.text} onInput=${set("text")} placeholder="prompt, id, answer or error" /></label>
      <label>State <select value=${filters.state} onChange=${set("state")}>${STATES.map(([value, text]) => html`<option value=${value} selected=${value === filters.state}>${text}</option>`)}</select></label>
      <label>Ended by <select value=${filters.stop_reason} onChange=${set("stop_reason")}><option value="">anything</option>${REASONS.map((value) => html`<option value=${value} selected=${value === filters.stop_reason}>${value.replaceAll("_", " ")}</option>`)}</select></label>
      <label>Agent <input value=${filters.agent} onInput=${set("agent")} /></label>
      <label>Delegates <select value=${filters.delegates} onChange=${set("delegates")}><option value="">without</option><option value="true" selected=${filters.delegates === "true"}>with</option></select></label>
      ${who.sees_all ? html`<label>Tenant <input value=${filters.tenant} onInput=${set("tenant")} placeholder="all" /></label>` : null}
      ${who.tenant ? html`<span class="quiet">Tenant: ${who.tenant}</span>` : null}
    </form>
    <${CancelAll} filters=${filters} who=${who} />
    <p class="wrong" role="alert">${wrong}</p>
    <${Inbox} filters=${filters} now=${now} />
    ${found === null && !wrong ? html`<p class="quiet" role="status">Loading…</p>` : null}
    ${found !== null && !items.length ? html`<p class="empty">No job fits. ${FILTERS.some((name) => filters[name]) ? "Clear a filter to see more." : html`Start one: <code>perdure run AGENT PROMPT</code>`}</p>` : null}
    ${items.length ? html`<${Jobs} items=${items} now=${now} tenants=${who.sees_all} />` : null}
    ${next ? html`<button type="button" class="button wide" onClick=${more}>Show older jobs</button>` : null}
  </main>`;
}

const MOST_NAMES = 10;

/** Cancel the turns that the filters mean: first the gateway says which these are, and nothing is done. */
function CancelAll({ filters, who }) {
  const [form, setForm] = useState(null);
  const [wrong, setWrong] = useState("");
  let why = "";
  if (!who.scopes.includes("admin")) why = "your token lacks the scope admin";
  else if (filters.text || filters.stop_reason) why = "clear the filters text and ended by: they mean no running turns";
  else if (filters.state === "ended") why = "what has ended cannot be cancelled";
  const wanted = Object.fromEntries(["agent", "state", "tenant"].filter((name) => filters[name]).map((name) => [name, filters[name]]));
  const look = async () => {
    setWrong("");
    try {
      const { items } = await post("/v1/cancel", { ...wanted, dry_run: true });
      const names = items.slice(0, MOST_NAMES).map((item) => item.session).join(", ");
      if (!items.length) return setWrong("Nothing runs that these filters mean.");
      return setForm({ count: items.length, names: items.length > MOST_NAMES ? `${names} …` : names });
    } catch (error) {
      return setWrong(error.message);
    }
  };
  const submit = async (values) => {
    const { items } = await post("/v1/cancel", { ...wanted, dry_run: false, reason: values.reason });
    const failed = items.filter((item) => item.outcome === "failed");
    if (failed.length) throw new Error(`${plural(failed.length, "turn")} could not be cancelled: ${failed[0].session}: ${failed[0].error}`);
  };
  return html`<p class="row"><${Button} kind="small" why=${why} onClick=${look}>Cancel what runs…<//> <small class="why" role="status">${wrong}</small></p>
    ${form ? html`<${Ask} title=${`Cancel ${plural(form.count, "turn")}?`} text=${`Nothing is cancelled yet. These are meant: ${form.names}. Messages that wait for them are dropped.`}
      fields=${[{ name: "reason", label: "Reason", hint: "kept with each turn" }]} action=${`Cancel ${plural(form.count, "turn")}`} kind="danger" submit=${submit} close=${() => setForm(null)} />` : null}`;
}

const TONES = { finished: "good", error: "bad", cancelled: "quiet" };

function Jobs({ items, now, tenants }) {
  return html`<table class="jobs"><thead><tr><th scope="col">State</th><th scope="col">Job</th><th scope="col">Agent</th>${tenants ? html`<th scope="col">Tenant</th>` : null}<th scope="col" class="n">Steps</th><th scope="col" class="n">Cost</th><th scope="col" class="n">Took</th><th scope="col">Began</th></tr></thead>
    <tbody>${items.map((item) => html`<${Item} key=${item.session} item=${item} now=${now} tenants=${tenants} />`)}</tbody></table>`;
}

function Item({ item, now, tenants }) {
  const ended = item.state === "ended";
  const tone = ended ? TONES[item.stop_reason] ?? "warning" : ["queued", "running"].includes(item.state) ? "running" : "person";
  const text = ended ? (item.stop_reason ?? "ended").replaceAll("_", " ") : item.state === "waiting_for_input" ? "waits for a person" : item.state;
  const page = `/ui/sessions/${encodeURIComponent(item.session)}`;
  const took = item.started_at ? duration(between(item.started_at, item.ended_at ?? now)) : "";
  return html`<tr><td data-name="State"><span class=${`badge ${tone}`}>${text}</span></td>
    <td data-name="Job" class="what">${item.prompt ? html`<a class="said" href=${page}>${line(item.prompt, 160)}</a>` : null}<a class=${item.prompt ? "id" : "said"} href=${page}>${item.session}</a>${item.turn > 1 ? html`<span class="quiet"> turn ${item.turn}</span>` : null}
      ${item.reason_code ? html` <${Code} code=${item.reason_code} />` : null}${item.error ? html`<div class="quiet">${line(item.error, 140)}</div>` : null}${item.waits_for ? html`<div class="wrong">${line(item.waits_for.text, 200)}</div>` : null}</td>
    <td data-name="Agent">${item.agent}</td>${tenants ? html`<td data-name="Tenant">${item.tenant}</td>` : null}<td data-name="Steps" class="n">${item.steps ?? ""}</td><td data-name="Cost" class="n">${Number(item.cost_usd) ? money(item.cost_usd) : ""}</td>
    <td data-name="Took" class="n">${took}</td><td data-name="Began">${item.started_at ? html`<time datetime=${item.started_at} title=${moment(item.started_at)}>${ago(item.started_at, now)}</time>` : ""}</td></tr>`;
}
