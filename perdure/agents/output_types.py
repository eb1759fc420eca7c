"""What an agent's last answer must be: a Python type, for its JSON schema and for the checks of its own."""

from collections.abc import Mapping
from inspect import isroutine
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from perdure.contracts.values import JsonValue


def adapter_of(wanted: Any) -> TypeAdapter[Any] | None:  # noqa: ANN401 - whatever the author wrote
    """The adapter of a type; None if a JSON schema or nothing is wanted.

    Raises:
        ValueError: Pydantic can make no JSON schema of it.
    """
    if wanted is None or isinstance(wanted, Mapping):
        return None
    if isinstance(wanted, str) or isroutine(wanted):  # to pydantic they would be a name and a list of arguments
        msg = f"{wanted!r} is no type; write the type itself, or a JSON schema"
        raise ValueError(msg)
    try:
        adapter: TypeAdapter[Any] = cast("Any", wanted) if isinstance(wanted, TypeAdapter) else TypeAdapter(wanted)
        adapter.json_schema()
    except Exception as error:  # whatever a type's own hooks raise
        why = str(error).partition("\n")[0].rstrip(".")
        msg = f"no JSON schema can be made of {wanted!r} ({type(error).__name__}: {why}); "
        msg += "write a pydantic class, a dataclass, a type such as list[int], or a JSON schema"
        raise ValueError(msg) from error
    return adapter


def problem_of(adapter: TypeAdapter[Any], value: JsonValue) -> str | None:
    """What the type's own checks say against an answer that fits its schema, in one sentence for the model."""
    try:
        adapter.validate_json(to_json(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        return f"at ${place}: {first['msg'].removeprefix('Value error, ').removeprefix('Assertion failed, ')}"
    except Exception as error:  # noqa: BLE001 - a validator with a bug must not cost the answer more than its corrections
        return f"a validator of output_schema raised {type(error).__name__}: {error}; correct the validator"
    return None
