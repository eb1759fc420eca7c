"""The tool decorator: a Python function with annotations becomes a tool that a model can call."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, get_args, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure.agents.author_warnings import check_question, warn
from perdure.agents.context import InvalidInputError, Reconcile, Reconciler, ToolDefinitionError, reconciler_of
from perdure.agents.environment import Needed, Variable
from perdure.agents.parameters import ReturnValue, Signature, answer_of, signature_of
from perdure.agents.schemas import check_schema, root_of
from perdure.contracts.caller_tools import NO_ARGUMENTS, NO_OBJECT, CallerTool
from perdure.contracts.tools import (
    DEFAULT_CALLER_TIMEOUT,
    RUN_IN_BACKGROUND,
    Builtin,
    DelegateSettings,
    Runs,
    ToolDeclaration,
)
from perdure.contracts.values import JsonValue, describe_mistake, replace

__all__ = [
    "Catch",
    "InvalidInputError",
    "Tool",
    "ToolDefinitionError",
    "ToolSettings",
    "caller_tool",
    "caller_tool_of",
    "make_tool",
    "tool",
]

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_CATCH = ("JSONDecodeError", "ValidationError")
"""Exceptions that become error results for the model whatever ``catch`` adds. Source: Dreadnode's tools."""

Catch = bool | Iterable[type[BaseException]] | None


class ToolSettings(TypedDict, total=False):
    """Settings of a tool. Attributes are explained at :func:`tool`."""

    name: str | None
    description: str | None
    timeout: timedelta
    idempotent: bool
    catch: Catch
    truncate: int | None
    offload: bool
    task_queue: str | None
    masked: Iterable[str]
    needs: Mapping[str, Variable]
    reconcile: Reconcile | None
    interactive: bool
    runs: Runs
    requires_approval: bool
    background: bool


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A callable with its declaration. Calling it calls the function, as if it were not decorated.

    Attributes:
        parameters: What a model sends, to check it.
        context_parameter: The parameter that takes the context of the call.
        reconciler: What says whether a call whose worker was lost has happened.
        needs: The parameters that are filled in from the environment.
        toolset: Of a method: what is entered before it is called.
        settings: What the author said.
        returns: What the function returns, by its annotation.
        described: Of a tool without a function: its description, see :func:`caller_tool`.
    """

    function: Callable[P, R]
    declaration: ToolDeclaration
    parameters: type[BaseModel]
    context_parameter: str | None = None
    reconciler: Reconciler | None = None
    needs: tuple[Needed, ...] = ()
    toolset: AbstractAsyncContextManager[object] | None = field(default=None, repr=False)
    settings: ToolSettings = field(default_factory=ToolSettings, repr=False)
    returns: ReturnValue | None = field(default=None, repr=False, compare=False)
    described: CallerTool | None = field(default=None, repr=False)

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

    def check_arguments(self, raw: dict[str, JsonValue]) -> dict[str, Any]:
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
            raise InvalidInputError(f"the arguments do not fit the schema: {problems}") from error

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

    def with_(self, **changes: Unpack[ToolSettings]) -> "Tool[P, R]":
        """The same tool with other settings, such as ``name`` or ``timeout``.

        Raises:
            ToolDefinitionError: A setting cannot be used, or there is none of that name.
        """
        if self.described is not None:
            return cast("Tool[P, R]", caller_tool(**{**dict(self.described), **cast("dict[str, Any]", changes)}))
        return make_tool(self.function, cast("ToolSettings", {**self.settings, **changes}), self.toolset)

    def clone(self, **changes: Unpack[ToolSettings]) -> "Tool[P, R]":
        """A copy, with other settings if some are given; the same as :meth:`with_`."""
        return self.with_(**changes)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(**settings: Unpack[ToolSettings]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None, /, **settings: Unpack[ToolSettings]
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function; ``@tool`` or ``@tool(name="…", …)``.

    The schema comes from the annotations. ``Annotated[T, "text"]`` or the docstring describes a parameter, the rest of
    the docstring the tool.

    Example::

        @tool
        def word_count(text: str) -> int:
            "Count the words of a text."
            return len(text.split())

    Args:
        function: The function, sync or async. Sync ones run in a thread, async ones on a loop of their own.
        settings: ``name``: The wire name; the function's name by default.

            ``description``: What the model reads; the docstring by default, without its sections on parameters,
            results and exceptions.

            ``timeout``: The call is stopped after it, and the model told so.

            ``idempotent``: The body may run again after its worker was lost, with the same idempotency key.

            ``catch``: Exceptions that become error results: True all, False none, or classes beside the default ones.

            ``truncate``: Longest result the model reads, in characters; head and tail are kept.

            ``offload``: Whether results over 30,000 characters become artifacts.

            ``task_queue``: Where the call runs, if not where the turn runs.

            ``masked``: Arguments shown as ``***`` everywhere outside the body; credential-named ones always are.

            ``needs``: Parameters that are filled in from the worker's environment, and that no model sees:
            ``{"token": Secret("GITHUB_TOKEN")}``, or ``Setting`` for a public value.

            ``reconcile``: A function that says what became of a call whose worker was lost. It takes the arguments of
            the tool, sync or async, and returns ``Happened(result)``, ``DidNotHappen()`` or ``EffectUnknown(why)``.

            ``interactive``: A person's answer is the result, of the type that the function is annotated to return; the
            body never runs. An argument ``question`` is what the person reads, ``options`` what the answer may be.

            ``runs``: ``"caller"``: whoever started the turn runs the call and sends its result, of the annotated
            type; the body never runs. :func:`caller_tool` makes such a tool of a JSON schema.

            ``requires_approval``: A call waits until somebody approves it, unless a rule of the agent says otherwise.

            ``background``: Of ``spawn_agent``: the model may let a clone work in the background and wait for it later.

    Raises:
        ToolDefinitionError: The function cannot become a tool.
    """
    if function is None:
        return lambda body: make_tool(body, settings)
    return make_tool(function, settings)


def caller_tool(
    name: str,
    description: str,
    parameters: Mapping[str, JsonValue] = NO_ARGUMENTS,
    *,
    timeout: timedelta = DEFAULT_CALLER_TIMEOUT,
    masked: Iterable[str] = (),
) -> Tool[..., Any]:
    """Make a tool that the caller runs, of a JSON schema and without a body.

    A call waits as a question does, for :meth:`perdure.client.Client.submit_result`.

    Example::

        lookup = caller_tool("lookup", "Look a customer up.", {"type": "object", "properties": {"id": {}}})

    Args:
        name: The wire name.
        description: What the model reads.
        parameters: JSON schema of the arguments, which are an object.
        timeout: Time for a result; then the model gets the error ``tool.timeout``.
        masked: Arguments shown as ``***`` to everybody, the caller too; credential-named ones always are.

    Raises:
        ToolDefinitionError: The description cannot be used; the message is one line.
    """
    given = {"description": description, "parameters": dict(parameters), "timeout": timeout, "masked": masked}
    return caller_tool_of({"name": name, **given})


def caller_tool_of(fields: Mapping[str, object]) -> Tool[..., Any]:
    """The tool that an object with the fields of ``CallerTool`` describes.

    Raises:
        ToolDefinitionError: It describes none; the message is one line.
    """
    called = f"tool {fields.get('name', '?')!r}"
    try:
        described = CallerTool.model_validate(fields)
    except ValidationError as error:
        if error.errors()[0]["type"] == "extra_forbidden":
            known = ", ".join(CallerTool.model_fields)
            msg = f"{called}: {error.errors()[0]['loc'][0]}: there is no such field; the fields are {known}"
            raise ToolDefinitionError(msg) from error
        raise ToolDefinitionError(f"{called}: {describe_mistake(error)}") from error
    try:
        check_schema(described.parameters, expressions=False)
    except ValueError as error:
        raise ToolDefinitionError(f"{called}: parameters: {error}") from error
    root = root_of(described.parameters)
    if root.get("type") != "object":
        raise ToolDefinitionError(f"{called}: parameters: {NO_OBJECT}")
    properties = root.get("properties")
    sent = properties.keys() if isinstance(properties, dict) else ()
    if absent := sorted(set(described.masked) - set(sent)):
        msg = f"{called}: masked names {', '.join(absent)}, which no model sends; it sends {', '.join(sent)}"
        raise ToolDefinitionError(msg)
    return Tool(function=_run, declaration=described.declaration, parameters=_AnyArguments, described=described)


class _AnyArguments(BaseModel):
    """Arguments of a tool without a function, which its schema checks."""

    model_config = ConfigDict(extra="allow")


def _run(**_: object) -> object:
    msg = "the caller of the turn runs this tool; it has no body"
    raise NotImplementedError(msg)


def make_tool(
    body: Callable[P, R], settings: ToolSettings, toolset: AbstractAsyncContextManager[object] | None = None
) -> Tool[P, R]:
    """A tool of a function, or of a method of a toolset.

    Raises:
        ToolDefinitionError: It cannot become a tool.
    """
    name = settings.get("name") or str(getattr(body, "__name__", ""))
    unknown = sorted(settings.keys() - ToolSettings.__annotations__.keys())
    if unknown:
        known = ", ".join(ToolSettings.__annotations__)
        raise ToolDefinitionError(f"tool {name!r}: there is no setting {', '.join(unknown)}; the settings are {known}")
    if (problem := _problem(body, name)) is not None:
        raise ToolDefinitionError(problem)
    signature = signature_of(body, name, settings.get("needs", {}))
    if settings.get("interactive") or settings.get("runs") == "caller":
        warn(check_question(name, (setting for setting, value in settings.items() if value)))
    return Tool(
        function=body,
        declaration=_declaration(body, name, settings, signature),
        parameters=signature.sent,
        context_parameter=signature.context,
        reconciler=_reconciler(settings.get("reconcile"), body, name),
        needs=signature.needs,
        toolset=toolset,
        settings=settings,
        returns=signature.returns,
    )


def _problem(body: object, name: str) -> str | None:
    """Reason the value cannot become a tool, with the fix; None if it can."""
    if isinstance(body, Tool):
        return f"tool {body.name!r} is a tool already; change its settings with {body.name}.with_(…)"
    if isinstance(body, type):
        return f"tool {name!r}: {body.__name__} is a class; decorate a function, or write a Toolset"
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        if not name:
            return "a generator has no name of its own; write a function with def that returns a list"
        return (
            f"tool {name!r} yields, and a model reads one result: return a list, and tell people of each part with "
            "ToolContext.report_progress"
        )
    if name == "<lambda>":
        return "tool '<lambda>': a lambda has no name; write a function with def, or tool(name='…')(…)"
    if not hasattr(body, "__qualname__"):
        return f"a {type(body).__name__} has no name of its own; write a function with def, and decorate it with @tool"
    return None


_DECLARED = ("timeout", "idempotent", "truncate", "offload", "task_queue", "interactive", "runs", "requires_approval")
"""Settings that a declaration has as they are."""

_BUILTINS: dict[str, Builtin] = {
    f"perdure.agents.{'delegates' if name == 'await_delegate' else 'builtin_tools'}:{name}": name
    for name in get_args(Builtin)
}
"""The tools that the workflow carries out itself; one with another name stays what it is."""

_DELEGATES = {"perdure.agents.delegates:spawn_agent": DelegateSettings(spawns=True)}
"""Likewise the tools that have a delegate carry out a call."""


def _declaration(
    body: Callable[..., object], name: str, settings: ToolSettings, signature: Signature
) -> ToolDeclaration:
    fields: dict[str, Any] = {field: value for field, value in settings.items() if field in _DECLARED}
    if fields.get("runs") == "caller":
        if fields.get("requires_approval"):
            msg = f"tool {name!r}: requires_approval is about a body; the caller who runs it decides whether it runs"
            raise ToolDefinitionError(msg)
        fields = {"timeout": DEFAULT_CALLER_TIMEOUT, **fields, "interactive": True}
    reference = f"{body.__module__}:{body.__qualname__}"
    delegate, schema = _delegate(reference, name, signature.schema, background=settings.get("background", False))
    try:
        return ToolDeclaration(
            name=name,
            description=settings.get("description") or signature.description,
            parameters=schema,
            reference=reference,
            builtin=_BUILTINS.get(reference),
            delegate=delegate,
            catch=_catch_names(settings.get("catch"), name),
            masked=_check_masked(settings.get("masked", ()), signature, name),
            answer=answer_of(body, name) if fields.get("interactive") else None,
            **fields,
        )
    except ValidationError as error:
        first = error.errors()[0]
        msg = f"tool {name!r}: {'.'.join(map(str, first['loc']))}: {first['msg']} (got {first['input']!r})"
        raise ToolDefinitionError(msg) from error


def _delegate(
    reference: str, name: str, schema: dict[str, JsonValue], *, background: bool
) -> tuple[DelegateSettings | None, dict[str, JsonValue]]:
    """Settings of the tool as a delegate, and the schema of its arguments."""
    delegate = _DELEGATES.get(reference)
    if not background:
        return delegate, schema
    if delegate is None:
        msg = f"tool {name!r}: background is for spawn_agent and for delegates, Delegate(…, background=True)"
        raise ToolDefinitionError(msg)
    properties = {**cast("dict[str, JsonValue]", schema["properties"]), **RUN_IN_BACKGROUND}
    return replace(delegate, background=True), {**schema, "properties": properties}


def _reconciler(reconcile: Reconcile | None, body: Callable[..., object], name: str) -> Reconciler | None:
    try:
        return None if reconcile is None else reconciler_of(reconcile, body)
    except (TypeError, NameError) as error:
        raise ToolDefinitionError(f"tool {name!r}: {error}") from error


def _catch_names(catch: Catch, name: str) -> Literal["all", "none"] | tuple[str, ...]:
    if catch is None:
        return DEFAULT_CATCH
    if isinstance(catch, bool):
        return "all" if catch else "none"
    classes = tuple(catch)
    if not all(_is_error_class(cls) for cls in classes):
        msg = f"tool {name!r}: catch must be True, False or classes of exceptions, as in [KeyError] (got {catch!r})"
        raise ToolDefinitionError(msg)
    return (*DEFAULT_CATCH, *sorted({error.__name__ for error in classes} - set(DEFAULT_CATCH)))


def _is_error_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _check_masked(masked: Iterable[str], signature: Signature, name: str) -> tuple[str, ...]:
    names = (masked,) if isinstance(masked, str) else tuple(masked)
    sent = {str(field.alias) for field in signature.sent.model_fields.values()}
    absent = sorted(set(names) - sent)
    if absent:
        msg = f"tool {name!r}: masked names {', '.join(absent)}, which no model sends; it sends {', '.join(sent)}"
        raise ToolDefinitionError(msg)
    return names
