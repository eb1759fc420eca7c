"""Exceptions that are no ordinary ones, out of code that authors write.

Seen in public trackers: a bare ``next()`` in a thread of asyncio's leaves its future pending for ever (python/cpython
112182); an outcome of pytest, and an ``asyncio.CancelledError`` out of a library, pass every ``except Exception``
(temporalio/sdk-python); an exception whose ``__str__`` raises breaks whatever reports it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from perdure import Agent, Toolset, hook, tool, tool_method
from perdure.agents.tool import Tool
from perdure.contracts.conditions import StepCount
from perdure.contracts.values import JsonValue
from perdure.testing import call, say
from tests.memory import Run


class UnprintableError(Exception):
    """It fails when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnprintableOutcome(BaseException):
    """Likewise, and no handler of exceptions sees it."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class Text(str):
    """A text that is more than that."""

    __slots__ = ()


class Outcome(BaseException):
    """As pytest's ``skip`` raises one."""


class Worded(BaseException):
    """One whose text is of a class of its own."""

    def __str__(self) -> str:
        return Text("worded")


class UnprintableExit(SystemExit):
    """It ends the process, and fails when it is printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


class ClosedError(Exception):
    """Whoever looks at it fails."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


RAISED: dict[str, Callable[[], BaseException]] = {
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "CancelledError of futures": CancelledError,
    "GeneratorExit": GeneratorExit,
    "Outcome": lambda: Outcome("skipped"),
    "Worded": Worded,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [Outcome(), ValueError()]),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "UnprintableError": UnprintableError,
    "UnprintableOutcome": UnprintableOutcome,
    "UnprintableExit": UnprintableExit,
    "ClosedError": ClosedError,
}

each = pytest.mark.parametrize("kind", RAISED)


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "instructions": "Be brief.", **settings})


def made(kind: str) -> BaseException:
    return RAISED[kind]()


def names_of(kind: str) -> tuple[str, ...]:
    """The class that people read."""
    if kind == "StopIteration":
        return (kind, "RuntimeError")  # Python's own, out of a coroutine
    return (
        ("BodyExitedError",)
        if kind in {"SystemExit", "KeyboardInterrupt", "UnprintableExit"}
        else (kind.partition(" ")[0],)
    )


@each
@pytest.mark.parametrize("is_async", [False, True])
async def test_of_a_hook_it_fails_the_hook_which_has_run_once(run: Run, kind: str, is_async: bool) -> None:
    """S-36: the model is paid for its one answer."""
    runs: list[str] = []

    def fail(_: object) -> None:
        runs.append(kind)
        raise made(kind)

    async def fail_async(event: object) -> None:
        fail(event)

    reacting = hook("generation_end", name="fail")(fail_async if is_async else fail)
    result = await run(agent(hooks=[reacting], on_hook_error="fail"), say("done"))
    assert (result["reason_code"], len(runs), len(run.requests)) == ("runtime.hook_failed", 1, 1)
    assert "hook fail, generation_end: " in result["error"]
    assert any(f"{name}: " in result["error"] for name in names_of(kind))


@each
async def test_of_instructions_it_refuses_the_turn(run: Run, kind: str) -> None:
    """S-11: the function has run once, and the model is not asked."""
    runs: list[str] = []

    def make(_: object) -> str:
        runs.append(kind)
        raise made(kind)

    result = await run(agent(instructions=make), say("done"))
    assert (result["reason_code"], len(runs), run.requests) == ("request.invalid", 1, [])
    assert "could not be made: " in result["error"]


@each
async def test_of_an_output_types_validator_it_is_a_violation_of_the_schema(run: Run, kind: str) -> None:
    """S-24: the answer is paid once, its correction once."""
    runs: list[str] = []

    def check(value: int) -> int:
        runs.append(kind)
        raise made(kind)

    class Answer(BaseModel):
        count: Annotated[int, AfterValidator(check)]

    answer = say('{"count": 3}')
    result = await run(agent(output_schema=Answer, output_corrections=1), answer, answer, answer)
    assert (result["reason_code"], len(runs), len(run.requests)) == ("llm.schema_violation", 2, 2)


def tools(kind: str, runs: list[str]) -> Sequence[Tool[..., Any]]:
    """A tool of each form that raises it."""

    def fail() -> Any:
        runs.append(kind)
        raise made(kind)

    @tool(catch=True, idempotent=True)
    def sync() -> str:
        return str(fail())

    @tool(catch=True, idempotent=True)
    async def of_loop() -> str:
        await asyncio.sleep(0)
        return str(fail())

    @tool(catch=True, idempotent=True)
    async def in_a_task() -> str:
        async def inner() -> None:
            fail()

        await asyncio.create_task(inner())
        return ""

    @tool(catch=True, idempotent=True)
    def drawn() -> Any:
        return (fail() for _ in range(3))

    @tool(catch=True, idempotent=True)
    def checked(count: Annotated[int, AfterValidator(lambda _: fail())] = 1) -> str:
        return str(count)

    class Desk(Toolset):
        @tool_method(catch=True, idempotent=True)
        def method(self) -> str:
            return str(fail())

    class Shut(Toolset):
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            fail()
            yield

        @tool_method(catch=True, idempotent=True)
        def shut(self) -> str:
            return ""

    return (sync, of_loop, in_a_task, drawn, checked, *Desk().tools, *Shut().tools)


@each
@pytest.mark.parametrize("form", ["sync", "of_loop", "in_a_task", "drawn", "checked", "method", "shut"])
async def test_of_a_tool_it_is_an_error_result_of_one_run(run: Run, kind: str, form: str) -> None:
    """S-21 S-25: the next call of the same tool is carried out."""
    runs: list[str] = []
    (body,) = (one for one in tools(kind, runs) if one.name == form)
    given: dict[str, JsonValue] = {"count": 1} if form == "checked" else {}
    result = await run(agent(tools=[body]), call((form, given)), call((form, given)), say("done"))
    assert (result["stop_reason"], len(runs)) == ("finished", 2)
    first, second = await run.events("tool_end")
    assert first["error"]["type"] == second["error"]["type"]
    assert first["error"]["code"] in {"tool.execution_error", "tool.invalid_output", "tool.invalid_input"}
    if form in {"sync", "of_loop", "in_a_task", "method"}:
        assert first["error"]["type"] in names_of(kind)
        if kind in {"UnprintableError", "UnprintableOutcome"}:
            assert first["error"]["message"] == "no message"


@each
async def test_of_a_toolset_that_is_left_it_costs_nothing(run: Run, kind: str) -> None:
    """S-25: the body has run, and its result is the one that it returned."""
    runs: list[str] = []

    class Desk(Toolset):
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            yield
            raise made(kind)

        @tool_method(catch=True, idempotent=True)
        def work(self) -> str:
            runs.append(kind)
            return "worked"

    result = await run(agent(tools=[*Desk().tools]), call(("work", {})), say("done"))
    assert (result["stop_reason"], result["output"], len(runs)) == ("finished", "done", 1)
    assert [end.get("error") for end in await run.events("tool_end")] == [None]


@pytest.mark.parametrize("kind", ["Outcome", "UnprintableError", "CancelledError", "StopIteration"])
@pytest.mark.parametrize(
    "event",
    [
        *("agent_start", "generation_start", "generation_step", "tool_start", "tool_end", "step_end"),
        *("stop_condition_met", "agent_end"),
    ],
)
async def test_of_a_hook_at_any_event_it_is_met_once(run: Run, kind: str, event: Any) -> None:
    """S-36: whatever has been paid and has run before it."""
    runs: list[str] = []

    @hook(event)
    def fail(_: object) -> None:
        runs.append("hook")
        raise made(kind)

    @tool
    def work() -> str:
        runs.append("tool")
        return "worked"

    stops = {"stop_conditions": [StepCount(count=1)]} if event == "stop_condition_met" else {}
    tester = agent(hooks=[fail], tools=[work], on_hook_error="fail", **stops)
    result = await run(tester, call(("work", {})), *(say("done") for _ in range(9)))
    assert runs.count("hook") == 1
    assert runs.count("tool") <= 1
    assert len(run.requests) <= 2
    assert result["reason_code"] == "runtime.hook_failed" or event in {"agent_end", "stop_condition_met"}
