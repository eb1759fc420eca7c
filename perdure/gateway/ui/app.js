// The page of the gateway: which view the address asks for, who is logged in, and the way to log in.

import { get, post } from "./api.js";
import { html, render, useEffect, useState } from "./common.js";
import { Reasons } from "./errors.js";
import { Job } from "./job.js";
import { List } from "./list.js";

function App() {
  const [who, setWho] = useState(null);
  const [login, setLogin] = useState(false);
  const [wrong, setWrong] = useState("");
  const look = () =>
    get("/v1/whoami").then(
      (found) => {
        setWho(found);
        setLogin(false);
        setWrong("");
      },
      (error) => (error.status === 401 ? setLogin(true) : setWrong(error.message)),
    );
  useEffect(() => {
    const ask = () => setLogin(true);
    document.addEventListener("perdure:login", ask);
    look();
    return () => document.removeEventListener("perdure:login", ask);
  }, []);
  const leave = async () => {
    await post("/ui/logout").catch(() => null);
    location.assign("/ui");
  };
  const job = /^\/ui\/sessions\/([^/]+)\/?$/.exec(location.pathname);
  const errors = location.pathname.startsWith("/ui/errors");
  let view = null;
  if (errors) view = html`<${Reasons} />`;
  else if (login) view = html`<${Login} done=${look} />`;
  else if (wrong) view = html`<main id="main" tabindex="-1"><p class="wrong" role="alert">${wrong}</p></main>`;
  else if (who === null) view = html`<main id="main" tabindex="-1"><p class="quiet" role="status">Loading…</p></main>`;
  else if (job) view = html`<${Job} session=${decodeURIComponent(job[1])} who=${who} />`;
  else view = html`<${List} who=${who} />`;
  return html`<header class="banner"><a class="brand" href="/ui">perdure</a>
      <nav aria-label="Pages"><a href="/ui" aria-current=${!job && !errors ? "page" : undefined}>Jobs</a><a href="/ui/errors" aria-current=${errors ? "page" : undefined}>Errors</a></nav>
      ${who?.logged_in && !login ? html`<span class="who">${who.name}${who.tenant ? ` of ${who.tenant}` : ""} <button type="button" class="button small" onClick=${leave}>Log out</button></span>` : null}</header>
    ${view}`;
}

function Login({ done }) {
  const [wrong, setWrong] = useState("");
  const send = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      await post("/ui/login", { token: new FormData(event.target).get("token").trim() });
      done();
    } catch (error) {
      setWrong(error.message);
    }
  };
  return html`<main id="main" class="login" tabindex="-1"><h1>Log in</h1>
    <form class="card" onSubmit=${send}><div class="field"><label for="token">Token</label>
      <input id="token" name="token" type="password" required autocomplete="current-password" autofocus />
      <small>One of the gateway's bearer tokens. It stays in this browser as a cookie that scripts cannot read.</small></div>
      <p class="wrong" role="alert">${wrong}</p><button type="submit" class="button primary">Log in</button></form></main>`;
}

render(html`<${App} />`, document.getElementById("app"));
