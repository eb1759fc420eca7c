"""Calls of tools that the agent does not have: under ``on_unknown_tool: abort`` the first of them ends the turn."""

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Generation
from perdure.contracts.turns import StopReason
from perdure.engine import delegates
from perdure.engine.state import Ending, TurnState


def aborting(state: TurnState, generation: Generation) -> ErrorDetail | None:
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


def ended(state: TurnState) -> TurnState:
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
