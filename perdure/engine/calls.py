"""The calls that need no activity: todos, ``done``, and tools that the agent does not have. Pure."""

import json
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Generation
from perdure.contracts.hooks import TodosChanged
from perdure.contracts.tools import (
    MAX_TODOS,
    AttemptCompletion,
    BuiltinCall,
    ChangeTodos,
    ClearTodos,
    Finish,
    PlannedCall,
    Todo,
    ToolDeclaration,
    ToolOutcome,
    changes_todos,
)
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue, json_object
from perdure.engine import delegates
from perdure.engine.limits import Wanted
from perdure.engine.state import Ending, TurnState

MAX_RESULTS = 256 * 1024
"""Size of all lists of todos in the results of one answer; earlier ones are left out, the last is always there."""

LATER = "done; the whole list stands in the result of the last of these calls"
"""What the model reads in place of such a list."""

_CALL: TypeAdapter[BuiltinCall] = TypeAdapter(BuiltinCall)


class _NotDoneError(ValueError):
    """A call asks for what cannot be done; nothing has changed, and the message is for the model."""


def planned(tool: ToolDeclaration, call: PlannedCall, shown: str) -> PlannedCall:
    """The call with its arguments, or rejected if these do not fit; for activities.

    Args:
        tool: The tool; nothing is done with one that has a body.
        call: The call as it was considered.
        shown: The arguments without what is masked: they stand in the history.
    """
    if tool.builtin is None or call.rejected is not None:
        return call
    try:
        arguments: BuiltinCall = _CALL.validate_python({**json_object(shown or "{}"), "type": tool.builtin})
    except ValidationError as error:
        problems = "; ".join(_problem(problem["loc"], problem["msg"]) for problem in error.errors()[:5])
        return _rejected(call, f"the arguments do not fit the schema: {problems}")
    except ValueError as error:
        return _rejected(call, f"the arguments are no JSON object: {error}")
    return call.model_copy(update={"builtin": arguments})


def _problem(place: Sequence[int | str], message: str) -> str:
    field = ".".join(map(str, place[1:]))  # the first part is the kind of the call
    return f"{field}: {message}" if field else message


def _rejected(call: PlannedCall, message: str) -> PlannedCall:
    error = ErrorDetail(code=ReasonCode.TOOL_INVALID_INPUT, title=call.tool, message=message[:500])
    return call.model_copy(update={"rejected": error, "needs": None})


def wanted(call: PlannedCall) -> Wanted | None:
    """What such a call uses up; None of any other call."""
    if call.builtin is None:
        return None
    if changes_todos(call.builtin):
        return Wanted(tool=call.tool, uses=("tool_calls", "events", "patches"))
    return Wanted(tool=call.tool)


def carry_out(state: TurnState) -> TurnState:
    """The state after the calls that are the workflow's own, as far as it is time for them."""
    if state.ending is not None or not state.builtins or state.hooks.boundary == "generation":  # hooks come first
        return state
    state = _with_todos(state)
    waits = state.pending or state.asking or state.unknown_tool is not None
    return state if waits or not state.builtins else _with_completion(state)


def _with_todos(state: TurnState) -> TurnState:
    """The calls about todos, in the model's order."""
    todos, outcomes = state.todos, list[ToolOutcome]()
    mine = [call for call in state.builtins if isinstance(call.builtin, ChangeTodos | ClearTodos)]
    for call in mine:
        try:
            todos = _changed(todos, call.builtin)
        except _NotDoneError as problem:
            outcomes.append(_error(call, ReasonCode.TOOL_INVALID_INPUT, str(problem)))
        else:
            outcomes.append(_result(call, listed(todos)))
    events = [TodosChanged(todos=todos)] if todos != state.todos else []
    others = tuple(call for call in state.builtins if call not in mine)
    state = state.model_copy(update={"todos": todos, "builtins": others})
    return _with_outcomes(state, mine, _in_one_payload(outcomes)).with_decided(*events)


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
        changed[number] = changed[number].model_copy(update={"completed": True})
    return tuple(changed)


def _in_one_payload(outcomes: Sequence[ToolOutcome]) -> list[ToolOutcome]:
    left, kept = MAX_RESULTS, list[ToolOutcome]()
    for outcome in reversed(outcomes):
        left -= len(outcome.preview.encode())
        fits = not kept or left >= 0 or outcome.error is not None
        kept.append(outcome if fits else outcome.model_copy(update={"preview": LATER}))
    return kept[::-1]


def listed(todos: Sequence[Todo], *, only_open: bool = False) -> str:
    """The list as the model reads it."""
    numbered: list[JsonValue] = [
        {"id": number, "title": todo.title, "completed": todo.completed}
        for number, todo in enumerate(todos)
        if not (only_open and todo.completed)
    ]
    return json.dumps({"open_todos" if only_open else "todos": numbered}, ensure_ascii=False)


def _with_completion(state: TurnState) -> TurnState:
    """The calls that may end the turn, in the model's order; every other call has its result."""
    outcomes: list[ToolOutcome] = []
    changes: dict[str, object] = {}
    is_open = any(not todo.completed for todo in state.todos)
    for call in state.builtins:
        if isinstance(call.builtin, AttemptCompletion) and is_open:
            outcomes.append(_result(call, listed(state.todos, only_open=True)))
            continue
        outcomes.append(_result(call, "finished"))
        if isinstance(call.builtin, Finish) or state.has_text:
            changes["ending"] = Ending(stop_reason=StopReason.FINISHED)
        else:
            changes["completing"] = True
    mine = state.builtins
    return _with_outcomes(state.model_copy(update={"builtins": (), **changes}), mine, outcomes)


def left(state: TurnState) -> tuple[ToolOutcome, ...]:
    """The outcomes of such calls in a turn that ends, or stops for people, before it was their time."""
    said = "Operation aborted: the turn ended before {}, call it again when the work is done"
    return tuple(_error(call, ReasonCode.TOOL_CANCELLED, said.format(call.tool)) for call in state.builtins)


def _with_outcomes(state: TurnState, calls: Sequence[PlannedCall], outcomes: Sequence[ToolOutcome]) -> TurnState:
    tally = state.tally.with_results(calls, outcomes)
    return state.model_copy(update={"failed": (*state.failed, *outcomes), "tally": tally})


def _result(call: PlannedCall, text: str) -> ToolOutcome:
    return ToolOutcome(call_id=call.call_id, preview=text, recorded=False, decided=call.approval).sparse()


def _error(call: PlannedCall, code: ReasonCode, message: str) -> ToolOutcome:
    error = ErrorDetail(code=code, title=call.tool, message=message)
    outcome = ToolOutcome(call_id=call.call_id, preview=message, error=error, recorded=False, decided=call.approval)
    return outcome.sparse()


def unknown_tool_error(state: TurnState, generation: Generation) -> ErrorDetail | None:
    """The error of a turn that an unknown tool ends; None if none was called, or the model is to go on."""
    if state.policy.on_unknown_tool != "abort":
        return None
    errors = (call.rejected for call in generation.calls if call.rejected is not None)
    unknown = next((error for error in errors if error.code == ReasonCode.TOOL_UNKNOWN), None)
    if unknown is None:
        return None
    why = "it ended the turn, because the agent's on_unknown_tool is 'abort'"
    message = f"step {state.step + 1}, tool {unknown.title}: {unknown.message}; {why}"
    return unknown.model_copy(update={"message": message})


def end_by_unknown_tool(state: TurnState) -> TurnState:
    """The state after its end by an unknown tool, if the tools beside that have their results; nothing else begins."""
    error = state.unknown_tool
    if error is None or state.ending is not None or state.hooks.boundary == "generation":  # hooks come first
        return state
    if any(call.builtin is None and delegates.settings_of(state.policy, call) is None for call in state.pending):
        return state
    return state.model_copy(
        update={
            "pending": (),
            "failed": (*state.failed, *delegates.withdrawn(state.pending)),
            "ending": Ending(stop_reason=StopReason.ERROR, error=error),
            "unknown_tool": None,
        }
    )
