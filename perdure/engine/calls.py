"""The calls of an answer: which run next, what their results change, and those that the workflow carries out itself."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Generation
from perdure.contracts.hooks import TodosChanged
from perdure.contracts.tools import (
    MAX_TODOS,
    AttemptCompletion,
    BuiltinCall,
    CallTool,
    ChangeTodos,
    ClearTodos,
    FinishCall,
    PlannedCall,
    Todo,
    ToolDeclaration,
    ToolOutcome,
    changes_todos,
)
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue, json_object, replace
from perdure.engine import delegates
from perdure.engine.delegates import AwaitDelegates, CallDelegates, End
from perdure.engine.limits import Wanted
from perdure.engine.state import Calls, Ending, TurnState

MAX_TOOL_ERRORS_IN_ROW = 10
"""With ``on_tool_error: feed_back``, this number of answers in a row whose tool calls all fail ends the turn."""

MAX_RESULTS = 256 * 1024
"""Bytes of all todo lists in the results of one answer. Beyond it earlier lists are left out, never the last."""

LATER = "done; the whole list stands in the result of the last of these calls"
"""Result for the model in place of a list that was left out."""

_CALL: TypeAdapter[BuiltinCall] = TypeAdapter(BuiltinCall)


class _NotDoneError(ValueError):
    """A call about todos cannot be carried out, and changes nothing; the message is for the model."""


@dataclass(frozen=True)
class CallTools:
    """Run these calls in parallel."""

    calls: tuple[CallTool, ...]


@dataclass(frozen=True)
class ToolResults:
    """One outcome for each call, in order; ``aborted`` is the failure that ends the turn, if one does."""

    outcomes: tuple[ToolOutcome, ...]
    aborted: ErrorDetail | None = None


def next_calls(state: TurnState) -> CallTools | CallDelegates | AwaitDelegates:
    """The pending calls that run next."""
    batch, _ = delegates.next_batch(state)
    if batch[0].builtin is not None:
        return delegates.await_delegates(state, batch[0])
    if delegates.settings_of(state.policy, batch[0]) is not None:
        return delegates.call_delegates(state, batch)
    return CallTools(
        tuple(
            CallTool(
                session=state.origin.session,
                store=state.origin.store,
                trace=state.origin.trace,
                turn=state.origin.turn,
                step=state.step,
                call_id=call.call_id,
                definition=state.origin.definition,
                arguments=call.arguments,
                approval=call.approval,
                answer=call.answer,
            )
            for call in batch
        )
    )


def failed_outcome(call_id: str, error: ErrorDetail) -> ToolOutcome:
    """The outcome of a call whose activity could not record one."""
    return ToolOutcome(call_id=call_id, preview=error.message, error=error, recorded=False)


def with_tools(state: TurnState, results: ToolResults) -> TurnState:
    """The tools of the step have results."""
    # Calls of one answer count as one: the model has read none of their results before the last.
    outcomes = results.outcomes
    ended = [outcome for outcome in outcomes if outcome.asks is None]
    in_row = _errors_in_row(state, ended, counted=bool(ended)) if ended else (state.tool_errors_in_row, None)
    state, unknown = _with_lost_queues(state, outcomes), state.calls.unknown_tool
    state = replace(state, calls=replace(state.calls, unknown_tool=None))
    return _with_results(state, outcomes, results.aborted or unknown, in_row)


def with_delegates(state: TurnState, action: CallDelegates, ended: Sequence[End]) -> TurnState:
    """The delegates of the step have ended, or work in the background and have their first result.

    Under ``on_child_error: propagate`` the first delegate that did not finish ends the turn. A delegate that did not
    start is an error for the model, and its limit ends the turn.
    """
    came = tuple(delegates.outcome_of(start, end) for start, end in zip(action.starts, ended, strict=True))
    propagates = state.policy.on_child_error == "propagate"
    failed = next((outcome.error for outcome in came if outcome.error is not None), None) if propagates else None
    return _with_results(state, (*came, *action.refused), failed, _delegate_errors_in_row(state, came))


def with_awaited(state: TurnState, action: AwaitDelegates, outcome: ToolOutcome) -> TurnState:
    """The model's call that waited for delegates has its result."""
    state = delegates.mark_read(state, action.sessions)
    failed = delegates.error_to_propagate(state)
    return _with_results(state, (outcome,), failed, _delegate_errors_in_row(state, (outcome,)))


ErrorsInRow = tuple[int, ErrorDetail | None]
"""Answers in a row whose calls all failed, and the last error among the new results."""


def _errors_in_row(state: TurnState, outcomes: Sequence[ToolOutcome], *, counted: bool) -> ErrorsInRow:
    helped = any(outcome.error is None for outcome in outcomes)
    last = next((outcome.error for outcome in reversed(outcomes) if outcome.error), None)
    return 0 if helped else state.tool_errors_in_row + counted, last


def with_refused(state: TurnState, refused: Sequence[ErrorDetail]) -> TurnState:
    """The state after an answer whose calls were all refused before they ran: with too many in a row the turn ends."""
    count = state.tool_errors_in_row + 1
    ending = None
    if count >= state.policy.most_refused:
        ending = Ending(stop_reason=StopReason.ERROR, error=_error_of_row(count, refused[-1]))
    return replace(state, tool_errors_in_row=count, ending=ending or state.ending)


def _error_of_row(count: int, last: ErrorDetail) -> ErrorDetail:
    message = f"{count} tool errors in a row; the last one, of {last.title}: {last.message}"[:2000]
    return replace(last, title="agent", message=message)


def _delegate_errors_in_row(state: TurnState, outcomes: Sequence[ToolOutcome]) -> ErrorsInRow:
    """All delegates of an answer count as one call, once the last of them has ended. Refused ones do not count."""
    _, later = delegates.next_batch(state)
    return _errors_in_row(state, outcomes, counted=bool(outcomes) and not later)


def _with_results(
    state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None, in_row: ErrorsInRow
) -> TurnState:
    batch, later = delegates.next_batch(state)
    asking = tuple(
        call.with_question(outcome.asks)
        for call, outcome in zip(batch, outcomes, strict=True)
        if outcome.asks is not None
    )
    batch = tuple(call for call, outcome in zip(batch, outcomes, strict=True) if outcome.asks is None)
    outcomes = tuple(outcome for outcome in outcomes if outcome.asks is None)
    unrecorded = tuple(outcome for outcome in outcomes if not outcome.recorded)
    ending = _ending_of(state, batch, outcomes, aborted, in_row)
    if ending is not None:
        later, unrecorded = (), (*unrecorded, *delegates.withdraw(later))
    calls = replace(state.calls, pending=later).with_questions(asking)
    return replace(
        state,
        calls=calls.with_outcomes(unrecorded),
        tool_errors_in_row=in_row[0],
        tally=state.tally.with_results(batch, outcomes),
        ending=ending or state.ending,
    )


def _ending_of(
    state: TurnState,
    batch: Sequence[PlannedCall],
    outcomes: Sequence[ToolOutcome],
    aborted: ErrorDetail | None,
    in_row: ErrorsInRow,
) -> Ending | None:
    """Ending of the turn by its results, if any: a failure, a tool that asks for it, or too many errors in a row."""
    aborted = aborted or next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if aborted is not None:
        return Ending(stop_reason=StopReason.ERROR, error=aborted)
    results = list(zip(batch, outcomes, strict=True))
    for call, outcome in results:
        if outcome.stop is not None:
            return Ending(stop_reason=StopReason.FINISHED, stopped_by=f"{call.tool}: {outcome.stop}")
    if any(call.tool == state.policy.finish_tool and outcome.error is None for call, outcome in results):
        return Ending(stop_reason=StopReason.FINISHED)
    count, last = in_row
    if count >= MAX_TOOL_ERRORS_IN_ROW and last is not None:
        return Ending(stop_reason=StopReason.ERROR, error=_error_of_row(count, last))
    return None


def _with_lost_queues(state: TurnState, outcomes: Sequence[ToolOutcome]) -> TurnState:
    """The state with the queues of workers that took no calls any more: later calls do not count on them."""
    lost_calls = {
        outcome.call_id
        for outcome in outcomes
        if outcome.error is not None and outcome.error.code == ReasonCode.TOOL_STATE_LOST and not outcome.recorded
    }
    if not lost_calls:
        return state
    tools = [state.policy.tools.get(call.tool) for call in state.calls.pending if call.call_id in lost_calls]
    lost = [tool.task_queue for tool in tools if tool is not None and tool.task_queue is not None]
    return replace(state, lost_queues=tuple(dict.fromkeys((*state.lost_queues, *lost))))


def uses_of(state: TurnState, call: PlannedCall) -> Wanted:
    """The budgets that a call uses up."""
    return own_uses_of(call) or delegates.uses_of(state.policy, call)


def withdraw(state: TurnState, why: str) -> TurnState:
    """The state with an error that says ``why`` for each call that has not run, and their budgets given back.

    At step 0 nothing is given back: the calls are of the turn before, and were charged to it.
    """
    unrun = (*state.calls.pending, *state.calls.asking, *state.calls.own)
    spent = state.spent
    for call in unrun if state.step else ():
        uses = uses_of(state, call).uses
        spent = spent.model_copy(update={str(name): getattr(spent, name) - 1 for name in uses})
    outcomes = [
        failed_outcome(
            call.call_id, ErrorDetail(code=ReasonCode.TOOL_DENIED, title=call.tool, message=f"{call.tool}: {why}")
        )
        for call in unrun
    ]
    none_left = replace(state.calls, pending=(), asking=(), own=(), unknown_tool=None)
    return replace(state, calls=none_left.with_outcomes(outcomes), spent=spent)


def plan(tool: ToolDeclaration, call: PlannedCall, shown: str) -> PlannedCall:
    """The call with its parsed arguments, or rejected if these do not fit. For activities.

    Args:
        tool: The tool. Only calls of built-in tools, which the workflow carries out, are parsed here.
        call: The call as planned so far.
        shown: The arguments as JSON with secrets masked, since they go into the history.
    """
    if tool.builtin is None or call.rejected is not None:
        return call
    try:
        arguments: BuiltinCall = _CALL.validate_python({**json_object(shown or "{}"), "type": tool.builtin})
    except ValidationError as error:
        problems: list[str] = []
        for problem in error.errors()[:5]:
            field = ".".join(map(str, problem["loc"][1:]))  # the first part is the kind of the call
            problems.append(f"{field}: {problem['msg']}" if field else problem["msg"])
        return _rejected(call, f"the arguments do not fit the schema: {'; '.join(problems)}")
    except ValueError as error:
        return _rejected(call, f"the arguments are no JSON object: {error}")
    return replace(call, builtin=arguments)


def _rejected(call: PlannedCall, message: str) -> PlannedCall:
    error = ErrorDetail(code=ReasonCode.TOOL_INVALID_INPUT, title=call.tool, message=message[:500])
    return replace(call, rejected=error, needs=None)


def own_uses_of(call: PlannedCall) -> Wanted | None:
    """The budgets that a call which the workflow carries out uses up; None for any other call."""
    if call.builtin is None:
        return None
    if changes_todos(call.builtin):
        return Wanted(tool=call.tool, uses=("tool_calls", "events", "patches"))
    return Wanted(tool=call.tool)


def carry_out(state: TurnState) -> TurnState:
    """Carry out the workflow's own calls that are due; end the turn if the model called an unknown tool."""
    if state.ending is None and state.calls.own:
        state = _with_todos(state)
        calls = state.calls
        waits = calls.pending or calls.asking or calls.unknown_tool is not None
        state = state if waits or not calls.own else _with_completion(state)
    calls = state.calls
    if calls.unknown_tool is None or state.ending is not None:
        return state
    # The tools beside the unknown one get their results first. Nothing else starts.
    if any(call.builtin is None and delegates.settings_of(state.policy, call) is None for call in calls.pending):
        return state
    ending = Ending(stop_reason=StopReason.ERROR, error=calls.unknown_tool)
    none_left = replace(calls, pending=(), unknown_tool=None).with_outcomes(delegates.withdraw(calls.pending))
    return replace(state, calls=none_left, ending=ending)


def _with_todos(state: TurnState) -> TurnState:
    """Carry out the calls about todos, in the model's order."""
    todos, outcomes = state.todos, list[ToolOutcome]()
    mine = [call for call in state.calls.own if isinstance(call.builtin, ChangeTodos | ClearTodos)]
    for call in mine:
        try:
            todos = _changed(todos, call.builtin)
        except _NotDoneError as problem:
            outcomes.append(call.as_error(ReasonCode.TOOL_INVALID_INPUT, str(problem), decided=call.approval))
        else:
            outcomes.append(_result(call, list_todos(todos)))
    events = [TodosChanged(todos=todos)] if todos != state.todos else []
    others = replace(state.calls, own=tuple(call for call in state.calls.own if call not in mine))
    state = replace(state, todos=todos, calls=others)
    state = _with_own_results(state, mine, _in_one_payload(outcomes)).with_decided(*events)
    return state if state.calls.own else _with_row(state, mine, [outcome.error for outcome in state.calls.outcomes])


def _with_row(state: TurnState, mine: Sequence[PlannedCall], came: Sequence[ErrorDetail | None]) -> TurnState:
    """Count an answer whose calls the workflow alone carries out, once all of them have come to something.

    Args:
        state: The turn.
        mine: The calls that were carried out last.
        came: The error of each call, also of refused ones; None begins the row anew.
    """
    # People may approve a call long after the others of its answer have helped.
    is_late = any(call.approval is not None for call in mine)
    if is_late or not state.policy.most_refused or not state.calls.own_only or state.has_open_calls:
        return state
    errors = [error for error in came if error is not None]
    return with_refused(state, errors) if len(errors) == len(came) else replace(state, tool_errors_in_row=0)


def _changed(todos: tuple[Todo, ...], call: object) -> tuple[Todo, ...]:
    if not isinstance(call, ChangeTodos):
        return ()
    changed = [*todos, *(Todo(title=title) for title in call.new_titles)]
    if len(changed) > MAX_TODOS:
        msg = f"there would be {len(changed)} todos, the limit is {MAX_TODOS}; complete some and call clear_todo first"
        raise _NotDoneError(msg)
    for number in call.completed:
        if not 0 <= number < len(changed):
            ids = f"the ids are 0 to {len(changed) - 1}" if changed else "there are none"
            msg = f"there is no todo {number}; {ids}; nothing has changed"
            raise _NotDoneError(msg)
        changed[number] = replace(changed[number], completed=True)
    return tuple(changed)


def _in_one_payload(outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
    left, kept = MAX_RESULTS, list[ToolOutcome]()
    for outcome in reversed(outcomes):
        left -= len(outcome.preview.encode())
        fits = not kept or left >= 0 or outcome.error is not None
        kept.append(outcome if fits else replace(outcome, preview=LATER))
    return kept[::-1]


def list_todos(todos: Sequence[Todo], *, only_open: bool = False) -> str:
    """The list as the model reads it."""
    numbered: list[JsonValue] = [
        {"id": number, "title": todo.title, "completed": todo.completed}
        for number, todo in enumerate(todos)
        if not (only_open and todo.completed)
    ]
    return json.dumps({"open_todos" if only_open else "todos": numbered}, ensure_ascii=False)


def _with_completion(state: TurnState) -> TurnState:
    """Carry out the calls that may end the turn, in the model's order. Every other call has its result by now."""
    outcomes: list[ToolOutcome] = []
    came = [outcome.error for outcome in state.calls.outcomes]
    ending, completing = state.ending, state.completing
    is_open = any(not todo.completed for todo in state.todos)
    for call in state.calls.own:
        if isinstance(call.builtin, AttemptCompletion) and is_open:
            outcomes.append(_result(call, list_todos(state.todos, only_open=True)))
            came.append(_not_completed(call, "todos are open"))
            continue
        outcomes.append(_result(call, "finished"))
        if isinstance(call.builtin, FinishCall) or state.calls.has_text:
            ending = Ending(stop_reason=StopReason.FINISHED)
        else:
            completing = True
            came.append(_not_completed(call, "no text came, which is the result"))
    mine = state.calls.own
    state = replace(state, calls=replace(state.calls, own=()), ending=ending, completing=completing)
    state = _with_own_results(state, mine, outcomes)
    return state if ending is not None else _with_row(state, mine, came)


def _not_completed(call: PlannedCall, why: str) -> ErrorDetail:
    message = f"{call.tool} did not complete the work: {why}"
    return ErrorDetail(code=ReasonCode.TOOL_INVALID_INPUT, title=call.tool, message=message)


def outcomes_of_unrun(calls: Calls) -> tuple[ToolOutcome, ...]:
    """Errors for the workflow's own calls in a turn that ends, or stops for people, before they were due."""
    said = "Operation aborted: the turn ended before {}, call it again when the work is done"
    return tuple(
        call.as_error(ReasonCode.TOOL_CANCELLED, said.format(call.tool), decided=call.approval) for call in calls.own
    )


def _with_own_results(state: TurnState, calls: Sequence[PlannedCall], outcomes: Sequence[ToolOutcome]) -> TurnState:
    tally = state.tally.with_results(calls, outcomes)
    return replace(state, calls=state.calls.with_outcomes(outcomes), tally=tally)


def _result(call: PlannedCall, text: str) -> ToolOutcome:
    return ToolOutcome(call_id=call.call_id, preview=text, recorded=False, decided=call.approval)


def unknown_tool_error(state: TurnState, generation: Generation) -> ErrorDetail | None:
    """The error of a turn that an unknown tool ends; None if none was called, or the agent lets the model go on."""
    if state.policy.on_unknown_tool != "abort":
        return None
    errors = (call.rejected for call in generation.calls if call.rejected is not None)
    unknown = next((error for error in errors if error.code == ReasonCode.TOOL_UNKNOWN), None)
    if unknown is None:
        return None
    why = "it ended the turn, because the agent's on_unknown_tool is 'abort'"
    message = f"step {state.step + 1}, tool {unknown.title}: {unknown.message}; {why}"
    return replace(unknown, message=message)
