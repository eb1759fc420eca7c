"""What a tool returns is held to its annotation, and what fits is read as it was before."""

import enum
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, NotRequired, Protocol, TypeVar

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from perdure import File, Image, tool
from perdure.activities.toolbox.output import read
from perdure.agents.context import InvalidOutputError, ToolDefinitionError

PNG = b"\x89PNG\r\n"
T = TypeVar("T")


class Model(BaseModel):
    x: int


class Fields(TypedDict):
    a: int
    b: NotRequired[str]


class Named(NamedTuple):
    a: int
    b: str


@dataclass
class Drawing:
    x: int
    image: Image | None = None


class Colour(enum.Enum):
    RED = "red"


class Foreign:
    """A class that pydantic knows nothing of."""


class Speaks(Protocol):
    def speak(self) -> str: ...


def count(*items: object) -> Iterator[object]:
    yield from items


FITS: dict[str, tuple[Any, Callable[[], object], str]] = {
    "text": (str, lambda: "a", "a"),
    "number": (int, lambda: 3, "3"),
    "number for a float": (float, lambda: 3, "3"),
    "nothing": (None, lambda: None, "null"),
    "nothing of a union": (int | None, lambda: None, "null"),
    "a union": (int | str, lambda: "a", "a"),
    "a model": (Model, lambda: Model(x=1), '{"x":1}'),
    "the fields of a model": (Model, lambda: {"x": 1, "y": 2}, '{"x":1,"y":2}'),
    "a dataclass": (Drawing, lambda: Drawing(1), '{"x":1,"image":null}'),
    "a dataclass with an image": (
        Drawing,
        lambda: Drawing(1, Image(PNG)),
        '{"x":1,"image":"[image, image/png, 6 bytes: artifact',
    ),
    "a typed dictionary": (Fields, lambda: {"a": 1}, '{"a":1}'),
    "a named tuple": (Named, lambda: Named(1, "b"), '[1,"b"]'),
    "an enum": (Colour, lambda: Colour.RED, '"red"'),
    "the value of an enum": (Colour, lambda: "red", "red"),
    "a literal": (Literal["a", "b"], lambda: "b", "b"),
    "a tuple for a list": (list[int], lambda: (1, 2), "[1,2]"),
    "a generator for a list": (list[int], lambda: count(1, 2), "[1,2]"),
    "a generator in a list": (dict[str, list[int]], lambda: {"a": count(1, 2)}, '{"a":[1,2]}'),
    "an iterator": (Iterator[int], lambda: count(1, 2), "[1,2]"),
    "a generator": (Generator[int, None, None], lambda: count(1, 2), "[1,2]"),
    "an iterable": (Iterable[str], lambda: ["a"], '["a"]'),
    "a sequence": (Sequence[int], lambda: (1,), "[1]"),
    "bytes": (bytes, lambda: b"a", '"a"'),
    "a path as text": (Path, lambda: "/a", "/a"),
    "a decimal": (Decimal, lambda: Decimal("1.10"), '"1.10"'),
    "an image": (Image, lambda: Image(PNG), "[image, image/png, 6 bytes: artifact"),
    "images and texts": (list[str | Image | File], lambda: ["a", Image(PNG)], "a\n[image, image/png"),
    "anything": (Any, lambda: {"a": Image(PNG)}, '{"a":"[image'),
    "any object": (object, lambda: [1], "[1]"),
    "a type variable": (T, lambda: [1], "[1]"),
    "a protocol": (Speaks, lambda: "a", "a"),
    "what cannot be": (NoReturn, lambda: 1, "1"),
    "no annotation": (None, lambda: None, "null"),
}


def returning(annotation: Any) -> Any:
    def work() -> Any: ...

    work.__annotations__["return"] = annotation
    return tool(work)


@pytest.mark.parametrize("kind", FITS)
async def test_what_fits_is_read_as_it_is_without_an_annotation(kind: str) -> None:
    """S-25: nothing is converted, no generator is used up."""
    annotation, make, text = FITS[kind]
    result = read(make(), "c1", returning(annotation).returns)
    assert result.text.startswith(text)
    assert result == read(make(), "c1") or result.attachments


OUTSIDE: dict[str, tuple[Any, Callable[[], object], str]] = {
    "text": (str, lambda: 3, "annotation str: Input should be a valid string; correct the one or the other"),
    "nothing": (str, lambda: None, "Input should be a valid string"),
    "something": (None, lambda: "a", "annotation None: Input should be None"),
    "a text for a number": (int, lambda: "three", "annotation int: Input should be a valid integer"),
    "an item": (list[int], lambda: [1, "s3cret", "x"], "annotation list[int]: 1: Input should be a valid integer"),
    "items": (list[int], lambda: ["s3cret", "x"], "unable to parse string as an integer, and 1 more; correct"),
    "an item of a generator": (Iterator[int], lambda: count(1, "s3cret"), "1: Input should be a valid integer"),
    "a generator for a list": (list[int], lambda: count("s3cret"), "0: Input should be a valid integer"),
    "a field": (Fields, lambda: {"b": "s3cret"}, "a: Field required"),
    "a field of a model": (list[Model], lambda: [{"x": "s3cret"}], "0.x: Input should be a valid integer"),
    "another class": (Foreign, lambda: "s3cret", "Input should be an instance of Foreign"),
    "no image": (list[str], lambda: ["a", Image(PNG)], "1: Input should be a valid string"),
    "a bound": (Annotated[int, Field(ge=3)], lambda: 1, "Input should be greater than or equal to 3"),
    "a date": (datetime, lambda: "s3cret", "Input should be a valid datetime"),
    "a long annotation": (Literal[tuple("abcdefghijklmnopqrstuvwxyz" * 1)], lambda: "s3cret", "…: Input should be"),
}


@pytest.mark.parametrize("kind", OUTSIDE)
async def test_what_does_not_fit_is_refused_with_its_place_and_without_the_value(kind: str) -> None:
    """S-25: tool.invalid_output."""
    annotation, make, said = OUTSIDE[kind]
    with pytest.raises(InvalidOutputError) as refused:
        read(make(), "c1", returning(annotation).returns)
    assert str(refused.value).startswith("the function returned a value that does not fit its annotation ")
    assert said in str(refused.value)
    assert "s3cret" not in str(refused.value)


def leaving() -> Iterator[int]:
    yield 1
    raise SystemExit(3)


async def test_a_generator_that_raises_is_bad_output_and_ends_no_process() -> None:
    """S-25: as it is without an annotation."""
    with pytest.raises(InvalidOutputError, match="the tool returned a generator that raised SystemExit: 3"):
        read(leaving(), "c1", returning(list[int]).returns)


def test_a_name_that_cannot_be_resolved_is_told_where_the_tool_is_declared() -> None:
    """S-25: in the annotation itself, and in a class that it names."""

    class Node(BaseModel):
        child: "Nowhere"  # type: ignore[name-defined] # noqa: F821

    def find() -> "list[Missing]":  # type: ignore[name-defined] # noqa: F821
        return []

    with pytest.raises(ToolDefinitionError, match=r"tool 'find': an annotation cannot be resolved .*'Missing'"):
        tool(find)
    with pytest.raises(ToolDefinitionError, match="tool 'work': what it returns names 'Nowhere', which cannot be"):
        returning(list[Node])


def test_a_class_that_names_itself_is_no_such_name() -> None:
    assert returning(Tree).returns is not None


class Tree(BaseModel):
    children: "list[Tree]" = []
