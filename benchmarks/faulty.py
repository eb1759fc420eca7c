"""Agents whose authors made a mistake: one agent a mistake, as `python -m perdure.worker` loads them.

What runs of an author's code writes its agent's name into the file ``FAULTY_RUNS``, a line a run.
"""

import asyncio
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, create_model

from perdure import Agent, EffectUnknown, Tool, Toolset, hook, tool, tool_method

TIMEOUT = timedelta(seconds=2)
LONG_SECONDS = 3_600.0
LARGE = 5_000_000
DEEP = 100_000

Fails = Callable[[], Any]


class Outcome(BaseException):
    """No handler of exceptions sees it."""


class UnprintableError(Exception):
    """It fails when it is printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@dataclass(frozen=True)
class Mistake:
    """A mistake in a place of an agent, and what the page calls it."""

    what: str
    agent: Agent

    @property
    def stays(self) -> bool:
        """Whether something of it may run on after its turn."""
        return bool(re.search("never ends|for good|blocks|ignores|without end", self.what))


def raises(error: Callable[[], BaseException]) -> Fails:
    """Code that raises it."""

    def fail() -> None:
        raise error()

    return fail


def block() -> None:
    """Never end, and look at no flag."""
    time.sleep(LONG_SECONDS)


def backtrack() -> None:
    """Never end, and let no other thread run: a regular expression backtracks."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def recurse() -> int:
    """Call itself without end."""
    return recurse() + 1


def kill() -> None:
    """What the kernel does to a process that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    """End the process at once."""
    os._exit(3)


def nest() -> Any:
    """A value that is deeper than any stack."""
    value: Any = []
    for _ in range(DEEP):
        value = [value]
    return value


def endless() -> Iterator[int]:
    """Items without end."""
    return itertools.count()


def note(name: str) -> None:
    """Write that the agent's code has run."""
    with Path(os.environ["FAULTY_RUNS"]).open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def made(name: str, **settings: Any) -> Agent:
    """An agent of that name."""
    return Agent(name=name, model="openai/gpt-4o-mini", max_steps=10, **settings)


def body(name: str, fail: Fails, **settings: Any) -> Tool[..., Any]:
    """A sync tool with the mistake in its body."""

    @tool(**{"name": "work", "timeout": TIMEOUT, "catch": True, **settings})
    def work() -> Any:
        """Work."""
        note(name)
        return fail()

    return work


def body_of_loop(name: str, fail: Fails) -> Tool[..., Any]:
    """The same on the loop of async tools."""

    @tool(name="work", timeout=TIMEOUT, catch=True)
    async def work() -> Any:
        """Work."""
        note(name)
        await asyncio.sleep(0)
        return fail()

    return work


def deaf(name: str) -> Tool[..., Any]:
    """An async tool that goes on when it is cancelled."""

    @tool(name="work", timeout=TIMEOUT, catch=True)
    async def work() -> None:
        """Work."""
        note(name)
        while True:
            try:
                await asyncio.sleep(LONG_SECONDS)
            except asyncio.CancelledError:
                continue

    return work


def checked(name: str, fail: Fails) -> Tool[..., Any]:
    """A tool with the mistake in a parameter's type."""

    def check(_: int) -> int:
        note(name)
        return int(fail())

    @tool(name="work", timeout=TIMEOUT, catch=True)
    def work(count: Annotated[int, AfterValidator(check)] = 1) -> str:
        """Work."""
        return str(count)

    return work


def opened(name: str, fail: Fails) -> Toolset:
    """A toolset with the mistake where it opens."""

    class Desk(Toolset):
        @asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            note(name)
            await asyncio.sleep(0)
            fail()
            yield

        @tool_method(timeout=TIMEOUT, catch=True)
        def work(self) -> str:
            """Work."""
            return "worked"

    return Desk()


def reconciled(name: str, fail: Fails) -> Tool[..., Any]:
    """A tool that kills its worker, with the mistake in its reconciler."""

    def look_up() -> EffectUnknown:
        note(name)
        fail()
        return EffectUnknown("nobody knows")

    return body(name, kill, reconcile=look_up)


def hooked(name: str, fail: Fails, *, of_loop: bool = False) -> Any:
    """A hook with the mistake."""

    def react(_: Any) -> None:
        note(name)
        fail()

    async def react_of_loop(event: Any) -> None:
        await asyncio.sleep(0)
        react(event)

    return hook("generation_end", name="react", timeout=TIMEOUT)(react_of_loop if of_loop else react)


def instructed(name: str, fail: Fails) -> Callable[[Any], str]:
    """Instructions with the mistake."""

    def write(_: Any) -> str:
        note(name)
        return str(fail())

    return write


def answered(name: str, fail: Fails) -> type[BaseModel]:
    """The type of an answer, with the mistake in its validator."""

    def check(_: int) -> int:
        note(name)
        return int(fail())

    return create_model("Answer", count=(Annotated[int, AfterValidator(check)], ...))


def _tools() -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Mistakes of tools, by what they are called."""
    yield "raises an `Exception`", lambda name: body(name, raises(lambda: ValueError("wrong")))
    yield "raises `SystemExit`", lambda name: body(name, lambda: sys.exit(3))
    yield "raises `KeyboardInterrupt`", lambda name: body(name, raises(KeyboardInterrupt))
    yield "raises `GeneratorExit`", lambda name: body(name, raises(GeneratorExit))
    yield "raises `CancelledError`, async", lambda name: body_of_loop(name, raises(asyncio.CancelledError))
    yield "raises a `BaseException` of its own", lambda name: body(name, raises(Outcome))
    yield "raises an error whose `__str__` raises", lambda name: body(name, raises(UnprintableError))
    yield "recurses without end", lambda name: body(name, recurse)
    yield "never ends, sync", lambda name: body(name, block)
    yield "blocks the loop for good, async", lambda name: body_of_loop(name, block)
    yield "ignores that it is cancelled, async", deaf
    yield "holds the interpreter for good (`re`)", lambda name: body(name, backtrack)
    yield "returns an iterator without end", lambda name: body(name, endless)
    yield "returns a value without a JSON form", lambda name: body(name, object)
    yield "returns 5 MB", lambda name: body(name, lambda: "x" * LARGE)
    yield "returns 5 MB with `offload=False`", lambda name: body(name, lambda: "x" * LARGE, offload=False)
    yield "returns 100,000 nested lists", lambda name: body(name, nest)
    yield "ends the process with `os._exit`", lambda name: body(name, leave)
    yield "is killed each time, idempotent", lambda name: body(name, kill, idempotent=True)
    yield "is killed, and its reconciler raises", lambda name: reconciled(name, raises(ValueError))
    yield "is killed, and its reconciler never ends", lambda name: reconciled(name, block)
    yield "has a type whose validator raises", lambda name: checked(name, raises(Outcome))
    yield "has a type whose validator never ends", lambda name: checked(name, block)
    yield "is of a toolset that fails to open", lambda name: opened(name, raises(Outcome))
    yield "is of a toolset that blocks as it opens", lambda name: opened(name, block)


def _others() -> Iterator[tuple[str, Callable[[str], dict[str, Any]]]]:
    """Mistakes elsewhere: the settings of their agents, by what they are called."""
    yield "instructions raise", lambda name: {"instructions": instructed(name, raises(Outcome))}
    yield "instructions never end", lambda name: {"instructions": instructed(name, block)}
    yield "instructions end the process", lambda name: {"instructions": instructed(name, leave)}
    yield "a hook raises", lambda name: {"hooks": [hooked(name, raises(Outcome))]}
    yield "a hook never ends, sync", lambda name: {"hooks": [hooked(name, block)]}
    yield "a hook blocks its loop, async", lambda name: {"hooks": [hooked(name, block, of_loop=True)]}
    yield "a hook ends the process", lambda name: {"hooks": [hooked(name, leave)]}
    yield "an answer's validator raises", lambda name: {"output_schema": answered(name, raises(Outcome))}
    yield "an answer's validator never ends", lambda name: {"output_schema": answered(name, block)}
    yield "an answer's validator ends the process", lambda name: {"output_schema": answered(name, leave)}


MISTAKES = [
    *(
        Mistake(f"a tool {what}", made(f"tool-{number}", tools=[make(f"tool-{number}")]))
        for number, (what, make) in enumerate(_tools())
    ),
    *(
        Mistake(what, made(f"other-{number}", **make(f"other-{number}")))
        for number, (what, make) in enumerate(_others())
    ),
]


@tool
async def greet() -> str:
    """Greet."""
    return "hello"


@tool
def greet_on_thread() -> str:
    """Greet."""
    return "hello"


bystander = made("bystander", tools=[greet, greet_on_thread])

globals().update({mistake.agent.name: mistake.agent for mistake in MISTAKES})  # where a worker looks for agents
