"""Each ugly thing that an author's code does, in each place that calls such code: what it costs, as one table.

A cell has how often the code ran, how many answers were paid, and the code that people read. No cell has a second run
or an answer that was bought again.
"""

import asyncio
import contextlib
import enum
import json
import math
from collections.abc import AsyncIterator, Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from perdure import Agent, Toolset, hook, tool, tool_method
from perdure.testing import Reply, call, say
from tests.memory import Run
from tests.wild.test_author_exceptions import RAISED, UnprintableError, made

Ugly = Callable[[], Any]
Cell = tuple[int, int, str | None]


class Colour(enum.Enum):
    RED = "red"


def cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


async def never_awaited() -> str:
    return "late"


class Unprintable:
    """It cannot be printed."""

    def __repr__(self) -> str:
        raise UnprintableError


KEPT: dict[str, tuple[Ugly, str]] = {
    "NaN": (lambda: math.nan, '"NaN"'),
    "-Infinity": (lambda: -math.inf, '"-Infinity"'),
    "a date": (lambda: date(2026, 11, 28), '"2026-11-28"'),
    "a duration": (lambda: timedelta(days=1), '"P1D"'),
    "a decimal": (lambda: Decimal("0.10"), '"0.10"'),
    "an enumeration": (lambda: Colour.RED, '"red"'),
    "a set": (lambda: {1}, "[1]"),
    "a path": (lambda: Path("/x"), '"/x"'),
    "an empty text": (lambda: "", ""),
    "an empty list": (list, "[]"),
    "false": (lambda: False, "false"),
    "nought": (lambda: 0, "0"),
    "none": (lambda: None, "null"),
    "half a character": (lambda: "\ud83d", "\ufffd"),
    "NUL": (lambda: "a\0b", "a\0b"),
    "a long number": (lambda: 10**300, "1" + "0" * 300),
}
"""Values that come back as they were, or spelled, and the text that the model reads."""

REFUSED: dict[str, tuple[Ugly, str]] = {
    "bytes": (lambda: b"\xff", "return perdure.Image or perdure.File for bytes"),
    "a cycle": (cycle, "Circular reference detected"),
    "a deep list": (deep, "Maximum serialization depth exceeded"),
    "an object": (object, "a object has no JSON form"),
    "one that cannot be printed": (Unprintable, "a Unprintable has no JSON form"),
    "a class": (lambda: Colour, "a EnumType has no JSON form"),
    "a function": (lambda: never_awaited, "a function has no JSON form"),
    "an exception": (lambda: ValueError("given back"), "a ValueError has no JSON form"),
}
"""Values that have no JSON form, and what the model reads of them."""


def made_with(place: str, ugly: Ugly, runs: list[str]) -> tuple[dict[str, Any], list[Reply]]:
    """Settings of an agent with such code in one place, and the answers of its model."""

    def do(_: object = None) -> Any:
        runs.append(place)
        return ugly()

    async def do_async(_: object = None) -> Any:
        await asyncio.sleep(0)
        return do()

    @tool(catch=True, idempotent=True)
    def sync() -> Any:
        return do()

    @tool(catch=True, idempotent=True)
    async def of_loop() -> Any:
        return await do_async()

    @tool(catch=True, idempotent=True)
    async def in_a_task() -> Any:
        return await asyncio.create_task(do_async())

    @tool(catch=True, idempotent=True)
    def drawn() -> Any:
        return (do() for _ in range(1))

    @tool(catch=True, idempotent=True)
    def checked(count: Annotated[Any, AfterValidator(lambda _: do())] = 1) -> Any:
        return count

    class Desk(Toolset):
        @tool_method(catch=True, idempotent=True)
        async def method(self) -> Any:
            return await do_async()

    class Shut(Toolset):
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            do()
            yield

        @tool_method(catch=True, idempotent=True)
        def opened(self) -> str:
            return "opened"

    class Answer(BaseModel):
        count: Annotated[Any, AfterValidator(lambda _: do())]

    every: list[Any] = [sync, of_loop, in_a_task, drawn, checked, *Desk().tools, *Shut().tools]
    tools = {one.name: one for one in every}
    if place in tools:
        return {"tools": [tools[place]]}, [call((place, {"count": 1} if place == "checked" else {})), say("done")]
    other: dict[str, dict[str, Any]] = {
        "hook": {"hooks": [hook("generation_end", name="hook")(do)], "on_hook_error": "fail"},
        "hook_async": {"hooks": [hook("generation_end", name="hook")(do_async)], "on_hook_error": "fail"},
        "instructions": {"instructions": do},
        "validator": {"output_schema": Answer, "output_corrections": 0},
    }
    return other[place], [say('{"count": 3}')] * 3


RAISING: dict[str, Cell] = {
    **dict.fromkeys(("sync", "of_loop", "in_a_task", "checked", "method", "opened"), (1, 2, "tool.execution_error")),
    "drawn": (1, 2, "tool.invalid_output"),
    **dict.fromkeys(("hook", "hook_async"), (1, 1, "runtime.hook_failed")),
    "instructions": (1, 0, "request.invalid"),
    "validator": (1, 1, "llm.schema_violation"),
}
"""Each place, and what an exception of any kind costs there."""


async def meet(run: Run, place: str, ugly: Ugly) -> Cell:
    """Run a turn with it: runs of the code, answers that were paid, and the code."""
    runs: list[str] = []
    settings, replies = made_with(place, ugly, runs)
    result = await run(Agent(**{"name": "tester", "model": "openai/scripted", **settings}), *replies)
    ends = await run.events("tool_end")
    code = ends[0]["error"]["code"] if ends and ends[0].get("error") else result["reason_code"]
    return len(runs), len(run.requests), code


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("place", RAISING)
async def test_what_is_raised_costs_one_run_and_no_answer_more(run: Run, place: str, kind: str) -> None:
    """S-25 S-36: the place, and not the exception, says what it is told as."""

    def fail() -> Any:
        raise made(kind)

    runs, paid, code = RAISING[place]
    if (place, kind) == ("drawn", "ClosedError"):  # nothing of it can be looked at
        code = "tool.execution_error"
    assert await meet(run, place, fail) == (runs, paid, code)


@pytest.mark.parametrize("kind", [*KEPT, *REFUSED])
@pytest.mark.parametrize("place", ["sync", "of_loop", "in_a_task", "checked", "method", "drawn"])
async def test_what_a_tool_returns_comes_back_as_it_was_or_is_refused_by_name(run: Run, place: str, kind: str) -> None:
    """S-22: also as an item that is drawn, and through a validator."""
    ugly, told = {**KEPT, **REFUSED}[kind]
    code = "tool.invalid_output" if kind in REFUSED else None
    assert await meet(run, place, ugly) == (1, 2, code)
    (end,) = await run.events("tool_end")
    if code is None:
        text = f"[{told if told.startswith(chr(34)) or kind not in TEXTS else json.dumps(told, ensure_ascii=False)}]"
        assert end["result"] == (text if place == "drawn" else told)
    else:
        drawn = "nested too deeply, or holds itself" if kind in {"a cycle", "a deep list"} else told
        assert (drawn if place == "drawn" else told) in end["error"]["message"]


TEXTS = {"an empty text", "half a character", "NUL"}
"""Values that are texts, and stand in a list as JSON."""


@pytest.mark.parametrize("kind", [*KEPT, *REFUSED])
async def test_what_a_hook_returns_that_is_no_reaction_is_ignored_and_named_in_the_log(
    run: Run, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S-36."""
    ugly, _ = {**KEPT, **REFUSED}[kind]
    assert await meet(run, "hook_async", ugly) == (1, 1, None)
    assert ("which is no reaction; it is ignored" in caplog.text) is (kind != "none")


@pytest.mark.parametrize("kind", [*KEPT, *REFUSED])
async def test_instructions_that_are_no_text_are_refused_by_name(run: Run, kind: str) -> None:
    """S-11: before any answer is paid."""
    ugly, _ = {**KEPT, **REFUSED}[kind]
    fine = kind in {"an empty text", "NUL"}
    assert await meet(run, "instructions", ugly) == ((1, 1, None) if fine else (1, 0, "request.invalid"))


@pytest.mark.parametrize("kind", [*KEPT, *REFUSED])
async def test_what_a_validator_makes_of_an_answer_changes_nothing_of_the_turn(run: Run, kind: str) -> None:
    """S-24: the value is the answer's JSON."""
    ugly, _ = {**KEPT, **REFUSED}[kind]
    assert await meet(run, "validator", ugly) == (1, 1, None)


@pytest.mark.parametrize("place", ["sync", "of_loop", "in_a_task", "checked", "method"])
async def test_a_coroutine_that_a_tool_returns_is_closed_and_refused_with_the_fix(run: Run, place: str) -> None:
    """S-22."""
    assert await meet(run, place, never_awaited) == (1, 2, "tool.invalid_output")
    (end,) = await run.events("tool_end")
    assert "that nobody awaited; write 'async def'" in end["error"]["message"]
