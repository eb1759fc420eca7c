"""Which task queue each kind of work goes to: one queue for all of it, or one for each role and each limited key.

A turn's queues are chosen when it opens, and kept: they stand in its policy. So turns that are open while a fleet is
split, or joined again, go on where they began.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field

from perdure.contracts.agents import AgentDefinition, TurnPolicy, destination_of
from perdure.contracts.values import JsonValue, replace
from perdure.contracts.variables import names_in


def _as_whole(value: object) -> object:
    """A number that JSON of other languages writes with a point, as 4.0, is the whole number that it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


TurnPriority = Annotated[int, Field(strict=True, ge=1, le=5), BeforeValidator(_as_whole)]
"""Which work Temporal gives out first while it waits for workers: 1 before 5; without one it is 3."""

LONGEST_FAIRNESS_KEY = 64
"""Bytes; a server refuses longer ones."""


def fairness_key_of(tenant: str) -> str | None:
    """The key by which Temporal shares workers out among tenants; None for the default tenant."""
    is_short = len(tenant.encode()) <= LONGEST_FAIRNESS_KEY
    return (tenant if is_short else hashlib.sha256(tenant.encode()).hexdigest()) or None


class Role(StrEnum):
    """Role of a worker process in a split fleet."""

    TURNS = "turns"
    """Decides what happens next, and writes the turns' beginnings, ends and hooks."""
    MODELS = "models"
    """Calls models."""
    TOOLS = "tools"
    """Calls tools."""


_UNITS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}
_LIMIT = re.compile(r"(?P<key>[A-Za-z0-9_.:@-]+)=(?P<calls>\d+(?:\.\d+)?)/(?P<unit>[smh])")


@dataclass(frozen=True)
class RateLimit:
    """Calls that all workers together may make with a key.

    Attributes:
        key: The key's name, as :func:`key_name` gives it.
        per_second: Calls a second.
    """

    key: str
    per_second: float

    @classmethod
    def parse(cls, text: str) -> "RateLimit":
        """Read ``openai=50/s``, ``openai=3000/m`` or ``openai=100/h``.

        Raises:
            ValueError: It is none of these.
        """
        found = _LIMIT.fullmatch(text)
        calls = float(found["calls"]) if found is not None else 0.0
        if found is None or calls <= 0:
            msg = f"{text!r} is no limit; write KEY=CALLS/s, as in openai=50/s, or /m for minutes, /h for hours"
            raise ValueError(msg)
        return cls(found["key"], calls / _UNITS[found["unit"]].total_seconds())

    def __str__(self) -> str:
        return f"{self.key}={self.per_second:g}/s"


def key_name(model: str, params: Mapping[str, JsonValue]) -> str:
    """Name of the key that a model is called with.

    It is the variable that the agent's ``api_key`` refers to, else one that its other settings of address and
    credentials do, else the host of its own address, else the model's provider.
    """
    where = sorted(destination_of(params), key=lambda setting: setting[0] != "api_key")
    variables = [name for _, text in where for name in names_in(text)]
    hosts = [host for _, text in where if (host := urlsplit(text).netloc)]
    return next(iter([*variables, *hosts]), model.partition("/")[0])


def models_queue(task_queue: str, key: str | None = None) -> str:
    """The queue of model calls, or of those of one limited key."""
    return f"{task_queue}-models" if key is None else f"{task_queue}-models-{key}"


def tools_queue(task_queue: str) -> str:
    """The queue of tool calls."""
    return f"{task_queue}-tools"


def deliveries_queue(task_queue: str) -> str:
    """The queue of messages to webhooks and of schedules: workers of turns have places of their own for them."""
    return f"{task_queue}-deliveries"


def role_of_queue(task_queue: str, queue: str) -> Role:
    """The role whose workers poll a queue of this fleet."""
    if queue == tools_queue(task_queue):
        return Role.TOOLS
    models = models_queue(task_queue)
    return Role.MODELS if queue == models or queue.startswith(f"{models}-") else Role.TURNS


def limited_key(task_queue: str, queue: str) -> str | None:
    """The limited key whose calls a queue of this fleet holds; None for any other queue."""
    prefix = f"{models_queue(task_queue)}-"
    return queue.removeprefix(prefix) if queue.startswith(prefix) else None


@dataclass(frozen=True)
class Routing:
    """Division of a fleet's work.

    Attributes:
        roles: Roles of this process in a split fleet; empty where every process does everything, on one queue.
        limits: The keys that have a rate limit, each with a queue of its own.
    """

    task_queue: str
    roles: Sequence[Role] = ()
    limits: Sequence[RateLimit] = ()

    def has(self, role: Role) -> bool:
        """Whether this process has the role."""
        return not self.roles or role in self.roles

    def route(self, policy: TurnPolicy, definition: AgentDefinition) -> TurnPolicy:
        """The policy with the queues of the turn's calls."""
        if not self.roles and not self.limits:
            return policy
        fallbacks = tuple(
            replace(fallback, queue=self._queue_of_calls(used), compaction_queue=self._queue_of_summaries(used))
            for at, fallback in enumerate(policy.fallbacks, start=1)
            for used in [definition.using(at)]
        )
        return replace(
            policy,
            queue=self._queue_of_calls(definition),
            compaction_queue=self._queue_of_summaries(definition),
            tool_queue=tools_queue(self.task_queue) if self.roles else None,
            fallbacks=fallbacks,
        )

    def _queue_of_calls(self, definition: AgentDefinition) -> str | None:
        key = key_name(definition.model, definition.generate_params)
        if any(limit.key == key for limit in self.limits):
            return models_queue(self.task_queue, key)
        return models_queue(self.task_queue) if self.roles else None

    def _queue_of_summaries(self, definition: AgentDefinition) -> str | None:
        writer = definition.compaction.model
        if writer is None:
            return self._queue_of_calls(definition)
        shares_key = writer.partition("/")[0] == definition.model.partition("/")[0]
        params = definition.generate_params if shares_key else {}
        return self._queue_of_calls(replace(definition, model=writer, generate_params=params))
