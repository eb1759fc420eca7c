"""The gate before each model call: calls of one provider, address and key pass in order, at the pace it allows.

While no limit is known a call passes at once. A job that is alone at its gate is not held: its own policy has made it
wait. Waiting uses up neither tries nor ``max_time``, and ends at once with a cancel or with the worker.

A worker has room for so many activities, which tools and other keys need too. Calls whose turn is far off therefore
wait in Temporal, and come back in time with their place.
"""

import asyncio
import contextlib
import hashlib
import json
import math
import os
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import error_of_shutdown, transient
from perdure.activities.telling.metrics import Metrics
from perdure.contracts.agents import AgentDefinition, destination_of
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.variables import REFERENCE
from perdure.contracts.waits import WAITS_FOR_ITS_TURN
from perdure.llm.pace import Pace, Sent
from perdure.store import Store, StoreError
from perdure.store.provider_refusals import Refusal

TELL_SECONDS = 3.0
"""A call that waits for longer says so."""

HEAR_SECONDS = 1.0
"""Shortest interval between reads of other workers' refusals from the store, which are made only while calls are
made.
"""

LONGEST_STAY = 600.0
"""Seconds that a call waits in the worker: the server gives its attempt up after ``workflows.options.GRACE``."""

SHORTEST_AWAY, LONGEST_AWAY = 5.0, 300.0
"""Bounds of the seconds that a call waits in Temporal before it is back."""

WORTH_SAYING = 5.0
"""A key that is closed for longer, as the provider has asked for, is said to be."""

RETURN_SECONDS = 60.0
"""A call that is so much later than that has lost its place: its job has ended, or another worker has it."""

MOST_GATES = 1_000
"""More keys than that are remembered only while they are limited."""


@dataclass(eq=False)
class _Place:
    """A place in the line: of a call that waits here, or of one that comes back before it is ``due``."""

    owner: str
    turn: "asyncio.Future[Sent] | None" = None
    due: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """State of a waiting call.

    Attributes:
        ahead: How many calls are before it.
        rate: The pace, in calls a second.
        seconds: How long it has waited.
        closed: Seconds until the key takes a call again.
    """

    provider: str
    ahead: int
    rate: float | None
    seconds: float = 0.0
    closed: float = 0.0

    def __str__(self) -> str:
        """As people read it at the pending activity."""
        calls = {0: "this call is next", 1: "1 call is before this one"}
        place = calls.get(self.ahead, f"{self.ahead} calls are before this one")
        pace = f", it takes {self.rate:.2g} calls a second" if self.rate is not None else ""
        closed = f", the next in {self.closed:.0f} s" if self.closed > WORTH_SAYING else ""
        return f"{WAITS_FOR_ITS_TURN}: {self.provider} limits this key{pace}{closed}, {place}"


class Gate:
    """The gate of one key in this worker."""

    def __init__(self, provider: str, most: Callable[[], int], changed: Callable[[], None], key: str = "") -> None:
        """``most`` calls wait here, the rest in Temporal; ``changed`` is called when pace or line have changed."""
        self.provider = provider
        self.key = key
        self._most = most
        self._changed = changed
        self._pace = Pace()
        self._line: list[_Place] = []
        self._last: str = ""
        self._shown: tuple[float | None, int] = (None, 0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rate(self) -> float | None:
        """Calls a second; None while no limit is known."""
        return self._pace.rate

    @property
    def waiting(self) -> int:
        """Calls that wait here."""
        return sum(place.turn is not None for place in self._line)

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator["asyncio.Future[Sent]"]:
        """The owner's turn, which may have come already; whoever leaves before has given it up.

        Raises:
            ApplicationError: It is too far off to wait for it here; the attempt ends, and another comes in time.
        """
        place, turn = self._join(owner)
        self._open()
        try:
            yield turn
        finally:
            if place in self._line and place.turn is turn:  # and has not been put off
                self._line.remove(place)
                self._open()

    def put_off(self, turn: "asyncio.Future[Sent]") -> ApplicationError:
        """Give the room of a waiting call to others; what ends its attempt until its turn is near."""
        place = next(place for place in self._line if place.turn is turn)
        return self._leave_place(place, self._line.index(place))

    def state(self, turn: "asyncio.Future[Sent]") -> Waiting:
        """Return the state of a waiting call."""
        ahead = next((number for number, place in enumerate(self._line) if place.turn is turn), 0)
        now = _now()
        return Waiting(self.provider, ahead, self.rate, closed=self._pace.compute_opening(now, self.waiting) - now)

    def serve(self, sent: Sent) -> None:
        """The provider has served the call."""
        self._pace.serve(sent, _now())
        self._open()

    def refuse(self, sent: Sent, status: int, retry_after: float | None) -> bool:
        """The provider has refused the call, as it gets too many; whether that is news for other workers."""
        jitter = random.random()  # noqa: S311 - jitter needs no secrecy
        is_news = self._pace.refuse(sent, _now(), status, retry_after, jitter)
        self._open()
        return is_news

    def describe_refusal(self, worker: str) -> Refusal:
        """Describe a call that has just been refused, for the other workers of the fleet."""
        at = datetime.now(UTC)
        closed = timedelta(seconds=self._pace.close_of(_now()))
        return Refusal(self.key, worker, at, at + closed, self.rate or 1.0)

    def hear(self, refusal: Refusal) -> None:
        """Another worker was refused: the calls here wait as its own do."""
        now, wall = _now(), datetime.now(UTC)
        at = now - (wall - refusal.at).total_seconds()
        until = now + (refusal.closed_until - wall).total_seconds()
        self._pace.hear(at, until, refusal.rate, now, random.random())  # noqa: S311 - jitter needs no secrecy
        self._open()

    def _join(self, owner: str) -> "tuple[_Place, asyncio.Future[Sent]]":
        now = _now()
        self._line = [place for place in self._line if place.turn is not None or place.due > now]
        place = next((place for place in self._line if place.turn is None and place.owner == owner), None)
        if place is None:
            place = _Place(owner)
            self._line.append(place)
        rank = self._line.index(place)
        if rank >= self._most():
            raise self._leave_place(place, rank)
        place.turn = asyncio.get_running_loop().create_future()
        return place, place.turn

    def _leave_place(self, place: _Place, rank: int) -> ApplicationError:
        rate = self.rate or 1.0
        seconds = min(max((rank - self._most() / 2) / rate, SHORTEST_AWAY), LONGEST_AWAY)
        place.turn, place.due = None, _now() + seconds + RETURN_SECONDS
        message = str(Waiting(self.provider, rank, self.rate))
        detail = ErrorDetail(code=ReasonCode.LLM_RATE_LIMITED, title="generation", message=message)
        return transient(detail, timedelta(seconds=seconds), benign=True)

    def _open(self) -> None:
        """Let all pass whose turn has come, and come back when the next one's does."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place in [place for place in self._line if place.turn is not None]:
            now = _now()
            alone = len(self._line) == 1 and place.owner == self._last and not self._pace.is_closed_for_all(now)
            opens = now if alone else self._pace.compute_opening(now, self.waiting)
            if opens > now:
                self._timer = asyncio.get_running_loop().call_later(opens - now, self._open)
                break
            self._line.remove(place)
            self._last = place.owner
            sent = self._pace.send(now)
            if place.turn is not None and not place.turn.done():
                place.turn.set_result(sent)
        shown = (self.rate, self.waiting)
        if shown != self._shown:
            self._shown = shown
            self._changed()


class Gates:
    """The gates of one worker."""

    def __init__(self, metrics: Metrics, room: int, store: Store | None = None) -> None:
        """``room`` calls may wait in this worker, at all gates together; the store tells what others were refused."""
        self._store = store
        self._worker = uuid.uuid4().hex
        self._refusals: dict[str, list[Refusal]] = {}
        self._heard_at = -math.inf
        self._metrics = metrics
        self._room = room
        self._gates: dict[str, Gate] = {}

    def gate_of(self, definition: AgentDefinition) -> Gate:
        """The gate of the provider, address and key that the definition's model is called with."""
        provider = definition.model.partition("/")[0]
        key = _digest(provider, definition, os.environ)
        gate = self._gates.get(key)
        if gate is None:
            if len(self._gates) >= MOST_GATES:
                self._gates = {key: gate for key, gate in self._gates.items() if gate.rate is not None or gate.waiting}
            gate = self._gates[key] = Gate(provider, self._share, lambda: self._show(provider), key)
            for refusal in self._refusals.get(key, ()):
                gate.hear(refusal)
        return gate

    async def tell(self, gate: Gate) -> None:
        """Tell the other workers that a call at the gate was refused; without the store each finds out by itself."""
        if self._store is not None:
            with contextlib.suppress(StoreError):
                await self._store.note_refusal(gate.describe_refusal(self._worker))

    async def hear(self) -> None:
        """Hear what other workers were refused, at most once a second."""
        if self._store is None or _now() < self._heard_at + HEAR_SECONDS:
            return
        self._heard_at = _now()
        with contextlib.suppress(StoreError):
            refusals = await self._store.read_refusals(self._worker)
            self._refusals = {}
            for refusal in sorted(refusals, key=lambda refusal: refusal.at):
                self._refusals.setdefault(refusal.key, []).append(refusal)
                if (gate := self._gates.get(refusal.key)) is not None:
                    gate.hear(refusal)

    def _share(self) -> int:
        """Calls that may wait here for each of the limited keys."""
        limited = sum(gate.rate is not None for gate in self._gates.values())
        return max(1, self._room // max(1, limited))

    def _show(self, provider: str) -> None:
        """Set the provider's metrics: of several keys the slowest pace, and all calls that wait."""
        gates = [gate for gate in self._gates.values() if gate.provider == provider]
        rates = [gate.rate for gate in gates if gate.rate is not None]
        self._metrics.show_pace(provider, min(rates, default=None), sum(gate.waiting for gate in gates))


async def wait_for(
    gate: Gate, owner: str, tell: Callable[[Waiting], Awaitable[None]], hear: Callable[[], Awaitable[None]]
) -> Sent:
    """Wait for the owner's turn, and tell how it stands, at once and every few seconds.

    Raises:
        ApplicationError: The worker shuts down, or the turn is too far off to be waited for here.
    """
    async with gate.turn(owner) as turn:
        if turn.done():
            return turn.result()
        stopping = asyncio.ensure_future(activity.wait_for_worker_shutdown())
        either: list[asyncio.Future[Any]] = [turn, stopping]
        began, told = _now(), -math.inf
        try:
            while not turn.done():
                if stopping.done():
                    raise error_of_shutdown()
                if _now() - began > LONGEST_STAY:
                    raise gate.put_off(turn)
                if _now() - told >= TELL_SECONDS:
                    told = _now()
                    await tell(replace(gate.state(turn), seconds=told - began))
                await asyncio.wait(either, timeout=HEAR_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                await hear()
            return turn.result()
        finally:
            stopping.cancel()


def _digest(provider: str, definition: AgentDefinition, environment: Mapping[str, str]) -> str:
    """Digest that stands for provider, address and key: no key is kept here."""
    where = [
        (name, REFERENCE.sub(lambda found: environment.get(found[1], ""), text))
        for name, text in destination_of(definition.generate_params)
    ]
    return hashlib.sha256(json.dumps([provider, sorted(where)]).encode()).hexdigest()


def _now() -> float:
    return asyncio.get_running_loop().time()
