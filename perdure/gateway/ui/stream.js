// A session's events as they come: server-sent events over fetch, which goes on after the last number it has seen.
//
// Not EventSource: that hides the status of a refusal, and drops events of a type that nobody named before.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15_000;
const SILENCE = 45_000; // the gateway says something every 15 s

/** A function that takes text and calls `take({event, data, id})` for each frame that is whole. */
export function parser(take) {
  let rest = "";
  let frame = { event: "message", data: [], id: undefined };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (frame.data.length) take({ ...frame, data: frame.data.join("\n") });
        frame = { event: "message", data: [], id: undefined };
        continue;
      }
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "data") frame.data.push(value);
      else if (name === "event") frame.event = value;
      else if (name === "id") frame.id = value;
    }
  };
}

/**
 * Follow a session and its delegates until `stop()` is called.
 *
 * @param {string} path - the route of the events
 * @param {{current: string}} place - the id of the last event that came; kept up to date
 * @param {{events: (lines) => void, delta: (piece) => void, light: (state) => void}} on
 *   `light` learns how the connection stands:
 *   {is: "connecting" | "live" | "reconnecting" | "dropped" | "closed" | "refused", after, why}
 */
export function follow(path, place, on) {
  let pause = FIRST_PAUSE;
  let controller = null;
  let timer = null;
  let stopped = false;

  async function connect() {
    timer = null;
    controller = new AbortController();
    let watch = null;
    const heard = () => {
      clearTimeout(watch);
      watch = setTimeout(() => controller?.abort(), SILENCE);
    };
    try {
      const query = new URLSearchParams({ after: place.current, deltas: "1", tree: "1" });
      const response = await fetch(`${path}?${query}`, { headers: { accept: "text/event-stream" }, signal: controller.signal });
      if (!response.ok) return refuse(response);
      if (response.status === 204) return on.light({ is: "closed" });
      on.light({ is: "live" });
      pause = FIRST_PAUSE;
      let over = null;
      const take = parser(({ event, data, id }) => {
        const body = JSON.parse(data);
        if (event === "delta") on.delta(body);
        else if (event === "dropped" || event === "end") over = { event, why: body.detail };
        else if (body.seq !== undefined && body.type !== undefined) on.events([body]);
        if (id !== undefined) place.current = id;
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      heard();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        heard();
        take(value);
      }
      if (stopped) return undefined;
      if (over?.event === "end") return on.light({ is: "closed", why: over.why });
      return again(over?.why, over === null ? "reconnecting" : "dropped");
    } catch {
      return stopped ? undefined : again();
    } finally {
      clearTimeout(watch);
    }
  }

  async function refuse(response) {
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) document.dispatchEvent(new CustomEvent("perdure:login"));
    if (response.status === 429 || response.status >= 500) return again(body.detail);
    return on.light({ is: "refused", why: body.detail || `HTTP ${response.status}` });
  }

  function again(why, is = "reconnecting") {
    on.light({ is, after: Number.parseInt(place.current, 10), why });
    timer = setTimeout(connect, pause * (0.75 + Math.random() / 2));
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }

  on.light({ is: "connecting" });
  connect();
  return {
    stop() {
      stopped = true;
      clearTimeout(timer);
      controller?.abort();
    },
  };
}
