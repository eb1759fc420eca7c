"""Display of a turn in the Temporal UI: search attributes, summaries, current details.

An upsert costs an event, so it happens at the start and at the end of a turn only; current details cost none.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from perdure.contracts.generations import Compact, Generate
from perdure.contracts.hooks import RunHooks
from perdure.contracts.input_requests import NEEDED, REPLY_VERBS, AskPeople
from perdure.contracts.names import SearchAttribute
from perdure.contracts.tools import CallTool, PlannedCall
from perdure.contracts.turns import CommitTurn, RunState, StopReason, TurnResult
from perdure.contracts.waits import WAITS_FOR_A_SHARE
from perdure.engine import delegates
from perdure.engine.calls import CallTools
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.limits import waits_for_grants
from perdure.engine.state import BackgroundDelegate, TurnState
from perdure.engine.world import Action, WaitForUnpause
from perdure.workflows.mail import PAUSED, TurnMail
from perdure.workflows.runtime import Runtime

SUMMARY_CHARACTERS = 120
"""Longest summary of an activity: the UI shows it in one row."""

SUMMARY_BYTES = 250
"""Largest summary as JSON. The server's own limit is 400, with metadata and encryption around it."""

KEYWORD_CHARACTERS = 255
"""Longest value of a search attribute: the width of the column in Temporal's SQL databases."""

KEYWORD_BYTES = 2_000
"""Largest value of a search attribute as JSON; the server's own limit is 2,048."""

SHOWN_REQUESTS = 5
"""Input requests that are listed in the current details."""

REQUEST_CHARACTERS = 300
"""Longest text of an input request in the current details."""

_MARKS = re.compile(r"[\\`*_<>\[\]#|~]")
_ESCAPED = r"\\\g<0>"
"""Escape what Markdown would take for marks, so that an error's text is shown as it is."""

AGENT = SearchAttributeKey.for_keyword(SearchAttribute.AGENT)
MODEL = SearchAttributeKey.for_keyword(SearchAttribute.MODEL)
STOP_REASON = SearchAttributeKey.for_keyword(SearchAttribute.STOP_REASON)
REASON_CODE = SearchAttributeKey.for_keyword(SearchAttribute.REASON_CODE)
EXCEPTION = SearchAttributeKey.for_keyword(SearchAttribute.EXCEPTION)
TENANT = SearchAttributeKey.for_keyword(SearchAttribute.TENANT)
STATE = SearchAttributeKey.for_keyword(SearchAttribute.STATE)
STEPS = SearchAttributeKey.for_int(SearchAttribute.STEPS)
TOKENS = SearchAttributeKey.for_int(SearchAttribute.TOKENS)
COST_USD = SearchAttributeKey.for_float(SearchAttribute.COST_USD)


def show_start(runtime: Runtime, state: TurnState) -> None:
    """Set the search attributes of a turn that begins, and unset those that the turn before left behind."""
    if not state.origin.search_attributes:
        return
    known = runtime.search_attributes
    updates: list[SearchAttributeUpdate[Any]] = [
        AGENT.value_set(_keyword(state.policy.agent)),
        MODEL.value_set(_keyword(state.policy.model)),
        STATE.value_set(RunState.RUNNING),
    ]
    if state.origin.tenant:
        updates.append(TENANT.value_set(_keyword(state.origin.tenant)))
    updates.extend(key.value_unset() for key in (STOP_REASON, REASON_CODE, EXCEPTION) if known.get(key) is not None)
    if known.get(COST_USD) is not None:
        updates.append(COST_USD.value_unset())
    runtime.upsert(updates)


def _keyword(text: str) -> str:
    """The text, cut to what a search attribute holds; a larger value would fail the workflow task."""
    text = text[:KEYWORD_CHARACTERS]
    while len(json.dumps(text)) > KEYWORD_BYTES:  # as it travels: non-ASCII characters are escaped
        text = text[:-10]
    return text


def show_end(runtime: Runtime, state: TurnState, result: TurnResult) -> None:
    """Set the search attributes and current details of a turn that has ended."""
    runtime.show(_details(state, _ended(result, _why(state, result))))
    if not state.origin.search_attributes:
        return
    updates: list[SearchAttributeUpdate[Any]] = [
        STATE.value_set(RunState.ENDED),
        STOP_REASON.value_set(result.stop_reason),
        STEPS.value_set(result.steps),
        TOKENS.value_set(result.usage.total_tokens),
    ]
    # Calls without a known price must not be shown as a cost of zero.
    if result.cost_usd or not result.unpriced_calls:
        updates.append(COST_USD.value_set(float(result.cost_usd)))
    if result.reason_code:
        updates.append(REASON_CODE.value_set(_keyword(result.reason_code)))
    if result.exception:
        updates.append(EXCEPTION.value_set(_keyword(result.exception)))
    runtime.upsert(updates)


def show_refusal(runtime: Runtime, result: TurnResult) -> None:
    """Set the current details of a request that never became a turn. It has no search attributes."""
    runtime.show(_ended(result, result.error or ""))


def generation_summary(state: TurnState, action: Generate) -> str:
    """The summary of a ``generate`` activity."""
    return _in_one_row(f"step {action.step} · {state.policy.model}")


def compaction_summary(action: Compact) -> str:
    """The summary of a ``compact`` activity."""
    return _in_one_row(f"step {action.step} · {action.trigger}")


def tool_summary(call: CallTool) -> str:
    """The summary of a tool's activity: the arguments, masked as they are everywhere in the history."""
    return _in_one_row(call.arguments)


def delegate_summary(call: PlannedCall) -> str:
    """The summary of a delegate's workflow: what it is asked, as the call's arguments are shown."""
    return _in_one_row(f"{call.tool} {call.arguments}")


def awaiting_summary(state: TurnState, action: AwaitDelegates) -> str:
    """The summary of the ``collect_delegates`` activity: the delegates that the call has waited for."""
    return _in_one_row(", ".join(delegate.tool for delegate in _awaited(state, action)))


def _awaited(state: TurnState, action: AwaitDelegates) -> list[BackgroundDelegate]:
    return [delegate for delegate in state.background if delegate.session in action.sessions]


def asking_summary(action: AskPeople) -> str:
    """The summary of the ``ask`` activity: what people are asked, or have decided."""
    asked = (request.question or f"approve {request.tool}" for request in action.requests)
    decided = (f"{decided.tool} {decided.decision} by {decided.by or 'nobody'}" for decided in action.decided)
    return _in_one_row(", ".join([*asked, *decided]))


def hooks_summary(action: RunHooks) -> str:
    """The summary of the ``run_hooks`` activity: the hooks, and where they are called."""
    return _in_one_row(f"{action.boundary} · {', '.join(action.calling)}")


def commit_summary(action: CommitTurn) -> str:
    """The summary of the ``commit_turn`` activity: how the turn ends."""
    code = f" · {action.error.code}" if action.error else ""
    return _in_one_row(f"{action.stop_reason}{code}")


def _in_one_row(text: str) -> str:
    text = text[:SUMMARY_CHARACTERS]
    while len(json.dumps(text, ensure_ascii=False).encode()) > SUMMARY_BYTES:
        text = text[:-10]
    return text


def show_action(mail: TurnMail, action: Action) -> None:
    """Show what the turn does now, in the status query and in the current details."""
    state = mail.state
    if state is None:
        return
    why, rows = "", ""
    _show_state(mail, state, action)
    if isinstance(action, CallTools):
        called, _ = delegates.next_batch(state)
        mail.activity = "tools: " + ", ".join(planned.tool for planned in called)
    elif isinstance(action, Generate):
        mail.activity = f"generate, step {action.step}"
    elif isinstance(action, Compact):
        mail.activity = f"compact, step {action.step}"
    elif isinstance(action, RunHooks):
        mail.activity = "hooks: " + ", ".join(action.calling)
    elif isinstance(action, WaitForUnpause):
        mail.activity, why = PAUSED, _MARKS.sub(_ESCAPED, str(action.pause).removeprefix(PAUSED))
        rows = f"\n- goes on by `perdure unpause {state.origin.session}`"
    elif isinstance(action, AskPeople):
        mail.activity = "ask"
    elif isinstance(action, CallDelegates):
        mail.activity = "delegates: " + ", ".join(start.call.tool for start in action.starts)
        rows = _delegates([(start.call.tool, start.session) for start in action.starts])
    elif isinstance(action, AwaitDelegates):
        what = WAITS_FOR_A_SHARE if action.call is None and waits_for_grants(state) else "waiting for delegates"
        mail.activity = f"{what}: {awaiting_summary(state, action)}"
        rows = _delegates([(delegate.tool, delegate.session) for delegate in _awaited(state, action)])
    elif isinstance(action, WaitForPeople):
        mail.activity = "waiting for " + ", ".join(f"{_needed(call)}: {call.tool}" for call in state.calls.asking)
        rows = _requests(state)
    else:
        mail.activity, why = "commit_turn", f", {commit_summary(action)}"
    since = f"since {mail.runtime.now:%H:%M:%S} UTC"
    mail.runtime.show(_details(state, f"**now: {mail.activity}**{why}, {since}{rows}"))


_STATES: dict[type[Action], RunState] = {WaitForPeople: RunState.WAITING_FOR_INPUT, WaitForUnpause: RunState.PAUSED}


def _show_state(mail: TurnMail, state: TurnState, action: Action) -> None:
    """Upsert the state if it has changed: when the turn begins to wait, and when it goes on. Each costs an event."""
    now = _STATES.get(type(action), RunState.RUNNING)
    if now is mail.shown_state or isinstance(action, CommitTurn):  # the end has an upsert of its own
        return
    mail.shown_state = now
    if state.origin.search_attributes:
        mail.runtime.upsert([STATE.value_set(now)])


def state_shown(runtime: Runtime) -> RunState:
    """The state that this run's search attributes show. A rotation carries them over to the next run."""
    return RunState(runtime.search_attributes.get(STATE) or RunState.RUNNING)


def _needed(call: PlannedCall) -> str:
    return NEEDED[call.needs or "approval"]


def _requests(state: TurnState) -> str:
    """The first few input requests, each with the command that replies to it: the page shows only a few lines."""
    rows: list[str] = []
    for call in state.calls.asking[:SHOWN_REQUESTS]:
        what = call.question if call.needs == "answer" else f"{call.tool} {call.arguments}"
        choice = f" ({' / '.join(call.options)})" if call.options else ""
        text = _MARKS.sub(_ESCAPED, " ".join(f"{what}{choice}".split())[:REQUEST_CHARACTERS])
        verb, value = REPLY_VERBS[call.needs or "approval"], " VALUE" if call.needs in {"answer", "result"} else ""
        rows.append(f"- {text}: `perdure {verb} {state.origin.session} {call.request_id}{value}`")
    more = len(state.calls.asking) - len(rows)
    return "".join(f"\n{row}" for row in [*rows, *([f"- and {more} more"] if more else [])])


def _delegates(working: Sequence[tuple[str, str]]) -> str:
    """The first few delegates at work, each with the command that follows its session."""
    rows = [f"- {tool}: `perdure follow {session}`" for tool, session in working[:SHOWN_REQUESTS]]
    more = len(working) - len(rows)
    return "".join(f"\n{row}" for row in [*rows, *([f"- and {more} more"] if more else [])])


def _details(state: TurnState, headline: str) -> str:
    """Markdown for the workflow's page. What matters most comes first: the box there shows only a few lines."""
    policy, spent = state.policy, state.own_spent
    if not spent.unpriced_calls:
        cost = f"${spent.cost_usd:.4f}"
    elif spent.cost_usd:
        cost = f"${spent.cost_usd:.4f} and {spent.unpriced_calls} calls of unknown price"
    else:
        cost = "price unknown"
    rows = (
        headline,
        "",
        f"- {state.step} of {policy.max_steps} steps · {spent.usage.total_tokens:,} tokens · {cost}",
        f"- turn {state.origin.turn} of agent {policy.agent} · {policy.model}",
    )
    return "\n".join(rows)


def _ended(result: TurnResult, why: str) -> str:
    code = f" · {result.reason_code}" if result.reason_code else ""
    sentence = f"\n\n{_MARKS.sub(_ESCAPED, why)}" if why else ""
    return f"**ended: {result.stop_reason}**{code}{sentence}"


def _why(state: TurnState, result: TurnResult) -> str:
    """Reason the turn ended, as one sentence; empty if the model finished it."""
    if result.error:
        return result.error
    if result.stopped_by is not None:
        return f"stopped by {result.stopped_by}"
    if result.stop_reason == StopReason.MAX_STEPS_REACHED:
        return f"all {state.policy.max_steps} steps are used; another message to the session goes on"
    if result.stop_reason == StopReason.STALLED:
        return (
            f"the model answered with text and did not call {state.policy.finish_tool}, which ends the work; "
            "another message to the session goes on"
        )
    return ""
