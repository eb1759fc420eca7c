"""Every type of event is written in a run, read in every public way, and goes through a dict and JSON and back."""

import asyncio
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from perdure import (
    Agent,
    Budgets,
    Compaction,
    Fallback,
    Hook,
    Image,
    RetryPolicy,
    RetryWithFeedback,
    StepEnd,
    ToolContext,
    Trajectory,
    hook,
    todo,
    tool,
)
from perdure.activities.models import attempt, pace
from perdure.agents.hooks import HookedEvent
from perdure.cli.main import cli
from perdure.client import Turn
from perdure.contracts.events import (
    EVENT_TYPES,
    Envelope,
    Heartbeat,
    ToolEnd,
    ToolError,
    UnknownEvent,
    UserInputRequired,
    load_event,
)
from perdure.contracts.hooks import HOOK_EVENTS
from perdure.contracts.values import Value
from perdure.stop import step_count
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from perdure.trajectory import event_line, event_to_dict, read_event_line
from tests.house import WAIT_SECONDS, House
from tests.pictures import png_of
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep

WHERE = {
    "agent_start": "long",
    "user_message": "long",
    "generation_start": "long",
    "generation_retry": "long",
    "generation_wait": "lost",
    "generation_adapted": "broken",
    "generation_content": "long",
    "generation_end": "long",
    "generation_step": "long",
    "generation_error": "long",
    "model_fallback": "long",
    "compaction_event": "long",
    "tool_start": "long",
    "tool_progress": "long",
    "tool_end": "long",
    "tool_step": "long",
    "user_input_required": "long",
    "user_input_received": "long",
    "budget_warning": "long",
    "budget_changed": "long",
    "stop_condition_met": "long",
    "agent_end": "long",
    "heartbeat": "long",
    "delegate_start": "team",
    "delegate_end": "team",
    "hook_end": "team",
    "react_step": "team",
    "todos_changed": "team",
    "agent_stalled": "team",
    "tool_error": "broken",
    "agent_error": "broken",
    "tool_recovery": "lost",
}
"""The run that shows each type. A new type needs a line here, and a run."""


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing"


@tool(requires_approval=True)
async def dig(place: str, context: ToolContext) -> str:
    """Dig a hole."""
    context.report_progress(1, 2, "half-way")
    return place


@tool
def shoot() -> Image:
    """Take a picture."""
    return Image(png_of())


@tool(catch=False)
def slip() -> str:
    """Raise what nobody catches."""
    raise OSError("slipped")


REFUSED = threading.Event()
"""The provider has refused a call and asked for a wait, so that the next call of another job waits too."""


@tool(idempotent=True)
def put() -> str:
    """Put it there, twice if need be."""
    assert REFUSED.wait(WAIT_SECONDS)
    return "put"


def insisting() -> Hook:
    """A hook that asks for something better, once."""
    said = [RetryWithFeedback("look again")]

    @hook("step_end")
    def insist(_: StepEnd) -> RetryWithFeedback | None:
        return said.pop() if said else None

    return insist


def agents() -> list[Agent]:
    """Of each run the agent of its name, and one that helps."""
    long = Agent(
        name="long",
        model="openai/long",
        tools=[look, dig],
        retry=RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0)),
        fallback_models=[Fallback(model="openai/second")],
        compaction=Compaction(threshold=None, keep=2),
        budgets=Budgets(tool_calls=6),
        stop_conditions=[step_count(6)],
    )
    team = Agent(
        name="team",
        model="openai/team",
        tools=[todo],
        delegates=["helper"],
        hooks=[insisting()],
        stop_conditions=[step_count(50)],
    )
    return [
        long,
        team,
        Agent(name="helper", model="openai/helper"),
        Agent(name="broken", model="openai/broken", tools=[shoot, slip], on_tool_error="abort"),
        Agent(name="lost", model="openai/lost", tools=[put]),
    ]


def second(request: ChatRequest) -> Reply:
    """What the fallback says: the conversation is too long for it, until it is summarised."""
    if "You summarise the conversation" in request.system:
        return say("<summary>they dug</summary>")
    too_long = faults.error(400, "too long", name="context_length_exceeded")
    return say("all is done") if len(request.messages) < 9 else say("?").after(too_long)


def first(request: ChatRequest) -> Reply:
    """What the model of the long run says; its first call is refused."""
    reply = LONG.reply(request)
    if reply.faults:
        REFUSED.set()
    return reply


UNREADABLE = faults.error(400, "Could not process image")
QUOTA = faults.error(429, "no more", name="insufficient_quota")
LONG = Script(
    replies=(
        call(("dig", {"place": "here"}), ("nobody", {})).after(faults.status(503, headers={"retry-after": "10"})),
        *[call(("look", {"place": "a"}))] * 4,
        say("no").after(QUOTA),
    )
)
MODELS: dict[str, Script | Callable[[ChatRequest], Reply]] = {
    "long": first,
    "second": second,
    "team": Script(replies=(call(("todo", {"new_titles": ["look"]}), ("helper", {"query": "look"})), say("looked"))),
    "helper": lambda _: say("nothing there"),
    "broken": Script(replies=(call(("shoot", {})), call(("slip", {})).after(UNREADABLE))),
    "lost": Script(replies=(call(("put", {})), say("done"))),
}


def with_a_lost_attempt(house: House) -> None:
    """Let the first attempt at ``put`` end as soon as the call is its own, and the call behind it say that it waits."""
    REFUSED.clear()
    for module in (pace, attempt):
        house.environment.setattr(module, "TELL_SECONDS", 0.1)
    claim, lost = house.store.claim_call, list[str]()

    async def claim_call(**wanted: Any) -> Any:
        claimed = await claim(**wanted)
        if wanted["session"].endswith("lost") and not lost:
            lost.append(wanted["call_id"])
            raise RuntimeError("the power is gone")
        return claimed

    house.environment.setattr(house.store, "claim_call", claim_call)


async def worked(house: House, turn: Turn) -> list[Envelope]:
    """The events of a turn as they came; of heartbeats the one at which a person who is waited for has been heard."""
    seen: list[Envelope] = []
    asked = ""
    async for envelope in turn.events(heartbeat=timedelta(milliseconds=50)):
        if isinstance(envelope.event, UserInputRequired):
            asked = envelope.event.request_id
        if isinstance(envelope.event, Heartbeat):
            if not asked:
                continue
            await house.client.send(turn.session, "hurry", when_busy="steer")
            await turn.extend(max_steps=50)
            await house.client.approve(turn.session, asked, by="me")
            asked = ""
        seen.append(envelope)
    return seen


def types(events: Iterable[Envelope]) -> set[str]:
    return {envelope.event.type for envelope in events}


async def test_every_type_of_event_is_written_and_goes_through_a_dict_and_json_and_back(house: House) -> None:
    """S-45 S-46 S-53: with its type key, and the same in the log, the trajectory and what the command line prints."""
    assert set(WHERE) == {*EVENT_TYPES, "heartbeat"}
    with_a_lost_attempt(house)
    names = sorted(set(WHERE.values()))
    async with ScriptedProvider(models=MODELS) as provider, house.worker(*agents()):
        house.use(provider)
        turns = [await house.client.start(name, "go", session=f"{house.session}-{name}") for name in names]
        seen = dict(zip(names, await asyncio.gather(*(worked(house, turn) for turn in turns)), strict=True))
    assert {kind for kind, run in WHERE.items() if kind not in types(seen[run])} == set()
    for name, turn in zip(names, turns, strict=True):
        check_round_trips(seen[name])
        logged = [envelope for envelope in seen[name] if not isinstance(envelope.event, Heartbeat)]
        check_order(logged)
        assert tuple(logged) == (await house.client.trajectory(turn.session)).events
    session = turns[names.index("team")].session
    exported = await printed("export", session, "--format", "events")
    assert [json.loads(line) for line in exported.splitlines()] == [envelope.line() for envelope in seen["team"]]


async def printed(*args: str) -> str:
    """What a command that only reads the store prints."""
    ended = await asyncio.to_thread(CliRunner().invoke, cli, list(args))
    assert (ended.exit_code, ended.stderr) == (0, ""), ended.output
    return ended.stdout


def check_round_trips(events: Iterable[Envelope]) -> None:
    """Each event comes back as what it was, alone and with what orders it."""
    for envelope in events:
        body = json.loads(json.dumps(event_to_dict(envelope.event)))
        line = json.loads(json.dumps(event_line(envelope)))
        assert body["type"] == envelope.event.type == envelope.line()["type"]
        assert load_event(body) == envelope.event
        assert not isinstance(envelope.event, UnknownEvent)
        assert read_event_line(line) == envelope
        read = Envelope.from_json(envelope.to_json())
        assert (type(read.event), read.to_json()) == (type(envelope.event), envelope.to_json())
        assert type(envelope).model_validate_json(envelope.model_dump_json()) == envelope


def check_order(events: list[Envelope]) -> None:
    """The numbers are gapless from 1, times are of a zone and never go back, and the end is the last."""
    assert [envelope.seq for envelope in events] == list(range(1, len(events) + 1))
    assert all(event.at <= later.at for event, later in pairwise(events))
    assert all(event.at.utcoffset() == timedelta(0) for event in events)
    assert [envelope.event.type for envelope in events].index("agent_end") == len(events) - 1


DREAMT: dict[str, Any] = {"type": "tool_dreamt", "call_id": "c", "seq": 99, "dream": {"of": ["sheep", None, 1.5]}}
"""An event of a later release; one of its fields has the name of the envelope's."""

CHANGED: dict[str, Any] = {"type": "generation_end", "model": ["a", "b"], "why": "it is another release's"}
"""An event of a type that is known, in a form that is not."""


async def test_events_of_another_release_are_read_as_they_are_by_everybody(house: House) -> None:
    """S-45: an unknown type loads as the base event; nobody stumbles over it, and nothing of it is lost."""
    agent = Agent(name="tester", model="openai/scripted", tools=[look])
    script = Script(replies=(call(("look", {"place": "a"})), say("one"), say("two")))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        await house.run()
        rewrite(house, generation_start=DREAMT, generation_end=CHANGED)
        turn = await house.client.attach(house.session)
        read = {"follow": [event async for event in turn.events()]}
        read["trajectory"] = list((await house.client.trajectory(house.session)).events)
        read["again"] = list(Trajectory.from_dict(in_json(await house.client.trajectory(house.session))).events)
        assert (await turn.tool_metrics()).count == 1
        (code, lines), shown = await asyncio.gather(perdure("follow", house.session), printed("show", house.session))
        for form in ("openai", "jsonl", "chat", "turns"):
            assert '"one"' in await printed("export", house.session, "--format", form), form
        exported = await printed("export", house.session, "--format", "events")
        await house.run(prompt="more")
    for name, events in read.items():
        assert [envelope.seq for envelope in events] == list(range(1, len(events) + 1)), name
        assert events[1].event == UnknownEvent(name="tool_dreamt", body=DREAMT), name
        assert UnknownEvent(name="generation_end", body=CHANGED) in [envelope.event for envelope in events], name
    assert [json.loads(envelope.to_json()) for envelope in read["follow"]] == lines
    assert [line.pop("replayed") for line in lines] == [True] * len(lines)  # S-47
    assert (code, lines) == (0, [envelope.line() for envelope in read["follow"]])
    about = {"seq": 2, "session": house.session, "turn": 1, "step": 1, "at": read["follow"][1].at.isoformat()}
    assert lines[1] == {**DREAMT, **about}
    assert [json.loads(line) for line in exported.splitlines()] == lines
    assert "one" in shown
    assert (await house.events("agent_end"))[-1]["output"] == "two"


def in_json(trajectory: Trajectory) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(trajectory.to_dict()))
    return body


def rewrite(house: House, **bodies: dict[str, Any]) -> None:
    """Put other events in the place of the first ones of these types, as another release would have written them."""
    with sqlite3.connect(house.folder / "store.db") as database:
        for kind, body in bodies.items():
            first = "select min(seq) from events where session = :session and type = :kind"
            database.execute(
                f"update events set type = :type, body = :body where session = :session and seq = ({first})",
                {"session": house.session, "kind": kind, "type": body["type"], "body": json.dumps(body)},
            )


async def test_a_hook_hears_of_every_event_that_it_is_on_once(house: House) -> None:
    """S-36 S-45: also of what the workflow decides, and of delegates; never of what hooks do."""
    with_a_lost_attempt(house)
    names = sorted(set(WHERE.values()))
    heard: dict[str, list[HookedEvent]] = {name: [] for name in names}
    listening = [
        agent.clone(hooks=[*agent.hooks, hearing(heard[agent.name])]) if agent.name in heard else agent
        for agent in agents()
    ]
    async with ScriptedProvider(models=MODELS) as provider, house.worker(*listening):
        house.use(provider)
        turns = [await house.client.start(name, "go", session=f"{house.session}-{name}") for name in names]
        seen = dict(zip(names, await asyncio.gather(*(worked(house, turn) for turn in turns)), strict=True))
        for turn in turns:  # the hooks for its end are called when it stands in the log already
            await house.temporal.get_workflow_handle(turn.session).result()
    assert set[str]().union(*(types(run) for run in seen.values())) >= set(HOOK_EVENTS) - {"step_end"}
    for name in names:
        logged = [envelope.event for envelope in seen[name] if envelope.event.type in HOOK_EVENTS]
        assert Counter(map(named, heard[name])) == expected(logged), name


def hearing(heard: list[HookedEvent]) -> Hook:
    """A hook on everything that there is."""

    @hook(*HOOK_EVENTS)
    def hear(event: HookedEvent) -> None:
        if not isinstance(event, StepEnd):  # which is in no log
            heard.append(event)

    return hear


def named(event: Value) -> str:
    if isinstance(event, ToolEnd | ToolError):
        return f"{event.type} of {event.call_id}"
    return event.model_dump_json()


def expected(logged: Iterable[Value]) -> Counter[str]:
    """Each event once. Of each call an end, and an error if it failed: the log has one of the two."""
    told = Counter(named(event) for event in logged)
    for event in logged:
        if isinstance(event, ToolEnd | ToolError) and event.error is not None:
            other = "tool_error" if isinstance(event, ToolEnd) else "tool_end"
            told[f"{other} of {event.call_id}"] += 1
    return told
