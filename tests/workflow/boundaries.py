"""Many scripted turns at once on one worker, undisturbed or with the worker killed whenever all stand between steps.

A turn stands between two steps while its model call is held, at its end while its commit is. A held call is answered,
and a held commit goes on, for the worker that comes after the one that was killed.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from http import HTTPStatus
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowFailureError

from perdure.contracts.events import Envelope
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider
from perdure.testing.connection import Response
from perdure.testing.wires import Wire
from tests.house import House, WorkerProcess, eventually
from tests.workflow.delegating import query_of

AGENTS = "tests.workflow.agents_at_boundaries"

READ, WRITTEN = 10_000, 100
"""Tokens of each model call, whatever it is about."""

PRICE = Decimal("0.00156")
"""Of a model call: what is read at $0.15 for a million tokens, what is written at $0.60."""

PATIENCE = 240.0
"""Seconds until a turn that has not come to its next boundary is lost; a lost attempt is noticed after eight."""

LONGEST = 700.0
"""Seconds until all turns have ended, whatever has been done to them."""

LAST = 1_000
"""No turn has so many boundaries: who waits for it waits for the end."""

TIMES = frozenset({"at", "seconds", "failed_at"})
"""Fields of an event that say when, or how long: they differ between any two runs."""

Json = Any


@dataclass(frozen=True)
class Scenario:
    """A scripted turn, and how it has to end.

    Attributes:
        replies: The answers of its model, in order.
        ends: The stop record: ``finished``, ``finished by CAUSE``, or the stop reason and behind a colon its code.
        transcript: What follows the prompt: ``> text`` of a user, ``text call()`` of the model, ``= result`` and
            ``! code`` of a call.
        agent: Who is asked.
        request: Further fields of the request.
        helpers: Answers to a query, by what stands in it behind the scenario's name and a slash.
        acts: What is done from outside once a model call hangs for good.
        output: Of a turn whose output is not the last text of its transcript.
        steps: None is one for each message of the model.
        delegated: Steps of delegates.
        paid: Model calls that are paid for; None is one for each step.
        children: How the delegates ended, in the order of their names.
        together: Of each boundary, how many of the turn and its delegates stand there; later ones have one.
    """

    replies: tuple[Reply, ...]
    ends: str
    transcript: tuple[str, ...]
    agent: str = "tester"
    request: Mapping[str, Json] = field(default_factory=dict[str, Json])
    helpers: Mapping[str, tuple[Reply, ...]] = field(default_factory=dict[str, tuple[Reply, ...]])
    acts: "Callable[[House, str], Awaitable[None]] | None" = None
    output: str | None = None
    steps: int | None = None
    delegated: int = 0
    paid: int | None = None
    children: tuple[str, ...] = ()
    together: tuple[int, ...] = ()

    def reply(self, request: ChatRequest) -> Reply:
        """The answer to a request of the scenario."""
        _, _, query = query_of(request).partition("/")
        return (self.helpers[query] if query else self.replies)[request.index]

    @property
    def is_parallel(self) -> bool:
        """Whether calls run at the same time, and end in any order."""
        return self.agent == "beside" or any(len(reply.calls) > 1 for reply in self.replies)


@dataclass(frozen=True)
class Outcome:
    """What is left of a session that has ended.

    Attributes:
        record: The stop record, with usage, cost and steps.
        told: The workflow's result; None of delegates, and of a workflow that ended as cancelled.
        steps: Every step of the store, also unreachable ones.
    """

    record: Json
    told: Json
    messages: tuple[Message, ...]
    events: list[Json]
    steps: list[Json]
    delegates: "dict[str, Outcome]"


@dataclass(frozen=True)
class Played:
    """All scenarios have ended.

    Attributes:
        asked: Model calls of each, a repeated one counted once.
        stood: Boundaries at which each was killed.
    """

    outcomes: dict[str, Outcome]
    asked: dict[str, int]
    stood: dict[str, int]


class Model(ScriptedProvider):
    """The model of all scenarios. While it holds, it answers a request no worker that asks it for the first time."""

    def __init__(self, table: Mapping[str, Scenario], *, holding: bool) -> None:
        super().__init__(lambda request: table[scenario_of(request)].reply(request))
        self.round = 0
        self.first: dict[str, tuple[str, int]] = {}
        """By what a request says: its scenario, and the round in which it came first."""
        self._holding = holding

    async def answer(self, wire: Wire, body: bytes, headers: dict[str, str]) -> Response:
        """The scripted answer, at the price that all have."""
        request = wire.request(body)
        _, since = self.first.setdefault(request.digest, (scenario_of(request), self.round))
        if self._holding and since == self.round:
            await asyncio.Event().wait()
        response = await super().answer(wire, body, headers)
        if response.status != HTTPStatus.OK or (response.fault is not None and response.fault.kind != "answer"):
            return response
        usage = {"prompt_tokens": READ, "completion_tokens": WRITTEN, "total_tokens": READ + WRITTEN}
        return replace(response, body=json.dumps({**json.loads(response.body), "usage": usage}).encode())

    def hangs(self, scenario: str) -> bool:
        """Whether a call of the scenario waits for an answer that never comes."""
        return any(request.fault == "hang" and scenario_of(request.request) == scenario for request in self.requests)

    def asked(self, scenario: str) -> int:
        """How many model calls of the scenario have come, a repeated one counted once."""
        return sum(name == scenario for name, _ in self.first.values())


def scenario_of(request: ChatRequest) -> str:
    """The name with which the first message of its turn begins."""
    return query_of(request).partition("/")[0]


class Stage:
    """A house in which all scenarios are played, each in a session of its own."""

    def __init__(self, house: House, table: Mapping[str, Scenario], prefix: str, *, killing: bool) -> None:
        self._house = house
        self._table = table
        self._prefix = prefix
        self._killing = killing
        self._held = house.folder / "held"
        self._held.mkdir()
        self._ended: dict[str, Json] = {}
        self._model = Model(table, holding=killing)

    async def play(self) -> Played:
        """Run every scenario to its end, and kill the worker at each boundary if it is to be killed."""
        async with self._model as model:
            self._house.use(model)
            for name in ("REFUSED_KEY", "UNREACHED_KEY", "RETRYING_KEY"):
                self._house.environment.setenv(name, f"sk-of-{name}")
            worker = self._worker()
            async with asyncio.timeout(LONGEST), asyncio.TaskGroup() as group:
                for name, scenario in self._table.items():
                    group.create_task(self._run(name, scenario))
                if self._killing:
                    await self._kill_at_each_boundary(worker)
                else:
                    await self._all_stand_at(LAST)
        return Played(
            outcomes={
                name: await outcome(self._house.store, self._session(name), scenario, self._ended[name])
                for name, scenario in self._table.items()
            },
            asked={name: model.asked(name) for name in self._table},
            stood={name: self._stood(name) for name in self._table},
        )

    def _worker(self) -> WorkerProcess:
        held = {"HELD": str(self._held)} if self._killing else {}
        return self._house.spawn_worker(AGENTS, main="tests.workflow.worker_at_boundaries", **held)

    def _session(self, name: str) -> str:
        return f"{self._prefix}-{name.replace(' ', '-')}"

    async def _run(self, name: str, scenario: Scenario) -> None:
        request = {"agent": scenario.agent, "prompt": name, "request_id": "first", **scenario.request}
        house, session = self._house, self._session(name)
        handle = await house.temporal.start_workflow(
            "AgentTurn", request, id=session, task_queue=house.settings.task_queue
        )
        if scenario.acts is not None:

            async def hangs() -> bool:
                return self._model.hangs(name)

            await eventually(hangs, LONGEST)
            await scenario.acts(house, session)
        try:
            self._ended[name] = await handle.result()
        except WorkflowFailureError:
            self._ended[name] = None

    async def _kill_at_each_boundary(self, worker: WorkerProcess) -> None:
        for boundary in count(1):
            await self._all_stand_at(boundary)
            if len(self._ended) == len(self._table):
                return
            worker.kill()
            self._model.round = boundary
            worker = self._worker()

    async def _all_stand_at(self, boundary: int) -> None:
        """Wait until each turn has ended, or stands at its boundary of this number, if there is one."""

        async def stand() -> bool:
            return not self._on_the_way(boundary)

        try:
            await eventually(stand, PATIENCE)
        except TimeoutError:
            msg = f"these turns do not come to their boundary {boundary}: {', '.join(self._on_the_way(boundary))}"
            raise AssertionError(msg) from None

    def _on_the_way(self, boundary: int) -> list[str]:
        return [
            name
            for name, scenario in self._table.items()
            if name not in self._ended
            and self._stood(name) < sum(islice(chain(scenario.together, repeat(1)), boundary))
        ]

    def _stood(self, name: str) -> int:
        """At how many boundaries the turn and its delegates have been held."""
        session = self._session(name)
        mine = [file for file in files(self._held) if file.partition(" ")[0].partition(".")[0] == session]
        return self._model.asked(name) + len(mine)


def files(folder: Path) -> list[str]:
    """The names of what is there."""
    return [file.name for file in folder.iterdir()]


def assert_ends_as_wanted(found: Outcome, wanted: Scenario) -> None:
    """Compare an undisturbed turn with its line of the table."""
    assert (ends(found.record), told_in_short(found.messages)) == (wanted.ends, wanted.transcript)
    assert found.told in (found.record, None)
    if wanted.output is not None:
        assert found.record["output"] == wanted.output
    own = wanted.steps or sum(message.role == "assistant" for message in found.messages)
    assert (found.record["steps"], found.record["delegated_steps"]) == (own, wanted.delegated)
    paid = wanted.paid or own + wanted.delegated
    assert found.record["usage"] == {
        "input_tokens": READ * paid,
        "output_tokens": WRITTEN * paid,
        "cached_tokens": 0,
        "estimated": False,
    }
    assert Decimal(found.record["cost_usd"]) == PRICE * paid
    assert tuple(sorted(delegate.record["stop_reason"] for delegate in found.delegates.values())) == wanted.children


def ends(record: Mapping[str, Any]) -> str:
    """The stop record as scenarios write it."""
    by = f" by {record['stopped_by']}" if record["stopped_by"] else ""
    return f"{record['stop_reason']}{by}" + (f": {record['reason_code']}" if record["reason_code"] else "")


async def outcome(store: Store, session: str, scenario: Scenario, told: Json = None) -> Outcome:
    """Read everything there is of a session that has ended."""
    (turn,) = await store.turns(session)
    below = await store.sessions(caller=session)
    return Outcome(
        record=_without_durations(turn.result.model_dump(mode="json")) if turn.result is not None else None,
        told=_without_durations(told),
        messages=tuple(map(_undated, await store.transcript(session))),
        events=_timeless(await store.events(session), ordered=not scenario.is_parallel),
        steps=[json.loads(step.model_dump_json(), object_hook=_without_receipt) for step in await store.steps(session)],
        delegates={record.session: await outcome(store, record.session, scenario) for record, _ in below},
    )


def _undated(message: Message) -> Message:
    """The message without its receipt of a person's decision, which says when."""
    return message.model_copy(update={"decided": None}) if isinstance(message, ToolMessage) else message


def _without_receipt(fields: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if name != "decided"}


def _timeless(envelopes: tuple[Envelope, ...], *, ordered: bool) -> list[Json]:
    """The log without its times; of calls that ran at the same time, each call's events by themselves."""
    numbers = [envelope.seq for envelope in envelopes]
    assert numbers == list(range(1, len(envelopes) + 1)), f"the log is numbered {numbers}"
    lines: list[Json] = [envelope.line() for envelope in envelopes]
    left_out = TIMES if ordered else TIMES | {"seq"}
    kept = [_without_durations({name: line[name] for name in line.keys() - left_out}) for line in lines]
    return kept if ordered else sorted(kept, key=_place)


def _without_durations(fields: Json) -> Json:
    """The same without how long a chain of retries took, which stands in the text of its last failure."""
    return json.loads(re.sub(r"(\d calls) in [0-9.]+ s", r"\1", json.dumps(fields)))


def _place(line: Json) -> tuple[int, str, str]:
    """Where an event stands; what a caller and its delegate write of one call may come in any order."""
    return line["step"], line.get("call_id", ""), line["type"] if "call_id" in line else ""


def told_in_short(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """The messages behind the prompt as scenarios write them."""
    return tuple(map(_in_short, messages[1:]))


def _in_short(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return " ".join([*filter(None, [message.content]), *(f"{call.name}()" for call in message.tool_calls)])
    if isinstance(message, ToolMessage):
        if message.error is None and message.content.startswith('{"session"'):  # which is named after the run
            return f"= {json.loads(message.content)['status']}"
        return f"= {message.content}" if message.error is None else f"! {message.error.code}"
    return f"> {message.content}"
