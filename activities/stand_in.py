"""Who answers model calls in place of all providers, as in a test without a network."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from perdure.activities.provider_http import Send
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue


@dataclass(frozen=True)
class StandIn:
    """Who answers in place of all providers. No key is needed then, and nothing leaves the process.

    Attributes:
        answer: A chat completion, in OpenAI's form, for the arguments of litellm's call; None leaves it to litellm.
        send: The reply to an HTTP request that litellm then makes.
    """

    answer: Callable[[AgentDefinition, Mapping[str, Any]], Awaitable[dict[str, JsonValue] | None]]
    send: Send


_current: ContextVar[StandIn | None] = ContextVar("perdure_stand_in", default=None)


def current() -> StandIn | None:
    """The stand-in of this task, if there is one."""
    return _current.get()


@contextlib.contextmanager
def answer_with(stand_in: StandIn) -> Iterator[None]:
    """Have model calls of this block, and of the tasks that it starts, answered by the stand-in."""
    token = _current.set(stand_in)
    try:
        yield
    finally:
        _current.reset(token)
