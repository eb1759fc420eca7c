// Requests to the gateway. The browser sends the cookie of the log-in by itself; scripts cannot read it.

/** A refusal of the gateway: a problem document (RFC 9457). */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || `HTTP ${status}`);
    this.status = status;
    this.code = body.code || "";
  }
}

/** Read a route: its JSON. */
export async function get(path, signal) {
  return read(await fetch(path, { headers: { accept: "application/json" }, signal }));
}

/** Ask for something to be done. Each call is a request of its own, which a repeat after a lost reply does not double. */
export async function post(path, body = {}, method = "POST") {
  const headers = { "content-type": "application/json", "idempotency-key": crypto.randomUUID() };
  return read(await fetch(path, { method, headers, body: method === "DELETE" ? undefined : JSON.stringify(body) }));
}

async function read(response) {
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    body = { detail: `HTTP ${response.status}: ${text.slice(0, 200)}` };
  }
  if (response.ok) return body;
  if (response.status === 401) document.dispatchEvent(new CustomEvent("perdure:login"));
  throw new Problem(response.status, body);
}

/** The path of a session's route. */
export function of(session, ...parts) {
  return ["/v1/sessions", encodeURIComponent(session), ...parts.map(encodeURIComponent)].join("/");
}
