"""Options of a turn beside its prompt, as callers in Python write them; each is a field of the request, or priority."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from perdure.contracts.budgets import Budgets
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.values import JsonValue


class TaskOptions(TypedDict, total=False):
    """Options that several turns may share beside their prompts; see :class:`perdure.contracts.turns.TurnRequest`.

    ``output_schema`` is the JSON schema of the turn's answer, ``tool_choice`` what the model has to call, and
    ``generate_params`` are parameters of its calls, which it is called without if its provider refuses them.
    ``context``, ``tenant`` and ``by`` reach tools, hooks and instructions, and no model. ``priority``, 1 to 5, says
    which of the work that waits is given out first: 1 before 5, and 3 without one.
    """

    model: str | None
    max_steps: int | None
    budgets: Budgets | None
    tenant: str
    context: Mapping[str, object] | None
    by: str
    priority: int | None
    recording: str | None
    definition: dict[str, JsonValue] | None
    output_schema: Mapping[str, JsonValue] | None
    generate_params: Mapping[str, JsonValue] | None
    tool_choice: ToolChoice | None


class ResumeOptions(TaskOptions, total=False):
    """Options of any turn beside its prompt; ``request_id`` makes asking twice harmless.

    ``traceparent`` is the W3C trace context under which the turn's spans hang: by default that of the active span of
    OpenTelemetry, if there is one. With ``stop_for_results`` the turn ends ``waiting_for_input``, and does not wait,
    once it needs nothing but results of tools that its caller runs; they begin the next turn.
    """

    request_id: str | None
    traceparent: str
    stop_for_results: bool


class TurnOptions(ResumeOptions, total=False):
    """Options of a turn that is started.

    ``turn`` is the number it is expected to have, ``history`` a conversation in OpenAI's chat format with which a new
    session begins. ``tools`` are objects with name, description and parameters, for this turn: the caller runs them.
    """

    turn: int | None
    tools: Sequence[Mapping[str, object]]
    history: Sequence[Mapping[str, JsonValue]]
