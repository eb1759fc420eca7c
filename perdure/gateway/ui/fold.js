// The state of a job's page as a fold of its event log: no clock, no network, no document here.
//
// `fold(state, lines)` takes events as `perdure follow --json` prints them and returns the next state; the old one
// stays as it is. The same lines give the same state however they are cut into batches, and a line that came before
// (after a reconnect) changes nothing. Pieces of an answer that is still being written are for deltas.js.

import { NOTHING, advance, isOpenedBy, kindOf, openOf } from "./activity.js";

/** The state before the first event of a session. */
export function start(session) {
  return {
    session,
    last: 0, // number of the last event
    gaps: [], // [{after, next}]: numbers that never came
    lines: [], // every event, for the raw log
    turns: [], // one value for each turn, the last one last
    blocks: [], // the transcript, in order
    calls: {}, // tool calls by id
    requests: {}, // questions and approvals by id
    standing: 0, // approvals that were given to stand for further calls
    steps: [], // the waterfall: [{key, turn, step, from, to, segments}]
    errors: [], // failures and retries, oldest first
    delegates: [], // delegates of this session, and through `?tree=1` those below them
    todos: [],
    sentence: "", // the agent's last words
    limits: {}, // limits changed in the running turn
    activity: NOTHING, // what is under way
    live: null, // the answer that is being written
  };
}

/** The state after these events. */
export function fold(state, lines) {
  const next = {
    ...state,
    gaps: [...state.gaps],
    lines: [...state.lines],
    turns: [...state.turns],
    blocks: [...state.blocks],
    calls: { ...state.calls },
    requests: { ...state.requests },
    steps: [...state.steps],
    errors: [...state.errors],
    delegates: [...state.delegates],
    limits: { ...state.limits },
  };
  for (const line of lines) {
    if (line.session !== undefined && line.session !== state.session) foldBelow(next, line);
    else if (line.type !== "heartbeat" && line.seq > next.last) foldOwn(next, line);
  }
  return next;
}

function foldOwn(state, line) {
  if (line.seq > state.last + 1) state.gaps.push({ after: state.last, next: line.seq });
  state.last = line.seq;
  state.lines.push(line);
  state.activity = advance(state.activity, line);
  HANDLERS[line.type]?.(state, line);
  const turn = turnOf(state);
  if (turn === undefined) return;
  const used = turn.end === null ? { ...turn.used, usage: state.activity.usage, cost: state.activity.cost } : turn.used;
  patchTurn(state, { used, activity: doing(state.activity), lastAt: line.at, ...(line.step > turn.step ? { step: line.step } : {}) });
}

/** An event of a delegate, or of one below it: only the tree of delegates shows it. */
function foldBelow(state, line) {
  const patch = {
    agent_start: { state: "running", agent: line.agent, turn: line.turn },
    generation_content: { sentence: line.content },
    generation_end: { steps: line.step },
    user_input_required: { state: "waiting_for_input" },
    user_input_received: { state: "running" },
    agent_end: { state: "ended", ...endOf(line) },
  }[line.type];
  const known = state.delegates.findLast((found) => found.session === line.session);
  if (patch !== undefined && known !== undefined) patchDelegate(state, line.session, known.endedAt === null ? patch : { ...patch, state: known.state });
  if (line.type === "delegate_start") addDelegate(state, line, line.session);
  if (line.type === "delegate_end") endDelegate(state, line, line.session);
}

function adaptation(line) {
  const count = line.left_out?.length ?? 0;
  return [
    count ? `without ${count} attachment${count === 1 ? "" : "s"}` : "",
    line.reasons === false ? "without its reasoning" : "",
    line.most == null ? "" : `with ${line.most} attachments at most`,
    line.most_bytes == null ? "" : `with ${line.most_bytes} bytes of attachments at most`,
    line.most_characters == null ? "" : `with ${line.most_characters} characters of a message at most`,
  ].filter(Boolean).join(", ");
}

const HANDLERS = {
  agent_start(state, line) {
    state.turns.push({
      number: line.turn, agent: line.agent, model: line.model, definition: line.definition, tenant: line.tenant,
      by: line.by, context: line.context, resumedFrom: line.resumed_from, delegatedBy: line.delegated_by,
      contextWindow: line.context_window, startedAt: line.at, lastAt: line.at, endedAt: null, end: null, step: 0,
      used: { steps: 0, usage: NOTHING.usage, cost: 0, unpriced: 0, toolCalls: 0, context: 0 }, fallbacks: [], activity: null,
    });
    state.limits = {};
    block(state, line, "prompt", { text: line.prompt, parts: line.parts ?? [], by: line.by });
  },
  user_message(state, line) {
    block(state, line, "prompt", { text: line.content, parts: line.parts ?? [], steered: true, by: line.is_notice ? "Notice" : "" });
  },
  generation_start(state, line) {
    idle(state, line, "worker");
    open(state, line, { kind: "model", label: line.model, attempt: 1 });
  },
  generation_wait(state, line) {
    note(state, line, "quiet", `Waits for its turn: ${line.model} limits the key${line.ahead ? `, ${line.ahead} calls before it` : ""}`);
  },
  generation_adapted(state, line) {
    note(state, line, "warning", `${line.model} goes on ${adaptation(line)}: ${line.reason}`);
  },
  generation_retry(state, line) {
    const attempts = close(state, line, (part) => part.kind === "model" && part.attempt !== undefined, { failed: line.code });
    const until = later(line.at, line.wait_seconds);
    open(state, line, { kind: "retry", label: line.code, to: until, planned: true });
    open(state, { ...line, at: until }, { kind: "model", label: "", attempt: attempts + 1, planned: true });
    failure(state, line, { kind: "retry", code: line.code, title: line.error_type || "generation", message: line.error_message, again: `retry ${line.attempt} of ${line.max_attempts}` });
    note(state, line, "warning", `Retry ${line.attempt} of ${line.max_attempts} after ${line.error_type || line.code}: ${line.error_message}`, { code: line.code });
    if (!line.replayed) dropLive(state, line); // pieces that came are of a later attempt
  },
  generation_content(state, line) {
    dropLive(state, line);
    state.sentence = line.content.trim() || state.sentence;
    block(state, line, "answer", { text: line.content, calls: line.tool_calls.map((call) => call.call_id) });
    for (const call of line.tool_calls) {
      const known = state.calls[call.call_id];
      if (known !== undefined && known.turn === line.turn && known.step === line.step) continue; // it has begun, or ended
      state.calls[call.call_id] = { ...call, seq: line.seq, turn: line.turn, step: line.step, state: "asked", attempts: 1 };
    }
  },
  generation_end(state, line) {
    close(state, line, (part) => part.kind === "model" || part.kind === "retry", { recorded: line.recorded });
    const turn = turnOf(state);
    if (turn === undefined) return;
    const used = { ...turn.used, steps: turn.used.steps + 1, context: line.usage.input_tokens + line.usage.output_tokens };
    used.unpriced += line.cost_usd === null ? 1 : 0;
    patchTurn(state, { used });
    const at = state.blocks.findLastIndex((found) => found.kind === "answer" && found.turn === line.turn && found.step === line.step);
    if (at >= 0) state.blocks[at] = { ...state.blocks[at], end: { seconds: line.seconds, usage: line.usage, cost: line.cost_usd, model: line.model, finish: line.finish_reason, recorded: line.recorded } };
  },
  generation_error(state, line) {
    close(state, line, (part) => part.kind === "model" || part.kind === "retry", { failed: line.error.code });
    failed(state, line, "generation");
    dropLive(state, line);
  },
  compaction_event(state, line) {
    if (line.compaction_status === "started") {
      open(state, line, { kind: "compaction", label: line.trigger });
      doing(state, { kind: "compaction", since: line.at });
      return;
    }
    close(state, line, (part) => part.kind === "compaction", line.error ? { failed: line.error.code } : {});
    const counts = `${line.messages_before} → ${line.messages_after} messages`;
    const text = line.compaction_status === "completed" ? `Compacted: ${counts}` : `Compaction ${line.compaction_status}: ${line.reason}`;
    note(state, line, line.compaction_status === "completed" ? "quiet" : "warning", text, { detail: line.summary });
    if (line.error) failure(state, line, { kind: "compaction", ...about(line.error) });
  },
  tool_start(state, line) {
    const calls = openOf(state.activity, "tools");
    if (!calls.some((found) => found.call_id === line.call_id)) return; // it has ended
    if (!calls.some((found) => found !== line)) idle(state, line, "worker");
    const known = state.calls[line.call_id] ?? callOf(line);
    const again = !isOpenedBy(state.activity, line);
    state.calls[line.call_id] = { ...known, arguments: line.arguments, state: "running", startedAt: line.at, startSeq: line.seq };
    if (!again) open(state, line, { kind: "tool", label: line.tool, call: line.call_id, attempt: known.attempts ?? 1 });
    if (!again) patchUsed(state, (used) => ({ toolCalls: used.toolCalls + 1 }));
  },
  tool_progress(state, line) {
    patchCall(state, line, { progress: { done: line.progress, total: line.total, message: line.message } });
  },
  tool_recovery(state, line) {
    const known = state.calls[line.call_id] ?? callOf(line);
    close(state, line, (part) => part.call === line.call_id, { lost: true });
    const attempts = (known.attempts ?? 1) + (line.decision === "run_again" ? 1 : 0);
    state.calls[line.call_id] = { ...known, recovery: { decision: line.decision, reason: line.reason, was: line.stopped ? "stopped" : "lost" }, attempts };
    if (line.decision === "run_again") open(state, line, { kind: "tool", label: line.tool, call: line.call_id, attempt: attempts });
    const what = { run_again: "runs again", result_found: "does not run again", given_up: "is given up" }[line.decision];
    note(state, line, "warning", `${line.tool} ${what}, its worker was ${line.stopped ? "stopped" : "lost"}: ${line.reason}`);
  },
  tool_end(state, line) {
    endCall(state, line, line.error ? "failed" : "ended", {
      result: line.result, seconds: line.seconds, artifact: line.artifact, attachments: line.attachments ?? [],
      recorded: line.recorded,
    });
    if (line.error) failed(state, line, "tool");
  },
  tool_error(state, line) {
    endCall(state, line, "failed", {});
    failed(state, line, "tool");
  },
  delegate_start(state, line) {
    addDelegate(state, line, state.session);
    const call = state.calls[line.call_id] ?? callOf(line);
    const isFirst = isOpenedBy(state.activity, line);
    const begins = isFirst && call.state === "asked" ? { state: "running", startedAt: line.at } : {}; // one in the background has its result
    patchCall(state, line, { ...begins, delegate: line.delegate });
    if (isFirst) open(state, line, { kind: "delegate", label: line.agent, call: `delegate ${line.call_id}` });
  },
  delegate_end(state, line) {
    close(state, line, (part) => part.call === `delegate ${line.call_id}`, line.stop_reason === "finished" ? {} : { failed: line.stop_reason });
    endDelegate(state, line, state.session);
  },
  user_input_required(state, line) {
    state.requests[line.request_id] = { ...line, decision: null };
    open(state, line, { kind: "people", label: line.tool, call: `person ${line.request_id}` });
    block(state, line, "request", { request: line.request_id });
  },
  user_input_received(state, line) {
    close(state, line, (part) => part.call === `person ${line.request_id}`, { failed: line.decision === "denied" || line.decision === "expired" ? line.decision : undefined });
    const asked = state.requests[line.request_id] ?? { request_id: line.request_id, tool: line.tool, needs: "approval" };
    state.requests[line.request_id] = { ...asked, decision: line.decision, by: line.by, decidedAt: line.at, decidedSeq: line.seq };
    const who = line.by ? ` by ${line.by}` : "";
    const how = line.standing ? ", by an approval that stands" : line.always ? ", and further calls too" : "";
    if (line.always) state.standing += 1;
    note(state, line, "quiet", `${capital(line.decision)}${who}: ${line.tool}${how}`);
  },
  budget_warning(state, line) {
    note(state, line, "warning", `${Math.round(Number(line.share) * 100)} % of the budget ${line.dimension} is used: ${line.used}`);
  },
  budget_changed(state, line) {
    state.limits[line.dimension] = line.after;
    note(state, line, "quiet", `Limit changed: ${line.dimension} ${line.before ?? "none"} → ${line.after}`);
  },
  model_fallback(state, line) {
    const turn = turnOf(state);
    if (turn !== undefined) patchTurn(state, { fallbacks: [...turn.fallbacks, { failed: line.failed, code: line.code, model: line.model }] });
    note(state, line, "warning", `${line.failed} failed; ${line.model} goes on`, { code: line.code });
  },
  todos_changed(state, line) {
    state.todos = line.todos;
  },
  stop_condition_met(state, line) {
    note(state, line, "quiet", `Stop condition met: ${line.condition}`);
  },
  react_step(state, line) {
    const reaction = line.reaction;
    const said = reaction.reason ?? reaction.feedback ?? (reaction.messages ?? []).join(" ");
    note(state, line, "warning", `Hook ${line.hook_name}: ${reaction.type.replaceAll("_", " ")}${said ? `: ${said}` : ""}`);
  },
  hook_end(state, line) {
    if (line.error) failed(state, line, "hook");
  },
  agent_stalled(state, line) {
    note(state, line, "warning", "Stalled: the model answered without finishing");
  },
  agent_error(state, line) {
    failed(state, line, "agent");
  },
  agent_end(state, line) {
    close(state, line, () => true, {});
    const turn = turnOf(state);
    const used = { ...(turn?.used ?? {}), steps: line.steps, usage: line.usage, cost: Number(line.cost_usd), unpriced: line.unpriced_calls };
    patchTurn(state, { end: line, endedAt: line.at, used });
    for (const [id, request] of Object.entries(state.requests)) {
      const stays = line.stop_reason === "waiting_for_input";
      if (request.decision === null && request.turn === line.turn && !stays) state.requests[id] = { ...request, decision: "ended" };
    }
    for (const [id, call] of Object.entries(state.calls)) {
      if (call.state === "running" || (call.state === "asked" && call.turn === line.turn && line.stop_reason !== "waiting_for_input")) state.calls[id] = { ...call, state: "left" };
    }
    block(state, line, "end", {});
    dropLive(state, { ...line, step: Infinity });
  },
};

// The transcript.

function block(state, line, kind, fields) {
  state.blocks.push({ kind, seq: line.seq, turn: line.turn, step: line.step, at: line.at, ...fields });
}

function note(state, line, tone, text, more = {}) {
  block(state, line, "note", { tone, text, ...more });
}

function about(error) {
  return { code: error.code, title: error.title, message: error.message, exception: error.exception ?? error.type };
}

function failed(state, line, kind) {
  const fresh = failure(state, line, { kind, ...about(line.error), traceback: line.traceback });
  if (kind !== "tool" && fresh) block(state, line, "error", { error: line.error });
}

/** A failure in the list of errors; false if it is there: the error that ends a turn repeats the one that caused it. */
function failure(state, line, fields) {
  const before = state.errors.at(-1);
  const fresh = { seq: line.seq, at: line.at, turn: line.turn, step: line.step, tool: line.tool, ...fields };
  if (fields.kind === "agent" && before && before.code === fresh.code && before.message === fresh.message && before.turn === line.turn) {
    state.errors[state.errors.length - 1] = { ...before, ended: true };
    return false;
  }
  state.errors.push(fields.kind === "agent" ? { ...fresh, ended: true } : fresh);
  return true;
}

// Turns and calls.

/** The turn that runs, or else the last. */
export function turnOf(state) {
  return state.turns.at(-1);
}

function patchTurn(state, patch) {
  const turn = turnOf(state);
  if (turn !== undefined) state.turns[state.turns.length - 1] = { ...turn, ...patch };
}

function patchUsed(state, change) {
  const turn = turnOf(state);
  if (turn !== undefined) patchTurn(state, { used: { ...turn.used, ...change(turn.used) } });
}

/** What the verdict tells of an activity; null is nothing. */
function doing(activity) {
  const kind = kindOf(activity);
  if (kind === null) return null;
  const line = activity.model?.kind === kind ? activity.model.line : openOf(activity, kind)[0];
  const again = kind === "retry" ? { attempt: line.attempt, of: line.max_attempts, code: line.code, until: later(line.at, line.wait_seconds) } : {};
  return { kind, model: line.model, since: line.at, ...again };
}

function callOf(line) {
  return { call_id: line.call_id, tool: line.tool, arguments: "{}", seq: line.seq, turn: line.turn, step: line.step, state: "asked", attempts: 1 };
}

function patchCall(state, line, patch) {
  state.calls[line.call_id] = { ...(state.calls[line.call_id] ?? callOf(line)), ...patch };
}

function endCall(state, line, outcome, more) {
  close(state, line, (part) => part.call === line.call_id, line.error ? { failed: line.error.code } : {});
  const error = line.error ? about(line.error) : null;
  patchCall(state, line, { state: outcome, endedAt: line.at, endSeq: line.seq, error, traceback: line.traceback ?? null, ...more });
}

/** The calls whose bodies run now. */
export function running(state) {
  return openOf(state.activity, "tools").map((line) => state.calls[line.call_id]);
}

/** The questions and approvals that nobody has decided yet. */
export function openRequests(state) {
  return Object.values(state.requests).filter((request) => request.decision === null);
}

// Delegates.

function endOf(line) {
  return {
    stopReason: line.stop_reason, code: line.reason_code, error: line.error, steps: line.steps, usage: line.usage,
    cost: Number(line.cost_usd),
  };
}

function addDelegate(state, line, parent) {
  if (state.delegates.some((found) => found.session === line.delegate && found.call === line.call_id)) return;
  state.delegates.push({
    session: line.delegate, parent, agent: line.agent, call: line.call_id, tool: line.tool, seq: line.seq,
    startedAt: line.at, endedAt: null, state: "running", steps: 0, cost: null, usage: null, sentence: "",
  });
}

/** Also of one whose start is not there yet. */
function endDelegate(state, line, parent) {
  addDelegate(state, line, parent);
  patchDelegate(state, line.delegate, { state: "ended", ...endOf(line), endedAt: line.at });
}

function patchDelegate(state, session, patch) {
  const at = state.delegates.findLastIndex((found) => found.session === session);
  if (at >= 0) state.delegates[at] = { ...state.delegates[at], ...patch };
}

// The waterfall.

function stepOf(state, line) {
  const key = `${line.turn}/${Math.max(line.step, 1)}`;
  const at = state.steps.findLastIndex((step) => step.key === key);
  if (at >= 0) return at;
  state.steps.push({ key, turn: line.turn, step: Math.max(line.step, 1), segments: [] });
  return state.steps.length - 1;
}

function open(state, line, fields) {
  const at = stepOf(state, line);
  const step = state.steps[at];
  state.steps[at] = { ...step, segments: [...step.segments, { from: line.at, to: null, seq: line.seq, ...fields }] };
}

/** End the open segments that are meant; returns the highest attempt among them, or 0. */
function close(state, line, isMeant, fields) {
  let attempts = 0;
  for (let at = state.steps.length - 1; at >= 0 && at >= state.steps.length - 3; at -= 1) {
    const step = state.steps[at];
    if (!step.segments.some((part) => isOpen(part) && isMeant(part))) continue;
    const segments = step.segments.map((part) => {
      if (!isOpen(part) || !isMeant(part)) return part;
      attempts = Math.max(attempts, part.attempt ?? 0);
      const { planned, ...kept } = part;
      if (planned && part.to !== null) return { ...kept, to: part.to < line.at ? part.to : line.at };
      return { ...kept, ...fields, from: part.from < line.at ? part.from : line.at, to: line.at };
    });
    state.steps[at] = { ...step, segments };
  }
  return attempts;
}

function isOpen(part) {
  return part.to === null || part.planned === true;
}

/** Time in which nothing of the turn was under way, until this event. */
function idle(state, line, kind) {
  const since = turnOf(state)?.lastAt;
  if (since !== undefined && since < line.at) open(state, line, { kind, label: "", from: since, to: line.at });
}

/** No more of the preview of this step, or of an earlier one. A reader may have pieces before the events that lead there. */
function dropLive(state, line) {
  const [turn, step] = state.live?.key ?? [0, 0];
  if (turn < line.turn || (turn === line.turn && step <= line.step)) state.live = null;
}

function later(at, seconds) {
  return new Date(Date.parse(at) + seconds * 1000).toISOString().replace("Z", "+00:00");
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
