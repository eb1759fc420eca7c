"""Placeholders in instructions, such as ``{context.customer}``, which are filled in when a turn opens."""

import json
import re

from perdure.contracts.turn_context import TurnContext, variable_of
from perdure.contracts.values import JsonValue

PLACEHOLDER = re.compile(r"(\{?)\{(context|turn)\.([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}(\}?)")
"""A name in braces. Double braces escape a placeholder; any other brace is plain text."""


class PlaceholderError(ValueError):
    """The context lacks the value of a placeholder; the message names it, and what the context has."""


def fill_in(text: str, context: TurnContext) -> str:
    """The text with its placeholders replaced by values of the turn's context. Placeholders in values stay as they are.

    Raises:
        PlaceholderError: The context has no value for a placeholder.
    """
    return PLACEHOLDER.sub(lambda found: _fill_placeholder(found, context), text)


def _fill_placeholder(found: re.Match[str], context: TurnContext) -> str:
    before, owner, path, after = found.groups()
    if before and after:
        return f"{{{owner}.{path}}}"
    name = f"{owner}.{path}"
    if owner == "context":
        value: JsonValue = context.data
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                known = ", ".join(context.data) or "nothing"
                msg = f"need {name}, which the turn's context lacks; it has {known}, so start the turn with it"
                raise PlaceholderError(msg)
            value = value[part]
        if variable_of(value) is not None:
            msg = f"need {name}, which stands for a secret; no model may read it, so leave it to a tool"
            raise PlaceholderError(msg)
    elif path in {"tenant", "by"}:
        value = context.tenant if path == "tenant" else context.by
    else:
        msg = f"need {name}, which does not exist; there are turn.tenant and turn.by"
        raise PlaceholderError(msg)
    return f"{before}{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{after}"
