"""The tool decorator: a Python function with annotations becomes a tool that a model can call."""

import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from perdure.agents.context import ToolContext
from perdure.contracts.tools import DEFAULT_TOOL_TIMEOUT, ToolDeclaration
from perdure.contracts.values import JsonValue

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CATCH = ("JSONDecodeError", "ValidationError")
"""Exceptions that become error results for the model whatever ``catch`` adds. Source: Dreadnode's tools."""

Catch = bool | Iterable[type[BaseException]] | None


class ToolDefinitionError(TypeError):
    """A function cannot become a tool; the message names the cause and the fix."""


class InvalidInputError(Exception):
    """Arguments do not fit the tool; always told to whoever sent them."""


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A callable with its declaration. Calling it calls the function, as if it were not decorated."""

    function: Callable[P, R]
    declaration: ToolDeclaration
    parameters: type[BaseModel]
    context_parameter: str | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The wire name."""
        return self.declaration.name

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def checked(self, raw: dict[str, JsonValue]) -> dict[str, Any]:
        """The same as :meth:`arguments`, with every problem in one line.

        Raises:
            InvalidInputError: The arguments do not fit the schema.
        """
        try:
            return self.arguments(raw)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
            )
            msg = f"the arguments do not fit the schema: {problems}"
            raise InvalidInputError(msg) from error

    def arguments(self, raw: dict[str, JsonValue]) -> dict[str, Any]:
        """The model's arguments as the function takes them.

        Raises:
            pydantic.ValidationError: The arguments do not fit the schema.
        """
        values = self.parameters.model_validate(raw)
        return {
            str(field.alias): getattr(values, name)
            for name, field in type(values).model_fields.items()
            if name in values.model_fields_set
        }

    def with_(self, **changes: Any) -> "Tool[P, R]":  # noqa: ANN401 - the fields of ToolDeclaration, each of its type
        """The same tool with other settings, such as ``name`` or ``timeout``."""
        declared = ToolDeclaration.model_validate({**self.declaration.model_dump(), **changes})
        return replace(self, declaration=declared)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: timedelta = DEFAULT_TOOL_TIMEOUT,
    idempotent: bool = False,
    catch: Catch = None,
    truncate: int | None = None,
    offload: bool = True,
    task_queue: str | None = None,
    masked: Iterable[str] = (),
    interactive: bool = False,
    requires_approval: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(  # noqa: PLR0913 - the settings of one tool, all by keyword; a settings object would double every use
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: timedelta = DEFAULT_TOOL_TIMEOUT,
    idempotent: bool = False,
    catch: Catch = None,
    truncate: int | None = None,
    offload: bool = True,
    task_queue: str | None = None,
    masked: Iterable[str] = (),
    interactive: bool = False,
    requires_approval: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function; ``@tool`` or ``@tool(name="…", …)``.

    The schema comes from the annotations, ``Annotated[T, "text"]`` describes a parameter, the docstring the tool.

    Args:
        function: The function, sync or async. Sync ones run in a thread, async ones on a loop of their own.
        name: The wire name; the function's name by default.
        description: What the model reads; the docstring by default.
        timeout: The call is stopped after it, and the model told so.
        idempotent: The body may run again after its worker was lost, with the same idempotency key.
        catch: Exceptions that become error results: True all, False none, or classes beside the default ones.
        truncate: Longest result the model reads, in characters; head and tail are kept.
        offload: Whether results over 30,000 characters become artifacts.
        task_queue: Where the call runs, if not where the turn runs.
        masked: Arguments shown as ``***`` everywhere outside the body; credential-named ones always are.
        interactive: A person's answer is the result, of the type that the function is annotated to return; the body
            never runs. An argument ``question`` is what the person reads, ``options`` what the answer may be.
        requires_approval: A call waits until somebody approves it, unless a rule of the agent says otherwise.

    Raises:
        ToolDefinitionError: The function cannot become a tool.
    """

    def declare(body: Callable[P, R]) -> Tool[P, R]:
        wire_name = name or str(getattr(body, "__name__", ""))
        parameters, context = _parameters(body, wire_name)
        schema = parameters.model_json_schema(by_alias=True)
        try:
            declaration = ToolDeclaration(
                name=wire_name,
                description=description or inspect.getdoc(body) or "",
                parameters=_without_titles(schema),
                reference=f"{body.__module__}:{body.__qualname__}",
                timeout=timeout,
                idempotent=idempotent,
                catch=_catch_names(catch),
                truncate=truncate,
                offload=offload,
                task_queue=task_queue,
                masked=tuple(masked),
                interactive=interactive,
                answer=_answer(body, wire_name) if interactive else None,
                requires_approval=requires_approval,
            )
        except ValidationError as error:
            first = error.errors()[0]
            msg = f"tool {wire_name!r}: {'.'.join(map(str, first['loc']))}: {first['msg']} (got {first['input']!r})"
            raise ToolDefinitionError(msg) from error
        return Tool(body, declaration, parameters, context)

    return declare if function is None else declare(function)


def _answer(body: Callable[..., object], name: str) -> dict[str, JsonValue] | None:
    """The JSON schema of what an interactive tool returns; None if its function does not say."""
    returned: Any = typing.get_type_hints(body, include_extras=True).get("return")
    if returned is None or returned is Any:
        return None
    try:
        return _without_titles(TypeAdapter(returned).json_schema())
    except (PydanticUserError, TypeError, ValueError) as error:
        msg = f"tool {name!r}: what it returns has no JSON schema ({str(error).splitlines()[0]}); use JSON types"
        raise ToolDefinitionError(msg) from error


def _catch_names(catch: Catch) -> typing.Literal["all", "none"] | tuple[str, ...]:
    if catch is None:
        return DEFAULT_CATCH
    if isinstance(catch, bool):
        return "all" if catch else "none"
    return (*DEFAULT_CATCH, *sorted({error.__name__ for error in catch} - set(DEFAULT_CATCH)))


def _parameters(body: Callable[..., object], name: str) -> tuple[type[BaseModel], str | None]:
    """The model of the arguments, and the name of the parameter that takes the context."""
    try:
        hints = typing.get_type_hints(body, include_extras=True)
    except NameError as error:
        msg = f"tool {name!r}: an annotation cannot be resolved ({error}); import the name at module level"
        raise ToolDefinitionError(msg) from error
    fields: dict[str, Any] = {}
    context: str | None = None
    for index, parameter in enumerate(inspect.signature(body).parameters.values()):
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            msg = f"tool {name!r}: parameter {parameter} cannot be described to a model; use named parameters only"
            raise ToolDefinitionError(msg)
        if parameter.name not in hints:
            msg = (
                f"tool {name!r}: parameter {parameter.name!r} has no annotation; "
                f"write for example '{parameter.name}: str' so that the model knows what to send"
            )
            raise ToolDefinitionError(msg)
        if hints[parameter.name] is ToolContext:
            context = parameter.name
            continue
        # Field names are our own, the alias is the parameter's: a parameter may be called "copy" or "_x".
        fields[f"argument_{index}"] = _field(hints[parameter.name], parameter)
    try:
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields), context
    except (PydanticUserError, TypeError, ValueError) as error:
        msg = f"tool {name!r}: an annotation has no JSON schema ({str(error).splitlines()[0]}); use JSON types"
        raise ToolDefinitionError(msg) from error


def _field(hint: Any, parameter: inspect.Parameter) -> Any:  # noqa: ANN401 - annotations are any object
    text = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)), None)
    default = ... if parameter.default is parameter.empty else parameter.default
    return (Annotated[hint, Field(alias=parameter.name, description=text)], default)


def _without_titles(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema without pydantic's generated titles: they cost tokens and tell the model nothing."""
    return {key: _strip(value, key) for key, value in schema.items() if key != "title"}


def _strip(value: JsonValue, key: str = "") -> JsonValue:
    if isinstance(value, list):
        return [_strip(item) for item in value]
    if not isinstance(value, dict):
        return value
    if key in {"properties", "$defs"}:  # here the keys are names, which may well be "title"
        return {name: _strip(item) for name, item in value.items()}
    return _without_titles(value)
