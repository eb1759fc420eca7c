"""Prompts out of the parts of a message, as the protocols of others have them."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perdure.client.requests import Content
from perdure.contracts.values import JsonValue
from perdure.gateway.problems import problem_of_mistakes
from perdure.gateway.starts import content_of
from perdure.gateway.views import Prompt

_PROMPT: TypeAdapter[Any] = TypeAdapter(Prompt)


def join_parts(texts: Sequence[str], parts: Sequence[dict[str, JsonValue]], field: str) -> Content:
    """One prompt of texts and, behind them, the parts of a message in the chat format; mistakes are of this field.

    Raises:
        ProblemError: It is too long, or a part of it cannot be used.
    """
    joined = [*[dict[str, JsonValue](type="text", text=text) for text in texts], *parts]
    if all(part["type"] == "text" for part in joined):
        return content_of("\n\n".join(str(part["text"]) for part in joined))
    try:
        return content_of(_PROMPT.validate_python(joined))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise problem_of_mistakes([{**found, "loc": (field,)}], "body") from None
