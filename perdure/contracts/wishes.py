"""Wishes of a request for the answers of its turn's model: their form, parameters, and the tools that it has to call.

They are for one turn, and stand above what the agent says. A parameter that the provider refuses is left out, since
whoever asks for it need not know which model the agent has.
"""

from typing import Annotated, cast

from pydantic import AfterValidator, ConfigDict, Field

from perdure.contracts.agents import PARAMETERS, check_params
from perdure.contracts.json_bounds import most_bytes
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.values import JsonValue, Schema, Value

MAX_WISH_BYTES = 64 * 1024
"""Largest schema of a request, and most parameters, as JSON in UTF-8; they travel in Temporal payloads."""


_NUMBERS = frozenset({"frequency_penalty", "presence_penalty", "temperature", "top_k", "top_p"})

_BOUNDS = frozenset({"max_completion_tokens", "max_tokens"})

OF_REQUESTS = PARAMETERS - {"tool_choice"}
"""Parameters of model calls that a request may set beside its ``tool_choice``."""


def _are_known(params: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if odd := sorted(params.keys() - OF_REQUESTS):
        instead = "; tool_choice is a field of its own" if "tool_choice" in odd else ""
        msg = f"{', '.join(odd)}: a request may set {', '.join(sorted(OF_REQUESTS))}{instead}"
        raise ValueError(msg)
    for name, value in params.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if name in _NUMBERS and not (is_whole or isinstance(value, float)):
            msg = f"{name} is a number"
            raise ValueError(msg)
        if name in _BOUNDS and not (is_whole and cast("int", value) > 0):
            msg = f"{name} is a whole number from 1"
            raise ValueError(msg)
    check_params(params)
    return params


GenerateParams = Annotated[dict[str, JsonValue], most_bytes(MAX_WISH_BYTES), AfterValidator(_are_known)]
"""Parameters of model calls that a request may set, such as ``temperature``."""

OutputSchema = Annotated[Schema, most_bytes(MAX_WISH_BYTES)]
"""JSON schema of an answer, in a request."""


class Wishes(Value):
    """Fields of a request for a turn that are about the answers of its model.

    Attributes:
        output_schema: JSON schema that the turn's answer has to fit, in place of the agent's.
        generate_params: Parameters of the model's calls, in place of the agent's of the same names. One that the
            provider refuses is left out.
        tool_choice: What the model has to call, or that it may call nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output_schema: OutputSchema | None = Field(default=None, exclude_if=lambda schema: schema is None)
    generate_params: GenerateParams | None = Field(default=None, exclude_if=lambda params: params is None)
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)
