"""A function's signature and docstring as the schema of a tool: what its model may send, and what it returns."""

import contextlib
import copy
import inspect
import math
import typing
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import GeneratorType, GenericAlias, NoneType
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError

from perdure.agents.context import InvalidOutputError, ToolContext, ToolDefinitionError
from perdure.agents.environment import Needed, Setting, Variable
from perdure.agents.schemas import GivenUpError, check_schema, watch
from perdure.contracts.exceptions import print_error
from perdure.contracts.plain import to_plain
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import SPELLED, JsonValue

if TYPE_CHECKING:
    from griffe import DocstringSection

_DOCUMENTED = frozenset({"parameters", "other parameters", "returns", "raises", "yields", "receives", "warns"})
"""Sections that are no part of a tool's description: the schema says it, or it is for people."""


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """The description, and the texts of the parameters, of a docstring in the style of Google, NumPy or Sphinx."""
    if "\n" not in docstring:
        return docstring, {}
    from griffe import Docstring, Parser  # noqa: PLC0415 - a third of the package's import time

    parsed = Docstring(docstring)
    for style in (Parser.google, Parser.numpy, Parser.sphinx):
        sections = parsed.parse(style, warnings=False)
        if any(section.kind.value in _DOCUMENTED for section in sections):
            kept = [_text(section) for section in sections if section.kind.value not in _DOCUMENTED]
            return "\n\n".join(text for text in kept if text), _parameters(sections)
    return docstring, {}


def _parameters(sections: "Sequence[DocstringSection]") -> dict[str, str]:
    return {
        parameter.name.lstrip("*"): parameter.description.strip()
        for section in sections
        if section.kind.value in {"parameters", "other parameters"}
        for parameter in section.value
        if parameter.description.strip()
    }


def _text(section: "DocstringSection") -> str:
    """A section that is kept, as it was written but for its style."""
    if section.kind.value == "text":
        return str(section.value).strip()
    if section.kind.value == "admonition":
        return _add_title(str(section.title), str(section.value.contents))
    if section.kind.value == "examples":
        return _add_title("Examples", "\n\n".join(text for _, text in section.value))
    return ""


def _add_title(title: str, contents: str) -> str:
    lines = [f"    {line}".rstrip() for line in contents.strip().splitlines()]
    return "\n".join([f"{title}:", *lines])


MAX_ANNOTATION = 100
"""Longest annotation in an error, in characters."""

_ITERABLES = frozenset({Iterable, Iterator, Generator})


class ReturnValue:
    """The annotation of what a function returns.

    Pydantic reads it, and converts nothing: a dictionary with the fields of a model fits the model, and an instance of
    a class is taken as it is. What pydantic knows nothing of has to be an instance.
    """

    def __init__(self, annotation: Any, adapter: TypeAdapter[tuple[Any]], *, of_items: bool) -> None:  # noqa: ANN401
        self._annotation = annotation
        self._adapter = adapter
        self._of_items = of_items

    @property
    def is_text(self) -> bool:
        """Whether any text fits."""
        return self._annotation is str

    def check(self, value: object) -> object:
        """The value, with the items of an iterator in a list.

        Raises:
            InvalidOutputError: It does not fit.
        """
        if self._of_items:
            if not _is_drawn(value):
                return value
            value = draw_iterators(value)
        try:
            try:
                self._adapter.validate_python((value,), strict=True)
            except ValidationError:  # which has drawn from no iterator, as the other mode would
                value = draw_iterators(value)
                self._adapter.validate_python((value,))
        except ValidationError as error:
            raise InvalidOutputError(self._problem(error)) from error
        except RecursionError:
            raise InvalidOutputError(f"{self._describe()}: it is nested too deeply") from None
        return value

    def _problem(self, error: ValidationError) -> str:
        """Describe a wrong value without the value, which may hold a secret."""
        first, *others = error.errors(include_input=False, include_url=False)
        place = ".".join(map(str, first["loc"][1:]))  # the first part is our own
        more = f", and {len(others)} more" if others else ""
        return f"{self._describe()}: {place + ': ' if place else ''}{first['msg']}{more}; correct the one or the other"

    def _describe(self) -> str:
        text = "None" if self._annotation is NoneType else inspect.formatannotation(self._annotation)
        text = text if len(text) <= MAX_ANNOTATION else f"{text[:MAX_ANNOTATION]}…"
        return f"the function returned a value that does not fit its annotation {text}"


def return_value_of(annotation: Any, name: str) -> ReturnValue | None:  # noqa: ANN401 - whatever the author wrote
    """Return type of a function; None if its annotation says nothing, or nothing that pydantic can check."""
    if annotation in {Any, object, inspect.Signature.empty}:
        return None
    of_items = get_origin(annotation) in _ITERABLES
    whole: Any = GenericAlias(list, get_args(annotation)[:1]) if of_items else annotation
    whole = GenericAlias(tuple, (whole,))  # of ours, so that the setting holds whatever settings a class has of its own
    try:
        with warnings.catch_warnings():  # of what is no class, which is not checked
            warnings.simplefilter("ignore")
            adapter: TypeAdapter[tuple[Any]] = TypeAdapter(whole, config=ConfigDict(arbitrary_types_allowed=True))
            adapter.rebuild(raise_errors=True)
    except PydanticUndefinedAnnotation as error:
        raise ToolDefinitionError(
            f"tool {name!r}: what it returns names {error.name!r}, which cannot be resolved; define it before the tool"
        ) from error
    except (PydanticSchemaGenerationError, PydanticUserError, SchemaError, TypeError):
        return None
    return ReturnValue(annotation, adapter, of_items=of_items)


def _is_drawn(value: object) -> bool:
    """Whether a list of its items is the JSON form of the value: a generator, ``map``, ``zip``, a reader of lines."""
    return not _has_fields(value) and isinstance(value, Iterator)


def _has_fields(value: object) -> bool:
    return isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))


_PLAIN = frozenset({str, int, float, bool, NoneType})


def draw_iterators(value: object) -> object:
    """The value with a list in place of each iterator in its lists, dictionaries, dataclasses and models.

    Pydantic would draw from one without end, and let no other thread run meanwhile.
    """
    if type(value) in _PLAIN:
        return value
    if _is_drawn(value):
        try:
            items = list(_look_at_each(cast("Iterator[object]", value)))
        except (GivenUpError, InvalidOutputError):
            raise
        except BaseException as error:  # it is the author's code that runs
            msg = f"the tool returned {_what_draws(value)} that raised {print_error(error)}"
            raise InvalidOutputError(msg) from error
        try:
            return [draw_iterators(to_plain(item)) for item in items]
        except RecursionError:  # what was drawn cannot be drawn again, to find it out where all else is
            msg = f"the tool returned {_what_draws(value)} with an item that is nested too deeply, or holds itself"
            raise InvalidOutputError(msg) from None
    return _with_parts(value, draw_iterators)


def spell_numbers(value: object) -> object:
    """The value with a text in place of each number that JSON does not have: NaN, Infinity, -Infinity."""
    if type(value) is float:
        return value if math.isfinite(value) else SPELLED.get(value, "NaN")
    return value if type(value) in _PLAIN else _with_parts(value, spell_numbers)


def _with_parts(value: object, change: Callable[[object], object]) -> object:
    """A dictionary, list, tuple, dataclass or model with changed parts; a copy, if one of them is another then."""
    if type(value) is dict:
        named = cast("dict[object, object]", value)
        changed = _changed_of(named.items(), change)
        return {**named, **changed} if changed else named
    if type(value) is list or type(value) is tuple:
        listed = cast("list[object] | tuple[object, ...]", value)
        changed = _changed_of(enumerate(listed), change)
        return type(listed)(changed.get(place, item) for place, item in enumerate(listed)) if changed else listed
    return _with_fields(value, change) if _has_fields(value) else value


def _changed_of(items: Iterable[tuple[object, object]], change: Callable[[object], object]) -> dict[object, object]:
    changed = ((name, item, change(item)) for name, item in items)
    return {name: now for name, item, now in changed if now is not item}


def _with_fields(value: object, change: Callable[[object], object]) -> object:
    held = vars(value) if isinstance(value, BaseModel) else _fields_of(value)
    changed = _changed_of(held.items(), change)
    copied = copy.copy(value) if changed else value
    for name, item in changed.items():
        object.__setattr__(copied, str(name), item)  # it may be frozen
    return copied


def _fields_of(value: object) -> dict[str, object]:
    names = (field.name for field in fields(cast("Any", value)))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _what_draws(value: object) -> str:
    return "a generator" if isinstance(value, GeneratorType) else f"an iterator ({type(value).__name__})"


MAX_ITEMS = 1_000_000
"""Most items of an iterator: an endless one would fill the memory before its call's time-out."""


def _look_at_each(drawn: Iterator[object]) -> Iterator[object]:
    """The items, until the watch stops what reads them."""
    watching = watch.get()
    for count, item in enumerate(drawn):
        if watching is not None:
            watching.look()
        if count >= MAX_ITEMS:
            msg = f"the tool returned {_what_draws(drawn)} of more than {MAX_ITEMS:,} items; return fewer"
            raise InvalidOutputError(msg)
        yield item


Needs = Mapping[str, Variable]
"""The parameters that are filled in from the worker's environment, each with its variable."""


@dataclass(frozen=True)
class Signature:
    """Signature of a function, as a tool needs it.

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
    """Read a function."""
    hints = _hints(body, name)
    description, texts = split_docstring(inspect.getdoc(body) or "")
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
            needed.append(_needed_of(hint, parameter, needs[parameter.name], name))
        else:
            # Field names are our own, the alias is the parameter's: a parameter may be called "copy" or "_x".
            fields[f"argument_{index}"] = _field(hint, parameter, texts.get(parameter.name))
    with _json_types(name):
        sent = create_model(
            f"{name}_arguments", __config__=ConfigDict(extra="forbid", ser_json_inf_nan="strings"), **fields
        )
        schema = without_keyword("title", sent.model_json_schema(by_alias=True))
    returns = return_value_of(hints.get("return", Any), name)
    return Signature(description, sent, schema, context, tuple(needed), returns)


def answer_of(body: Callable[..., object], name: str) -> dict[str, JsonValue] | None:
    """The JSON schema of what an interactive tool returns; None if its function does not say."""
    returned: Any = typing.get_type_hints(body, include_extras=True).get("return")
    if returned is None or returned is Any:
        return None
    try:
        schema = without_keyword("title", TypeAdapter(returned).json_schema())
        check_schema(schema)
    except (PydanticUserError, TypeError, ValueError) as error:
        msg = f"tool {name!r}: what it returns has no JSON schema ({str(error).splitlines()[0]}); use JSON types"
        raise ToolDefinitionError(msg) from error
    return schema


def without_keyword(keyword: str, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema without a keyword that decides nothing.

    That is ``title``, which pydantic makes up: it costs tokens and tells the model nothing. Or ``description``.
    """
    return {key: _strip(keyword, value, key) for key, value in schema.items() if key != keyword}


def takes_the_same(declaration: ToolDeclaration, other: ToolDeclaration) -> bool:
    """Whether two tools accept the same arguments, whatever their texts say."""
    schemas = (declaration.parameters, other.parameters)
    return schemas[0] == schemas[1] or without_keyword("description", schemas[0]) == without_keyword(
        "description", schemas[1]
    )


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
        raise ToolDefinitionError(f"tool {name!r} is a method; use @tool_method in a class that inherits from Toolset")
    if parameter.name not in hints:
        raise ToolDefinitionError(
            f"tool {name!r}: parameter {parameter.name!r} has no annotation; "
            f"write for example '{parameter.name}: str' so that the model knows what to send"
        )
    return hints[parameter.name]


def _field(hint: Any, parameter: inspect.Parameter, documented: str | None) -> Any:  # noqa: ANN401 - annotations
    default = ... if parameter.default is parameter.empty else parameter.default
    extras = getattr(hint, "__metadata__", ())
    if any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        return (Annotated[hint, Field(alias=parameter.name)], default)
    text = next((extra for extra in extras if isinstance(extra, str)), documented)
    return (Annotated[hint, Field(alias=parameter.name, description=text)], default)


def _needed_of(hint: Any, parameter: inspect.Parameter, variable: object, name: str) -> Needed:  # noqa: ANN401
    if not isinstance(variable, Variable):
        raise ToolDefinitionError(f"tool {name!r}: needs[{parameter.name!r}] must be Secret('NAME') or Setting('NAME')")
    with _json_types(name):
        accepts: TypeAdapter[Any] = TypeAdapter(hint)
    if isinstance(variable, Setting) and variable.default is not parameter.empty:
        try:
            accepts.validate_python(variable.default, strict=True)
        except ValidationError as error:
            raise ToolDefinitionError(
                f"tool {name!r}: the default {variable.default!r} of Setting({variable.name!r}) does not fit "
                f"parameter {parameter.name!r}: {error.errors()[0]['msg']}"
            ) from error
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
    return without_keyword(keyword, value)
