// What the page says about a job's state: the verdict, the meters with their forecast. Pure: now is an argument.

import { about, between, count, duration, line, money, plural, short, since } from "./format.js";
import { openRequests, running, turnOf } from "./fold.js";

const ENDINGS = {
  finished: ["good", "Finished"],
  max_steps_reached: ["warning", "Ended: the step limit is reached"],
  error: ["bad", "Failed"],
  stalled: ["warning", "Stalled: the model answered without finishing"],
  cancelled: ["quiet", "Cancelled"],
  budget_exhausted: ["warning", "Ended: a budget is used up"],
  waiting_for_input: ["person", "Stopped for a person"],
};

const STUCK = new Set(["version", "workflow_task", "other_store", "store", "worker", "failure"]);

/**
 * The verdict: {tone, head, text, next, code, resume}; `resume` is what a resume without a message will do, of a turn
 * that can go on so. `detail` is the gateway's answer about the session, or null while it is
 * not there; what the server says of a wait goes before what the log says, because it also knows of lost workers.
 */
export function verdict(state, detail, now) {
  const turn = turnOf(state);
  const wait = detail?.waits_for ?? null;
  if (turn === undefined || (turn.end !== null && detail?.state !== "ended" && wait !== null)) return opening(detail, wait, now);
  if (turn.end !== null) return { ...ending(turn), ...resuming(state, turn.end.stop_reason) };
  if (detail?.state === "ended" && detail.turn === turn.number) return { ...closed(detail), ...resuming(state, detail.stop_reason) };
  if (detail?.paused) return paused(detail.paused, now);
  if (wait?.cause === "paused") return standing(wait, now);
  const waiting = openRequests(state);
  if (waiting.length) return person(waiting, turn, now);
  if (wait !== null && !(wait.cause === "provider" && turn.activity?.kind === "retry")) return standing(wait, now);
  return working(state, turn, now);
}

function opening(detail, wait, now) {
  if (wait !== null) return standing(wait, now);
  if (detail?.state === "ended") return closed(detail);
  return { tone: "running", head: "Starting", text: "no worker has begun the turn yet", next: "the first worker that is free begins it" };
}

/** A turn whose workflow Temporal has ended, or that was refused: the log does not know. */
function closed(detail) {
  const [tone, head] = ENDINGS[detail.stop_reason] ?? ["bad", "Ended"];
  return { tone, head, text: detail.error ?? "", code: detail.reason_code, next: "send a message to go on" };
}

const CAN_GO_ON = new Set(["error", "cancelled", "max_steps_reached", "budget_exhausted"]);

/** What a resume does, and what comes next; nothing of a turn that has nothing to go on from without a message. */
function resuming(state, reason) {
  const last = state.blocks.findLast((block) => block.kind === "prompt" || block.kind === "answer");
  if (!CAN_GO_ON.has(reason) || last === undefined || (last.kind === "answer" && !last.calls.length)) return {};
  const turn = turnOf(state);
  const error = state.errors.findLast((found) => found.turn === turn.number && found.ended);
  if (reason !== "error") return { resume: "goes on where it stands, with the agent's limits anew" };
  const resume = error?.tool ? `lets the model read the error of ${error.tool}, and goes on` : `asks the model for step ${Math.max(turn.step, 1)} again, with the same conversation`;
  return { next: "remove the cause, then resume it or send a message", resume };
}

function paused(pause, now) {
  const text = `${pause.by ? `by ${pause.by}` : "by somebody"}${pause.reason ? `: ${pause.reason}` : ""}`;
  return { tone: "waiting", head: `Paused since ${since(pause.since, now)}`, text, next: "what runs finishes, and nothing begins until somebody lets it go on" };
}

function standing(wait, now) {
  if (wait.cause === "paused") {
    return { tone: "waiting", head: wait.since ? `Paused since ${since(wait.since, now)}` : "Paused", text: wait.text, next: wait.advice };
  }
  const stuck = STUCK.has(wait.cause);
  const tries = [];
  if (wait.attempt) tries.push(`attempt ${wait.attempt}`);
  if (wait.next_at) tries.push(`next in ${duration(between(new Date(now).toISOString(), wait.next_at))}`);
  const head = wait.since ? `${stuck ? "Stands still" : "Waits"} since ${since(wait.since, now)}` : stuck ? "Stands still" : "Waits";
  return { tone: stuck ? "bad" : "waiting", head, text: wait.text + (tries.length ? ` (${tries.join(", ")})` : ""), next: wait.advice };
}

function person(waiting, turn, now) {
  const [first] = waiting;
  const what = first.needs === "answer" ? `an answer to “${line(first.question)}”` : first.needs === "result" ? `the result of ${first.tool}, which its caller runs` : `your approval of ${first.tool}`;
  const more = waiting.length > 1 ? ` and ${waiting.length - 1} more` : "";
  const next = first.expires_at ? `the ${first.needs} expires in ${duration(between(new Date(now).toISOString(), first.expires_at))}` : "the turn goes on once somebody decides; nothing is lost meanwhile";
  return { tone: "person", head: `Waits for a person since ${since(first.at, now)}`, text: what + more, next };
}

function working(state, turn, now) {
  const activity = turn.activity;
  const step = `step ${Math.max(turn.step, 1)}`;
  const tone = "running";
  if (activity === null) return { tone, head: "Running", text: `${step}, between two activities for ${since(turn.lastAt, now)}`, next: "a worker takes the next activity" };
  const time = since(activity.since, now);
  switch (activity.kind) {
    case "model":
      return { tone, head: "The model answers", text: `${activity.model}, ${step}, for ${time}`, next: "its answer is stored, then the tools run that it calls" };
    case "retry": {
      const left = between(new Date(now).toISOString(), activity.until);
      const when = left > 0 ? `in ${duration(left)}` : "now";
      return { tone: "waiting", head: `Retry ${activity.attempt} of ${activity.of} ${when}`, text: `the model call failed in ${step}`, code: activity.code, next: "it goes on by itself" };
    }
    case "pace":
      return { tone: "waiting", head: `Waits for its turn since ${time}`, text: `${activity.model} limits the key`, next: "it goes on by itself" };
    case "compaction":
      return { tone, head: "Summarises the conversation", text: `before ${step}, for ${time}`, next: "the model goes on with the summary" };
    case "delegates": {
      const busy = state.delegates.filter((found) => found.parent === state.session && found.state !== "ended");
      return { tone, head: `Waits for ${plural(busy.length, "delegate")}`, text: busy.map((found) => found.agent).join(", "), next: "the model reads what they report" };
    }
    default: {
      const names = [...new Set(running(state).map((call) => call?.tool))].join(", ");
      return { tone, head: names ? `Runs the tool${names.includes(",") ? "s" : ""} ${names}` : "Runs tools", text: `${step}, for ${time}`, next: "the model reads the results" };
    }
  }
}

function ending(turn) {
  const end = turn.end;
  const [tone, head] = ENDINGS[end.stop_reason] ?? ["quiet", `Ended: ${end.stop_reason}`];
  const cost = end.unpriced_calls && !Number(end.cost_usd) ? "price unknown" : money(end.cost_usd);
  const tally = `${plural(end.steps, "step")} in ${duration(between(turn.startedAt, turn.endedAt))}, ${about(end.usage)}${short(end.usage.input_tokens + end.usage.output_tokens)} tokens, ${cost}`;
  const why = end.stop_reason === "finished" ? end.stopped_by && `stopped by ${end.stopped_by}` : end.exhausted_by ? `${end.exhausted_by}` : end.error;
  const next = {
    finished: "send a message to go on",
    waiting_for_input: "the answer starts the next turn",
    max_steps_reached: "send a message to go on where it stands",
    budget_exhausted: "send a message to go on with a new budget",
  }[end.stop_reason];
  return { tone, head, text: [why, tally].filter(Boolean).join(" · "), code: end.reason_code, next: next ?? "remove the cause, then send a message to go on" };
}

/**
 * The meters: [{name, used, limit, share, text, forecast}]. `budget` is the gateway's answer about the running turn's
 * limits, or null; without limits a meter only tells what was used.
 */
export function meters(state, budget, now) {
  const turn = turnOf(state);
  if (turn === undefined) return [];
  const used = turn.used;
  const spent = budget?.spent;
  const until = turn.endedAt ?? now;
  const seconds = between(turn.startedAt, until);
  const limits = budget?.limits ?? {};
  const steps = Math.max(budget?.steps ?? 0, used.steps);
  const pace = steps > 0 ? (seconds - waited(state, turn, now)) / steps : 0;
  const cost = Math.max(Number(spent?.cost_usd ?? 0), used.cost);
  const more = used.unpriced ? ` and ${plural(used.unpriced, "call")} of unknown price` : "";
  const costText = (value) => (used.unpriced && value === 0 ? `unknown for ${plural(used.unpriced, "call")}` : money(value) + more);
  const isOpen = turn.end === null;
  const found = [
    meter("Steps", steps, budget?.max_steps, count, isOpen && ahead(steps, budget?.max_steps, 1, pace)),
    {
      ...meter("Cost", cost, number(limits.cost_usd), money, isOpen && ahead(cost, number(limits.cost_usd), steps && cost / steps, pace)),
      text: costText(cost) + (limits.cost_usd ? `, of ${money(limits.cost_usd)}` : ""),
    },
    meter("Time", seconds, span(limits.seconds), duration, ""),
    meter("Context", used.context, turn.contextWindow, short, isOpen && ahead(used.context, turn.contextWindow, steps && used.context / steps, pace), " tokens"),
    ...Object.keys(NAMES)
      .filter((name) => number(limits[name]) !== undefined)
      .map((name) => meter(NAMES[name], spent?.[name] ?? 0, limits[name], count, isOpen && ahead(spent?.[name] ?? 0, limits[name], steps && (spent?.[name] ?? 0) / steps, pace))),
  ];
  const { input_tokens: read, cached_tokens: cached, output_tokens: written } = used.usage;
  found.splice(1, 0, { name: "Tokens", share: null, text: `${about(used.usage)}${short(read)} in${cached ? ` (${short(cached)} cached)` : ""}, ${short(written)} out`, forecast: "" });
  return found;
}

const NAMES = { llm_calls: "Model calls", tool_calls: "Tool calls", behavior_calls: "Hooks and delegates", events: "Answers and results", patches: "State changes" };

function number(value) {
  return value === null || value === undefined ? undefined : Number(value);
}

/** Seconds of a duration: a number, or ISO 8601 as in `PT1H30M`. */
export function span(value) {
  if (value === null || value === undefined) return undefined;
  const found = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/.exec(String(value));
  if (found === null) return number(value);
  const [days, hours, minutes, seconds] = found.slice(1).map((part) => Number(part ?? 0));
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
}

function meter(name, used, limit, format, forecast, unit = "") {
  const share = limit ? Math.min(used / limit, 1) : null;
  const text = limit ? `${format(used)} of ${format(limit)}${unit}` : `${format(used)}${unit}`;
  return { name, share, text, forecast: forecast || "" };
}

/** Seconds in which the turn waited for people: they say nothing of its pace. */
function waited(state, turn, now) {
  const parts = state.steps.filter((step) => step.turn === turn.number).flatMap((step) => step.segments);
  return parts.filter((part) => part.kind === "people").reduce((sum, part) => sum + between(part.from, part.to ?? now), 0);
}

const TOO_EARLY = 0.05; // a forecast from a smaller share of a limit is a guess

/** When a limit comes at this rate: `limit in about 40 steps (12 min)`. */
function ahead(used, limit, each, pace) {
  if (!limit || !each || used / limit < TOO_EARLY) return "";
  const steps = Math.floor((limit - used) / each);
  if (steps <= 0) return "at its limit";
  return `limit in about ${plural(steps, "step")}${pace ? ` (${duration(steps * pace)})` : ""}`;
}
