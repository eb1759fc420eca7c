"""Whether a rule about tool calls fits arguments: strictly where a call may run because of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import unknown_arguments
from perdure.contracts.input_requests import ApprovalRule
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue
from perdure.engine.validators import Keyword, Watched, extended

_ABOUT = {
    "number": "maximum minimum exclusiveMaximum exclusiveMinimum multipleOf",
    "string": "maxLength minLength pattern format",
    "array": "maxItems minItems uniqueItems contains items prefixItems unevaluatedItems",
    "object": "properties required additionalProperties patternProperties propertyNames maxProperties minProperties "
    "dependentRequired dependentSchemas unevaluatedProperties",
}
"""The keywords that JSON schema has for one kind of values, and that say nothing of any other."""

_IN_PATTERN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)


class _SaysNothingError(Exception):
    """A bound met a value that it is not about, such as a text in place of a number."""


def fits(rule: ApprovalRule, tool: ToolDeclaration, arguments: JsonValue) -> bool:
    """Whether the rule holds for the arguments.

    One that allows does only if the tool has the arguments that it names, and each of its bounds met a value of the
    kind that it bounds. A schema that cannot be used allows nothing, and forbids what it might forbid.
    """
    schema, allows = rule.arguments, rule.decision == "allow"
    if schema is None:
        return True
    if allows and unknown_arguments(schema, tool):
        return False
    # With an empty registry, so that nothing is fetched.
    kind: type[Validator] = _Strict if allows else Watched
    try:
        return kind(schema, registry=EMPTY_REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(
            arguments
        )
    except Exception:  # noqa: BLE001 - whatever a schema makes of arguments that nobody foresaw
        return not allows


def _met(kind: str, keyword: str) -> Keyword:
    """The keyword, which has to meet a value of the kind unless ``type`` beside it rules the value out."""
    plain = cast("Keyword", Watched.VALIDATORS[keyword])

    def check(
        validator: Validator,
        value: Any,  # noqa: ANN401 - any JSON
        instance: Any,  # noqa: ANN401 - any JSON
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        if not validator.is_type(instance, kind):
            types = schema.get("type", [])
            allowed = [types] if isinstance(types, str) else types
            if not allowed or any(validator.is_type(instance, one) for one in allowed):
                raise _SaysNothingError
            return
        yield from plain(validator, _exact(value) if keyword == "pattern" else value, instance, schema) or ()

    return check


def _exact(pattern: str) -> str:
    r"""The pattern as JSON schema means it: Python's ``$`` also fits before a line break at the end."""
    return _IN_PATTERN.sub(lambda part: r"\Z" if part[0] == "$" else part[0], pattern)


_KEYWORDS = {keyword: _met(kind, keyword) for kind, keywords in _ABOUT.items() for keyword in keywords.split()}
_Strict = extended(Watched, _KEYWORDS)
