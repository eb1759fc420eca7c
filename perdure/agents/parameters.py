"""A function's signature as a tool sees it: what a model sends, what is injected, and the texts that describe both."""

import contextlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from perdure.agents.context import ToolContext
from perdure.agents.docstrings import parted
from perdure.agents.errors import ToolDefinitionError
from perdure.agents.needs import Needed, Setting, Variable
from perdure.agents.return_values import ReturnValue, return_value_of
from perdure.agents.schemas import check_schema
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue

Needs = Mapping[str, Variable]
"""The parameters that are filled in from the worker's environment, each with its variable."""


@dataclass(frozen=True)
class Signature:
    """What is known of a function.

    Attributes:
        description: Its docstring, without what it says of parameters, results and exceptions.
        sent: What a model sends, to check it.
        schema: The JSON schema of it, for the model.
        context: The parameter that takes the context of the call.
        needs: The parameters that are filled in from the environment.
        returns: What it returns, by its annotation.
    """

    description: str
    sent: type[BaseModel]
    schema: dict[str, JsonValue]
    context: str | None
    needs: tuple[Needed, ...]
    returns: ReturnValue | None


def signature_of(body: Callable[..., object], name: str, needs: Needs) -> Signature:
    """Read a function.

    Raises:
        ToolDefinitionError: It cannot be described to a model.
    """
    hints = _hints(body, name)
    description, texts = parted(inspect.getdoc(body) or "")
    fields: dict[str, Any] = {}
    needed: list[Needed] = []
    context: str | None = None
    parameters = inspect.signature(body).parameters
    absent = sorted(needs.keys() - parameters.keys())
    if absent:
        msg = f"tool {name!r}: needs names {', '.join(absent)}, which is no parameter of the function"
        raise ToolDefinitionError(msg)
    for index, parameter in enumerate(parameters.values()):
        hint = _hint(hints, parameter, name)
        if hint is ToolContext:
            context = parameter.name
        elif parameter.name in needs:
            needed.append(_needed(hint, parameter, needs[parameter.name], name))
        else:
            # Field names are our own, the alias is the parameter's: a parameter may be called "copy" or "_x".
            fields[f"argument_{index}"] = _field(hint, parameter, texts.get(parameter.name))
    with _json_types(name):
        sent = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = without("title", sent.model_json_schema(by_alias=True))
    returns = return_value_of(hints.get("return", Any), name)
    return Signature(description, sent, schema, context, tuple(needed), returns)


def answer_of(body: Callable[..., object], name: str) -> dict[str, JsonValue] | None:
    """The JSON schema of what an interactive tool returns; None if its function does not say."""
    returned: Any = typing.get_type_hints(body, include_extras=True).get("return")
    if returned is None or returned is Any:
        return None
    try:
        schema = without("title", TypeAdapter(returned).json_schema())
        check_schema(schema)
    except (PydanticUserError, TypeError, ValueError) as error:
        msg = f"tool {name!r}: what it returns has no JSON schema ({str(error).splitlines()[0]}); use JSON types"
        raise ToolDefinitionError(msg) from error
    return schema


def without(keyword: str, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema without a keyword that decides nothing.

    That is ``title``, which pydantic makes up: it costs tokens and tells the model nothing. Or ``description``.
    """
    return {key: _strip(keyword, value, key) for key, value in schema.items() if key != keyword}


def takes_the_same(one: ToolDeclaration, other: ToolDeclaration) -> bool:
    """Whether two tools accept the same arguments, whatever their texts say."""
    schemas = (one.parameters, other.parameters)
    return schemas[0] == schemas[1] or without("description", schemas[0]) == without("description", schemas[1])


def _hints(body: Callable[..., object], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(body, include_extras=True)
    except NameError as error:
        msg = f"tool {name!r}: an annotation cannot be resolved ({error}); import the name at module level"
        raise ToolDefinitionError(msg) from error


def _hint(hints: Mapping[str, Any], parameter: inspect.Parameter, name: str) -> Any:  # noqa: ANN401 - an annotation
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        msg = f"tool {name!r}: parameter {parameter} cannot be described to a model; use named parameters only"
        raise ToolDefinitionError(msg)
    if parameter.name == "self" and parameter.name not in hints:
        msg = f"tool {name!r} is a method; use @tool_method in a class that inherits from Toolset"
        raise ToolDefinitionError(msg)
    if parameter.name not in hints:
        msg = (
            f"tool {name!r}: parameter {parameter.name!r} has no annotation; "
            f"write for example '{parameter.name}: str' so that the model knows what to send"
        )
        raise ToolDefinitionError(msg)
    return hints[parameter.name]


def _field(hint: Any, parameter: inspect.Parameter, documented: str | None) -> Any:  # noqa: ANN401 - annotations
    default = ... if parameter.default is parameter.empty else parameter.default
    extras = getattr(hint, "__metadata__", ())
    if any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        return (Annotated[hint, Field(alias=parameter.name)], default)
    text = next((extra for extra in extras if isinstance(extra, str)), documented)
    return (Annotated[hint, Field(alias=parameter.name, description=text)], default)


def _needed(hint: Any, parameter: inspect.Parameter, variable: object, name: str) -> Needed:  # noqa: ANN401
    if not isinstance(variable, Variable):
        msg = f"tool {name!r}: needs[{parameter.name!r}] must be Secret('NAME') or Setting('NAME')"
        raise ToolDefinitionError(msg)
    with _json_types(name):
        accepts: TypeAdapter[Any] = TypeAdapter(hint)
    if isinstance(variable, Setting) and variable.default is not parameter.empty:
        try:
            accepts.validate_python(variable.default, strict=True)
        except ValidationError as error:
            msg = (
                f"tool {name!r}: the default {variable.default!r} of Setting({variable.name!r}) does not fit "
                f"parameter {parameter.name!r}: {error.errors()[0]['msg']}"
            )
            raise ToolDefinitionError(msg) from error
    return Needed(parameter.name, variable, accepts, optional=parameter.default is not parameter.empty)


@contextlib.contextmanager
def _json_types(name: str) -> Iterator[None]:
    try:
        yield
    except (PydanticUserError, TypeError, ValueError) as error:
        msg = f"tool {name!r}: an annotation has no JSON schema ({str(error).splitlines()[0]}); use JSON types"
        raise ToolDefinitionError(msg) from error


def _strip(keyword: str, value: JsonValue, key: str = "") -> JsonValue:
    if key in {"default", "const", "enum", "examples"}:  # data
        return value
    if isinstance(value, list):
        return [_strip(keyword, item) for item in value]
    if not isinstance(value, dict):
        return value
    if key in {"properties", "$defs"}:  # here the keys are names, which may well be the keyword
        return {name: _strip(keyword, item) for name, item in value.items()}
    return without(keyword, value)
