// What each code of a failure means, and what to do: the table that `perdure errors` prints.

import { get } from "./api.js";
import { html, useEffect, useState } from "./common.js";

/** The page; a link to `#llm.rate_limited` leads to its row. */
export function Reasons() {
  const [reasons, setReasons] = useState(null);
  const [text, setText] = useState("");
  useEffect(() => {
    document.title = "Errors · perdure";
    get("/ui/reasons.json").then(setReasons);
  }, []);
  useEffect(() => {
    if (reasons) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView({ block: "center" });
  }, [reasons]);
  const chosen = (reasons ?? []).filter((reason) => `${reason.code} ${reason.cause} ${reason.advice}`.toLowerCase().includes(text.toLowerCase()));
  const wanted = decodeURIComponent(location.hash.slice(1));
  return html`<main id="main" tabindex="-1"><header class="title"><h1>Errors</h1></header>
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}><label>Text <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label></form>
    <dl class="reasons">${chosen.map((reason) => html`<div id=${reason.code} class=${reason.code === wanted ? "wanted" : ""} tabindex="-1"><dt><code>${reason.code}</code> <span class="quiet">${reason.transient ? "retried" : "final"}</span></dt>
      <dd>${reason.cause}.${reason.advice ? html`<br /><b>What to do:</b> ${reason.advice}` : null}</dd></div>`)}</dl>
    <p class="quiet">A code <code>exception.Class</code> is a class that no table knows: a bug in perdure or in an agent's module. The worker's log has the traceback.</p></main>`;
}
