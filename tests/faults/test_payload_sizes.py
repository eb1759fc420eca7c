"""Each payload that a turn puts into Temporal stays small, whatever its content is; what may be larger has a name."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload

from perdure import Tool, ask_user, tool
from perdure.contracts.input_requests import MAX_WAITING_BYTES
from perdure.contracts.sends import MAX_PROMPT_BYTES
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS
from perdure.contracts.values import JsonValue
from perdure.testing import Reply, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import waiting
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import agent, asks, children, played

pytestmark = pytest.mark.deep

SMALL = 64 * 1024
"""Bytes of a payload."""

LONG = 1_000_000
"""Characters of what is long."""

QUESTIONS = 3

CALLS = 150


@dataclass(frozen=True)
class Sized:
    """A payload of a history: its size, the event that holds it, and of which activity it is."""

    size: int
    kind: str
    activity: str


def payloads_in(message: Message) -> Iterator[Payload]:
    """All payloads in a message of Temporal's, however deep they stand."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            parts = [part for part in value.values() if isinstance(part, Message)]
        else:
            parts = list(value) if not isinstance(value, Message) else [value]
        for part in parts:
            yield from payloads_in(part)


async def payloads_of(house: House, session: str) -> list[Sized]:
    """Each payload and each whole failure in the histories of a session's runs."""
    found: list[Sized] = []
    async for run in house.temporal.list_workflows(f'WorkflowId = "{session}"'):
        history = await house.temporal.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        names = {
            event.event_id: event.activity_task_scheduled_event_attributes.activity_type.name
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        }
        for event in history.events:
            attributes = getattr(event, str(event.WhichOneof("attributes")))
            name = names.get(event.event_id) or names.get(getattr(attributes, "scheduled_event_id", 0), "")
            kind = str(event.WhichOneof("attributes")).removesuffix("_event_attributes")
            found += [Sized(payload.ByteSize(), kind, name) for payload in payloads_in(event)]
            if getattr(attributes, "failure", None) is not None:
                found.append(Sized(attributes.failure.ByteSize(), f"{kind} failure", name))
    return found


@tool
def produce() -> str:
    """Give a long text."""
    return "x" * LONG


@tool(catch=True)
def fail() -> str:
    """Fail at length."""
    raise ValueError("ü" * LONG)


@tool
def breaks() -> str:
    """Fail at length, and end the turn."""
    raise RuntimeError("ü" * LONG)


def numbered(number: int) -> Tool[[str], str]:
    """One of many tools, with a long name and a long description."""

    def body(text: str = "") -> str:
        return f"{len(text)} characters"

    body.__name__, body.__doc__ = f"tool_number_{number}_{'x' * 40}", "Count " + "much " * 500
    return tool(body)


def asked(name: str, **arguments: JsonValue) -> tuple[str, JsonValue]:
    """A call of an answer."""
    return name, arguments


def is_request(sized: Sized) -> bool:
    """Whether it holds what a caller has sent: a prompt of up to 128 KiB, or the messages that wait."""
    if sized.kind == "activity_task_scheduled":
        return sized.activity == "open_turn"
    return sized.kind in {
        "workflow_execution_started",
        "workflow_execution_update_accepted",
        "workflow_execution_continued_as_new",
    }


def is_result(sized: Sized) -> bool:
    """Whether it holds the result of a turn: an answer of up to 100,000 characters."""
    if sized.kind == "activity_task_completed":
        return sized.activity == "commit_turn"
    return sized.kind == "workflow_execution_completed"


def assert_small(found: list[Sized]) -> None:
    too_large = [sized for sized in found if sized.size > SMALL]
    assert found
    assert not too_large


async def test_tools_errors_questions_answers_instructions_and_delegates_make_no_large_payload(house: House) -> None:
    many = [numbered(number) for number in range(300)]
    helper = agent("helper", description="h" * 10_000)
    lead = agent(
        "tester",
        instructions="I am tester. " + "i" * LONG,
        tools=[produce, fail, ask_user, breaks, *many],
        delegates=["helper"],
    )
    steps = [
        call(
            ("produce", {}),
            ("fail", {}),
            (many[0].name, {}),
            *(asked(each.name, text="t" * 2_000) for each in many[:50]),
        ),
        call((many[1].name, {"text": "a" * LONG})),
        Reply(text="b" * LONG, calls=asks("query " * 100_000).calls),
        call(*(asked("ask_user", question=f"{number}" * 10_000) for number in range(QUESTIONS))),
        call(("breaks", {})),
    ]
    answers = played(tester=lambda request: steps[request.index], helper=lambda _: say("h" * LONG))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start(prompt="p" * 120_000)
        for request in await waiting(house, QUESTIONS):
            await house.client.answer(house.session, request["request_id"], "r" * 10_000)
        assert (await handle.result())["reason_code"] == "tool.execution_error"
        ((child, _),) = await children(house)
        found = await payloads_of(house, house.session) + await payloads_of(house, child.session)
    assert {"produce", "fail", "breaks", "generate", "ask"} <= {sized.activity for sized in found}
    assert_small([sized for sized in found if not is_request(sized)])
    assert max(sized.size for sized in found) < MAX_PROMPT_BYTES + SMALL


async def test_only_what_callers_send_and_the_result_may_be_larger_and_both_are_bounded(house: House) -> None:
    body = Body()
    lead = agent("tester", tools=[body.held()])
    answers = played(tester=lambda request: call(("held", {})) if request.index == 0 else say("ö" * LONG))
    async with ScriptedProvider(answers) as provider, house.worker(lead):
        house.use(provider)
        await house.start(prompt="p" * 120_000)
        await happened(body.started)
        turns = [await house.client.send(house.session, "m" * 120_000) for _ in range(3)]
        body.released.set()
        assert [(await turn.result()).stop_reason for turn in turns] == ["finished"] * 3
        await house.temporal.get_workflow_handle(house.session).result()
        found = await payloads_of(house, house.session)
    assert_small([sized for sized in found if not is_request(sized) and not is_result(sized)])
    assert SMALL < max(sized.size for sized in found if is_request(sized)) < MAX_WAITING_BYTES + SMALL
    # Characters of a result are at most four bytes.
    assert SMALL < max(sized.size for sized in found if is_result(sized)) < 4 * MAX_OUTPUT_CHARACTERS + SMALL


async def test_the_calls_of_an_answer_and_the_answers_of_people_are_bounded_together(house: House) -> None:
    look = numbered(1)
    steps = [
        call(*(asked(look.name, text="t" * 2_000) for _ in range(CALLS))),
        call(*(asked("ask_user", question=f"{number}" * 10_000) for number in range(QUESTIONS))),
        say("done"),
    ]
    answers = played(tester=lambda request: steps[request.index])
    async with ScriptedProvider(answers) as provider, house.worker(agent("tester", tools=[look, ask_user])):
        house.use(provider)
        handle = await house.start()
        for request in await waiting(house, QUESTIONS):
            await house.client.answer(house.session, request["request_id"], "r" * 32_000)
        assert (await handle.result())["stop_reason"] == "finished"
        found = await payloads_of(house, house.session)
    of_models = [sized for sized in found if sized.activity == "generate"]
    assert_small([sized for sized in found if sized.activity != "generate"])
    told = max(sized.size for sized in of_models if sized.kind == "activity_task_scheduled")
    assert SMALL < told < QUESTIONS * 32_000 + 4_000 < MAX_WAITING_BYTES
    assert SMALL < max(sized.size for sized in of_models if sized.kind == "activity_task_completed") < CALLS * 600
