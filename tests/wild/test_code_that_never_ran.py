"""Hooks, instructions and reconcilers whose own code does not run: they return a coroutine or a generator of it.

Seen in public trackers: an async callback behind a decorator or a lambda is called and never awaited, so that a policy
hook lets everything pass, and nothing tells it (strands-agents 4337, hermes-agent 12449, xstate-statemachine 127).
"""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from perdure import Agent, hook
from perdure.testing import say
from tests.memory import Run

RAN: list[str] = []


async def body(_: object = None) -> Any:
    RAN.append("ran")
    return "text"


@functools.wraps(body)
def decorated(*given: Any, **named: Any) -> Any:
    return body(*given, **named)


def plain(event: Any) -> Any:
    return body(event)


async def twice(event: Any) -> Any:
    return body(event)


def drawn() -> Iterator[str]:
    RAN.append("ran")
    yield "text"


async def streamed() -> AsyncIterator[str]:
    RAN.append("ran")
    yield "text"


UNRUN: dict[str, tuple[Callable[..., Any], str]] = {
    "a decorator": (decorated, "returned a coroutine that nobody awaited"),
    "a lambda": (lambda _: body(), "returned a coroutine that nobody awaited"),
    "a function": (plain, "returned a coroutine that nobody awaited"),
    "an async function": (twice, "returned a coroutine that nobody awaited"),
    "a generator": (lambda _: drawn(), "returned a generator, so its code has not run; write it without 'yield'"),
    "an async generator": (
        lambda _: streamed(),
        "returned a async_generator, so its code has not run",
    ),
}


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", **settings})


@pytest.mark.parametrize("form", UNRUN)
async def test_a_hook_that_did_not_run_has_failed(run: Run, form: str) -> None:
    """S-36: as the agent wants hooks that fail to be taken."""
    RAN.clear()
    function, said = UNRUN[form]
    reacting = hook("generation_end", name="guard")(function)
    result = await run(agent(hooks=[reacting], on_hook_error="fail"), say("done"))
    assert (result["reason_code"], RAN) == ("runtime.hook_failed", [])
    assert said in result["error"]


@pytest.mark.parametrize("form", UNRUN)
async def test_instructions_that_did_not_run_are_refused_with_the_fix(run: Run, form: str) -> None:
    """S-11."""
    RAN.clear()
    function, said = UNRUN[form]
    result = await run(agent(instructions=function), say("done"))
    assert (result["reason_code"], RAN, run.requests) == ("request.invalid", [], [])
    assert said in result["error"]
