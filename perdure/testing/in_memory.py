"""Turns in memory: the agent, its tools and its hooks as on a worker, without a server, a port, a file or a wait."""

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal, Unpack

from perdure.activities.models.pace import Gate, Gates
from perdure.activities.models.provider_http import stand_in
from perdure.activities.recordings import Recordings
from perdure.activities.secrets import secret_values
from perdure.activities.telling.metrics import Metrics
from perdure.agents.agent import Agent
from perdure.client.read import read_events, read_trajectory
from perdure.client.requests import Content, keep_files, read_content, session_id, turn_request
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import PerdureError
from perdure.contracts.events import Envelope, Event
from perdure.contracts.input_requests import InputRequest, Reply
from perdure.contracts.messages import Message
from perdure.contracts.standing_approvals import AlwaysScope, StandingTerms
from perdure.contracts.turn_options import TaskOptions
from perdure.contracts.turns import Continuation, TurnResult
from perdure.contracts.values import JsonValue, Value
from perdure.lanes.bodies import Bodies, loops_of_process
from perdure.settings import load_settings
from perdure.store import Store
from perdure.testing.clock import Clock, NothingComesError
from perdure.testing.memory_runtime import Around, MemorySession, RunningTurn, tell
from perdure.testing.provider import AUTO, RecordedRequest, ScriptedProvider
from perdure.testing.script import Answers
from perdure.testing.stand_in import stand_in_of
from perdure.trajectory import Trajectory
from perdure.worker.agents import Loaded, check_needs, with_delegates
from perdure.worker.app import Parts, make_activities, open_parts, settle
from perdure.worker.telemetry import registry

IN_MEMORY = "sqlite://"
"""The address of a store without a file."""

MOST_KEPT = 100
"""Agents that are remembered as they were prepared."""


class InMemoryError(PerdureError):
    """A turn in memory cannot go on; the message says what it lacks."""


class Said(Value):
    """Reply of a person to an input request, so many seconds of virtual time after it was asked."""

    decision: Literal["answered", "approved", "denied", "returned", "failed"]
    value: JsonValue = None
    by: str = "somebody"
    reason: str = ""
    seconds: float = 0.0
    always: StandingTerms | None = None

    def to(self, request: str) -> Reply:
        """The reply to this request."""
        return Reply(request=request, **self.model_dump(exclude={"seconds"}))


def answer(value: JsonValue, *, by: str = "somebody", seconds: float = 0.0) -> Said:
    """An answer to a question."""
    return Said(decision="answered", value=value, by=by, seconds=seconds)


def approve(
    *, by: str = "somebody", seconds: float = 0.0, always: AlwaysScope | None = None, until: datetime | None = None
) -> Said:
    """An approval of a tool call; with ``always`` it stands for further calls of the session."""
    stands = None if always is None else StandingTerms(scope=always, until=until)
    return Said(decision="approved", by=by, seconds=seconds, always=stands)


def result(value: JsonValue = None, *, error: str | None = None, by: str = "somebody", seconds: float = 0.0) -> Said:
    """The result of a tool call that the caller runs, or its error."""
    if error is not None:
        return Said(decision="failed", value=error, by=by, seconds=seconds)
    return Said(decision="returned", value=value, by=by, seconds=seconds)


def deny(reason: str = "", *, by: str = "somebody", seconds: float = 0.0) -> Said:
    """A denial of a tool call or of a question."""
    return Said(decision="denied", reason=reason, by=by, seconds=seconds)


People = Sequence[Said] | Callable[[InputRequest], Said | None]
"""Replies of people: in the order of the requests, or for each request; None sends no reply."""

OnEvent = Callable[[Event, RunningTurn], None]
"""Called with each event of the log and the turn that wrote it, which it may cancel, steer or extend."""


@dataclass(frozen=True)
class InMemoryRun:
    """A turn that has ended in memory.

    Attributes:
        result: Result of the turn.
        results: This result, and those of the turns that queued messages started.
        requests: Requests to models, those of delegates included.
        seconds: Virtual time that passed: waits before retries, for people, for slow answers.
        session: The session's id; ``run_in_memory(…, after=run)`` goes on with it.
        store: The store of the run, with transcript and events.
    """

    result: TurnResult
    results: tuple[TurnResult, ...]
    requests: tuple[RecordedRequest, ...]
    seconds: float
    session: str
    store: Store

    async def transcript(self) -> list[Message]:
        """The conversation."""
        return list(await self.store.transcript(self.session))

    async def trajectory(self) -> Trajectory:
        """The session as one value: messages, steps, events, usage."""
        return await read_trajectory(self.store, self.session)

    async def events(self, session: str | None = None) -> list[Envelope]:
        """The event log, of this session or of a delegate's."""
        return [envelope async for envelope in read_events(self.store, session or self.session)]


class InMemoryOptions(TaskOptions, total=False):
    """Options of a turn in memory beside its prompt.

    Attributes:
        agents: Further agents, such as delegates that the agent names.
        models: Scripts of single models, by the name after the provider's prefix.
        window: Tokens that a prompt may have; a longer one is refused as context overflow.
        max_tools: Tools that a request may have; more are refused.
        plays: The provider by whose rules requests are refused; ``auto``, the default, is that of each model, and None
            refuses none.
        people: Replies to questions and approvals: a list in their order, or a function of the request.
        on_event: Called with each event and its turn, for example to cancel the turn at a certain event.
        after: An earlier run, whose session goes on.
        reply: What a person says to the first request of a run that ended ``waiting_for_input``; a list for several.
        history: A conversation in OpenAI's chat format with which the session begins.
        compact: Whether the conversation is summarised, and nothing generated.
        tools: Tools that the request brings and its caller runs, as objects.
        stop_for_results: Whether the turn ends once it needs nothing but results of such tools; ``reply`` has them.
    """

    agents: Sequence[Agent]
    models: Mapping[str, Answers]
    window: int
    max_tools: int
    plays: str | None
    people: People
    on_event: OnEvent
    after: InMemoryRun
    reply: Said | Sequence[Said]
    history: Sequence[Mapping[str, JsonValue]]
    compact: bool
    tools: Sequence[Mapping[str, object]]
    stop_for_results: bool


_REQUEST = frozenset(TaskOptions.__annotations__) | {"history", "compact", "tools", "stop_for_results"}

_OURS = frozenset(InMemoryOptions.__annotations__) - _REQUEST


async def run_in_memory(
    agent: Agent, prompt: Content, script: Answers | None = None, **options: Unpack[InMemoryOptions]
) -> InMemoryRun:
    """Run one turn of an agent in this process, with the script's answers, and wait for nothing.

    The agent's tools and hooks are called, and everything is decided, recorded and refused by the code that runs on a
    worker. Only Temporal, the database file, the network and time are not there: waits before retries and for people
    pass at once.

    Example::

        run = await run_in_memory(agent, "Count: a b c", [call(("word_count", {"text": "a b c"})), say("three")])
        assert run.result.output == "three"

    Args:
        agent: The agent; its delegates come with it.
        prompt: A text, or a list of texts, images and files; beside ``reply`` it may be empty.
        script: The answers of every model, as for :class:`ScriptedProvider`.
        **options: See :class:`InMemoryOptions`.

    Raises:
        InMemoryError: The turn waits for a person and ``people`` says nothing; or an option means nothing in memory.
        RequestRefusedError: The request is not valid.
    """
    ours = {name: value for name, value in options.items() if name in _OURS}
    before = options.get("after")
    session = session_id(agent.name) if before is None else before.session
    if options.get("recording") is not None:
        msg = "recording: a turn in memory neither writes nor replays one, its script answers; leave recording out"
        raise InMemoryError(msg)
    replies = _replies(before, options["reply"]) if "reply" in options else ()
    if not _stores:
        _stores.append(await Store.open(IN_MEMORY, upgrade=True))
        _stores[0].listen(tell)
    store = _stores[0]
    text, files = await read_content(prompt)
    fields = {name: value for name, value in options.items() if name not in ours}
    request = turn_request(session, {"agent": agent.name, "prompt": text, "replies": replies, **fields})
    more: dict[str, object] = {"parts": await keep_files(store, session, files)} if files else {}
    clock = Clock(datetime.now(UTC))
    window, max_tools = options.get("window"), options.get("max_tools")
    model = ScriptedProvider(
        script,
        models=options.get("models"),
        window=window,
        max_tools=max_tools,
        plays=options.get("plays", AUTO),
    )
    async with make_parts((agent, *options.get("agents", ())), store) as parts:
        watching = _Watching(options.get("on_event"))
        recordings = Recordings(mode="off", folder=Path(), store=parts.store, secrets=parts.secrets)
        around = Around(
            activities=make_activities(parts, recordings, OpenGates(parts.metrics, room=1), clock.seconds),
            clock=clock,
            ask=ask_with(options.get("people", ())),
            on_event=watching.hear,
        )
        started = request.model_copy(update=more)
        token = stand_in.set(stand_in_of(model, clock))
        try:
            results = await _run_turns(around, session, Continuation.model_validate(dict(started)))
        finally:
            stand_in.reset(token)
    if watching.error is not None:
        raise watching.error
    return InMemoryRun(
        result=results[0],
        results=tuple(results),
        requests=tuple(model.requests),
        seconds=clock.seconds(),
        session=session,
        store=store,
    )


async def _run_turns(around: Around, session: str, request: Continuation) -> list[TurnResult]:
    try:
        async with around.clock:
            return await around.clock.start(MemorySession(around, session).run(request))
    except NothingComesError:
        waiting = [request for turn in around.sessions.values() for request in turn.requests]
        told = ", ".join(request.question or f"approval of {request.tool}" for request in waiting) or "something"
        msg = f"the turn waits for {told}, and nobody says anything; give run_in_memory people=[…] or people=a function"
        raise InMemoryError(msg) from None


class _Watching:
    """Tells the test of events; what it raises ends the turn, and then the run."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self.error: Exception | None = None

    def hear(self, event: Event, turn: RunningTurn) -> None:
        """Tell of an event."""
        if self._on_event is None or self.error is not None:
            return
        try:
            self._on_event(event, turn)
        except Exception as error:  # noqa: BLE001 - the edge: a test's assertion, which no activity may swallow
            self.error = error
            turn.cancel("on_event failed")


class OpenGates(Gates):
    """Gates that never hold a call: what a script refuses says nothing of a pace."""

    def gate_of(self, definition: AgentDefinition) -> Gate:
        """A gate that is open."""
        return Gate(definition.model, lambda: 1_000, lambda: None)


def ask_with(people: People) -> Callable[[InputRequest], tuple[Reply, float] | None]:
    """The replies of these people."""
    in_order = iter(()) if callable(people) else iter(people)

    def ask(request: InputRequest) -> tuple[Reply, float] | None:
        said = people(request) if callable(people) else next(in_order, None)
        return None if said is None else (said.to(request.request_id), said.seconds)

    return ask


def _replies(before: InMemoryRun | None, said: Said | Sequence[Said]) -> tuple[Reply, ...]:
    """Replies to the first requests of the run before, in their order."""
    if before is None or not before.results[-1].requests:
        msg = "reply: the run before waits for nobody; give after= a run that ended waiting_for_input"
        raise InMemoryError(msg)
    several, requests = [said] if isinstance(said, Said) else said, before.results[-1].requests
    if len(several) > len(requests):
        msg = f"reply: the run before waits for {len(requests)}, and not for {len(several)} replies"
        raise InMemoryError(msg)
    return tuple(one.to(request.request_id) for one, request in zip(several, requests, strict=False))


_stores: list[Store] = []
"""The store of this process: an empty one takes longer to make than a turn to run."""


@cache
def _shared_metrics() -> Metrics:
    """The metrics of this process, which nobody reads."""
    return Metrics(registry())


def _bodies_of_process(threads: int) -> Bodies:
    return Bodies(threads, loops=loops_of_process())


@contextlib.asynccontextmanager
async def make_parts(
    given: tuple[Agent, ...], store: Store, make_bodies: Callable[[int], Bodies] = _bodies_of_process
) -> AsyncIterator[Parts]:
    """Make the parts that the activities of a worker in memory share."""
    prepared, settings = _prepare(given), load_settings(of_folder=False)
    bodies, metrics = make_bodies(settings.tool_threads), _shared_metrics()
    async with open_parts(settings, store, prepared.loaded, metrics, secrets=prepared.secrets, bodies=bodies) as parts:
        settled = settle(settings, parts)
        yield dataclasses.replace(settled, search_attributes=False, fail_workflows=False, send=None)


@dataclass(frozen=True)
class _Prepared:
    """Agents with their delegates in an environment, and what no text may show."""

    given: tuple[Agent, ...]
    environment: Mapping[str, str]
    loaded: Loaded
    secrets: frozenset[str]


_kept: dict[tuple[int, ...], _Prepared] = {}
"""The agents of this test run, which are few."""


def _prepare(given: tuple[Agent, ...]) -> _Prepared:
    key = tuple(map(id, given))
    prepared = _kept.get(key)  # which keeps its agents, so that no other can have their ids
    if prepared is None or prepared.environment != os.environ:
        loaded, environment = with_delegates(given), dict(os.environ)
        check_needs(loaded.agents.values(), "", environment)
        prepared = _Prepared(given, environment, loaded, secret_values(loaded.agents.values(), environment))
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = prepared
    return prepared
