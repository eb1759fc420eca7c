"""What a tool's function returns, held to the annotation of the function."""

import inspect
import warnings
from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType, GenericAlias, NoneType
from typing import Any, cast, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError

from perdure.agents.errors import InvalidOutputError, ToolDefinitionError

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

    def checked(self, value: object) -> object:
        """The value, with the items of a generator in a list.

        Raises:
            InvalidOutputError: It does not fit.
        """
        if self._of_items:
            if not _is_generator(value):
                return value
            value = _drawn(value)
        try:
            try:
                self._adapter.validate_python((value,), strict=True)
            except ValidationError:  # which has drawn from no generator, as the other mode would
                value = _drawn(value)
                self._adapter.validate_python((value,))
        except ValidationError as error:
            raise InvalidOutputError(self._problem(error)) from error
        except RecursionError:
            msg = f"{self._said()}: it is nested too deeply"
            raise InvalidOutputError(msg) from None
        return value

    def _problem(self, error: ValidationError) -> str:
        """What is wrong with a value, without the value, which may hold a secret."""
        first, *others = error.errors(include_input=False, include_url=False)
        place = ".".join(map(str, first["loc"][1:]))  # the first part is our own
        more = f", and {len(others)} more" if others else ""
        return f"{self._said()}: {place + ': ' if place else ''}{first['msg']}{more}; correct the one or the other"

    def _said(self) -> str:
        text = "None" if self._annotation is NoneType else inspect.formatannotation(self._annotation)
        text = text if len(text) <= MAX_ANNOTATION else f"{text[:MAX_ANNOTATION]}…"
        return f"the function returned a value that does not fit its annotation {text}"


def return_value_of(annotation: Any, name: str) -> ReturnValue | None:  # noqa: ANN401 - whatever the author wrote
    """What a function returns; None if its annotation says nothing, or nothing that pydantic can check.

    Raises:
        ToolDefinitionError: A name in the annotation cannot be resolved.
    """
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
        msg = (
            f"tool {name!r}: what it returns names {error.name!r}, which cannot be resolved; define it before the tool"
        )
        raise ToolDefinitionError(msg) from error
    except (PydanticSchemaGenerationError, PydanticUserError, SchemaError, TypeError):
        return None
    return ReturnValue(annotation, adapter, of_items=of_items)


def _is_generator(value: object) -> bool:
    return isinstance(value, GeneratorType)


def _drawn(value: object) -> object:
    """The value with a list in place of each generator in its lists and dictionaries."""
    if _is_generator(value):
        try:
            items = list(cast("Iterator[object]", value))
        except (Exception, SystemExit) as error:  # it is the author's code that runs
            msg = f"the tool returned a generator that raised {type(error).__name__}: {error}"
            raise InvalidOutputError(msg) from error
        return [_drawn(item) for item in items]
    if type(value) is dict:
        return {name: _drawn(item) for name, item in cast("dict[object, object]", value).items()}
    if type(value) is list or type(value) is tuple:
        listed = cast("list[object] | tuple[object, ...]", value)
        return type(listed)(map(_drawn, listed))
    return value
