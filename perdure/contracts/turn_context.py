"""On whose behalf a turn works: data, tenant and person, as its starter says. No model reads or writes them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import to_json

from perdure.contracts.values import JsonValue, Value
from perdure.contracts.variables import REFERENCE, is_credential

MAX_CONTEXT_BYTES = 16 * 1024
"""Largest context of a turn, as JSON in UTF-8: it travels in Temporal's payloads and stands in the event log."""

VARIABLES = "PERDURE_CONTEXT_"
"""Prefix of variables that a context may refer to: callers may not read any other."""


class TurnContext(Value):
    """Context that a turn was started with beside its prompt.

    Attributes:
        data: What the starter gave as ``context``.
        tenant: On whose behalf the turn runs.
        by: Who started the turn, as the starter says; perdure does not check it.
    """

    data: dict[str, JsonValue] = {}
    tenant: str = ""
    by: str = ""


def variable_of(value: JsonValue) -> str | None:
    """The variable that stands for a value, as ``${PERDURE_CONTEXT_…}``; None if the value stands for itself."""
    found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found is not None and found[1].startswith(VARIABLES) else None


def describe_strange_variable(context: TurnContext, owners: Mapping[str, Collection[str]]) -> str | None:
    """Reason a context may not name its variables, as one sentence; None if all of them belong to its tenant.

    Args:
        context: What a turn works with.
        owners: The tenants of each variable. One that is not in it belongs to turns without a tenant.
    """
    for name, variable in _variables_in("context", context.data):
        if context.tenant not in owners.get(variable, ("",)):
            whose = f"of tenant {context.tenant!r}" if context.tenant else "of a turn without a tenant"
            return (
                f"{name} names {variable}, which is no variable {whose}; name one that the workers' setting "
                "PERDURE_TENANT_VARIABLES gives to it"
            )
    return None


def _variables_in(name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    """The variables that a context refers to, each with the name of its place."""
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _variables_in(f"{name}.{inner}", part)
    elif isinstance(value, list):
        for part in value:
            yield from _variables_in(name, part)
    elif (variable := variable_of(value)) is not None:
        yield name, variable


def _check(data: dict[str, JsonValue]) -> dict[str, JsonValue]:
    size = len(to_json(data))
    if size > MAX_CONTEXT_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_CONTEXT_BYTES:,}; give an id, and let a tool look the rest up"
        raise ValueError(msg)
    _refuse_credentials("", data)
    return data


def _refuse_credentials(name: str, value: JsonValue) -> None:
    """Refuse credentials that are written out: a context is stored, and stands in the event log."""
    if isinstance(value, dict):
        for inner, part in value.items():
            _refuse_credentials(f"{name}.{inner}" if name else inner, part)
    elif isinstance(value, list):
        for part in value:
            _refuse_credentials(name, part)
    elif isinstance(value, str) and value and is_credential(name) and variable_of(value) is None:
        msg = f"{name} would be stored as it stands; write '${{{VARIABLES}NAME}}' and set that variable for the worker"
        raise ValueError(msg)


ContextData = Annotated[dict[str, JsonValue], Field(), AfterValidator(_check)]
"""The context of a request: a JSON object of at most 16 KiB without credentials."""
