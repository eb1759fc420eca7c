"""Iterators that tools return: pydantic draws any of them, without end, and holds the interpreter meanwhile.

Seen on a real worker: ``itertools.count()`` as a result took 12 GB in three minutes, and no time-out could end it.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, tool
from perdure.agents import parameters
from perdure.testing import call, say
from tests.memory import Run


class Countdown:
    """An iterator of an author's own."""

    def __init__(self) -> None:
        self._left = 3

    def __iter__(self) -> "Countdown":
        return self

    def __next__(self) -> int:
        self._left -= 1
        if self._left < 0:
            raise StopIteration
        return self._left


@dataclass(frozen=True, slots=True)
class Page:
    """A dataclass that holds an iterator."""

    lines: Any
    number: int = 1


class Book(BaseModel):
    """A model that holds an iterator."""

    pages: Any


class Lines(BaseModel):
    """A model whose field is one."""

    lines: Iterable[int]


@dataclass
class Counter:
    """A dataclass that is an iterator: its fields are its JSON form."""

    at: int = 0

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        return self.at


async def result_of(run: Run, returned: Callable[[], Any], annotation: Any = Any) -> Any:
    """What the model reads of the value, or the code of the error."""

    def work() -> Any:
        return returned()

    work.__annotations__["return"] = annotation
    agent = Agent(name="tester", model="openai/scripted", tools=[tool(catch=True)(work)])
    assert (await run(agent, call(("work", {})), say("done")))["stop_reason"] == "finished"
    *_, end = await run.events("tool_end")
    return end["error"]["message"] if end["error"] else end["result"]


FORMS: dict[str, Callable[[Iterator[int]], Any]] = {
    "itself": lambda items: items,
    "in a list": lambda items: [1, [items]],
    "in a dictionary": lambda items: {"a": (items,)},
    "in a dataclass": Page,
    "in a model": lambda items: Book(pages=[Page(items)]),
    "a model's field": lambda items: Lines(lines=items),
    "of an iterator": lambda items: iter([[items]]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("annotation", [Any, list[Any], Iterable[Any], Book, Lines, Page])
async def test_an_endless_one_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, form: str, annotation: Any
) -> None:
    """S-22: wherever it stands, and whatever the annotation says."""
    monkeypatch.setattr(parameters, "MAX_ITEMS", 1_000)
    read = await result_of(run, lambda: FORMS[form](itertools.islice(itertools.count(), 2_000)), annotation)
    assert "of more than 1,000 items; return fewer" in read or "does not fit its annotation" in read
    if annotation is Any:
        assert "returned an iterator (" in read


@pytest.mark.parametrize(
    ("returned", "annotation", "read"),
    [
        (lambda: map(int, "12"), list[int], "[1,2]"),
        (lambda: map(int, "12"), Iterator[int], "[1,2]"),
        (lambda: zip([1], [2], strict=True), Any, "[[1,2]]"),
        (lambda: csv.reader(io.StringIO("a,b\nc,d")), Any, '[["a","b"],["c","d"]]'),
        (Countdown, Any, "[2,1,0]"),
        (lambda: Page(map(str, [1])), Page, '{"lines":["1"],"number":1}'),
        (lambda: Lines(lines=(n for n in [1, 2])), Lines, '{"lines":[1,2]}'),
        (lambda: Book(pages=(Page(iter("a")),)), Any, '{"pages":[{"lines":["a"],"number":1}]}'),
        (lambda: Counter(3), Any, '{"at":3}'),
    ],
)
async def test_a_finite_one_is_a_list(run: Run, returned: Callable[[], Any], annotation: Any, read: str) -> None:
    """S-22: also where an annotation is checked first, which would leave nothing to read."""
    assert await result_of(run, returned, annotation) == read


async def test_what_holds_no_iterator_is_not_copied() -> None:
    """A large result is walked, and not held twice."""
    value = {"pages": [Book(pages=[Page([1, 2])]), (1, 2)]}
    assert parameters.draw_iterators(value) is value
