"""Conversations that front ends send again: what of them is new, and what a thread is for who has nothing of it."""

from typing import Any

import pytest
from ag_ui.core import Message
from pydantic import TypeAdapter

from perdure.contracts.events import Envelope, GenerationStart, UserMessageReceived
from perdure.contracts.values import replace
from perdure.gateway.doors.agui.conversations import new_words
from perdure.gateway.doors.agui.events import run_started
from perdure.gateway.doors.agui.framing import frame, words_of
from perdure.gateway.doors.agui.history import HistoryFold, Transcript
from perdure.gateway.doors.agui.requests import RunBody, read_run
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.objects import Item
from perdure.gateway.doors.responses.places import item_id
from tests.unit.gateway.agui_types import judge_run
from tests.unit.gateway.test_agui_fold import MADE, START, made, over, required
from tests.unit.gateway.test_responses_fold import NAMES, recorded

_MESSAGES: TypeAdapter[Any] = TypeAdapter(list[Message])

TURN_1, TURN_2, STRANGER = (item_id("msg", session, turn, "x") for session, turn in (("t", 1), ("t", 2), ("other", 2)))


EARLIER = "call_0123456789abcdef_0"


def user(text: str) -> Item:
    return {"id": f"u-{text}", "role": "user", "content": text}


def said(name: str, *calls: str) -> Item:
    told: list[Any] = [
        {"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}} for call in calls
    ]
    return {"id": name, "role": "assistant", "content": "…", **({"toolCalls": told} if told else {})}


def result(call: str) -> Item:
    return {"id": f"r-{call}", "role": "tool", "toolCallId": call, "content": "7"}


def turn(number: int, *heard: str, call: str = "") -> TurnFold:
    fold = TurnFold("t", number)
    fold.heard += [(text, 0) for text in heard]
    fold.needs |= {call: "approval"} if call else {}
    fold.heard_before |= {call: 1} if call else {}
    return fold


def test_the_same_words_beside_a_second_decision_are_new() -> None:
    fold = turn(1, "go", "ok", call="c2")
    fold.heard_before["c2"] = 2
    body = RunBody.model_validate({"threadId": "t", "runId": "r", "messages": [said("a", "c2"), user("ok")]})
    assert [part["text"] for part in new_words(read_run(body).lines, "t", [fold])] == ["ok"]


def test_thousands_of_messages_cost_little() -> None:
    """The last hundred may be new: each is looked at once for each that was heard."""
    many = [{**user("x" * 50), "id": f"u{number}"} for number in range(9_000)]
    body = RunBody.model_validate({"threadId": "t", "runId": "r", "messages": [said("a", "c2"), *many]})
    heard = turn(2, *["y" * 50] * 50, call="c2")
    assert len(new_words(read_run(body).lines, "t", [heard])) == 100


FOLDS = [turn(2, "two", "steered", call="c2"), turn(1, "one")]


@pytest.mark.parametrize(
    ("messages", "new"),
    [
        ([user("one"), said(TURN_1), user("two"), said(TURN_2), user("three")], ["three"]),
        ([user("one"), said(TURN_1), user("two"), said(TURN_2)], []),
        ([user("one"), said("a", "c2"), user("three"), result("c2")], ["three"]),  # CopilotKit's result of a decision
        ([said("a", "c2"), user("three"), user("four")], ["three", "four"]),  # the first was refused meanwhile
        ([said(TURN_1), user("two"), user("three")], ["three"]),  # turn 2 has said nothing that came through
        ([said(TURN_1), user("two"), user("steered")], []),
        ([said(TURN_1), user("steered"), user("two")], ["two"]),
        ([said(TURN_2), user("two")], ["two"]),  # the same words once more
        ([said(TURN_2), user("steered")], []),
        ([user("three")], ["three"]),  # of a page that was loaded again
        ([user("one"), user("two")], []),
        ([user("zero"), user("three")], ["three"]),
        ([user("one"), said(STRANGER), user("three")], ["three"]),
        ([said(TURN_2), said("x", "own"), result("own"), user("four")], ["look({}) itself: 7", "four"]),
        ([said("x", EARLIER), result(EARLIER), user("one"), user("four")], ["four"]),
        ([{**user("three"), "id": TURN_2}, user("four")], ["four"]),  # an id that a snapshot gave
    ],
)
def test_what_a_thread_has_not_heard_is_new(messages: list[Item], new: list[str]) -> None:
    """S-83: told by the ids that the door gave, then by their places."""
    body = RunBody.model_validate({"threadId": "t", "runId": "r", "messages": messages})
    words = new_words(read_run(body).lines, "t", FOLDS)
    assert len(words) == len(new)
    assert all(str(part["text"]).endswith(text) for part, text in zip(words, new, strict=True))


def test_an_earlier_message_that_was_refused_does_not_stop_later_ones() -> None:
    by_url = {"type": "image", "source": {"type": "url", "value": "https://x"}}
    messages = [said(TURN_2), {**user("x"), "content": [by_url]}, user("three")]
    body = RunBody.model_validate({"threadId": "t", "runId": "r", "messages": messages})
    told = [str(part["text"]) for part in new_words(read_run(body).lines, "t", FOLDS)]
    assert told == ["(a part of the type 'image', which could not be read)", "three"]


def history(taken: list[Envelope]) -> list[Item]:
    """The events of a recorded session, as one who has nothing of it is told."""
    told: list[Item] = []
    calls: list[str] = []
    for number in sorted({envelope.turn for envelope in taken}):
        fold = HistoryFold("s", number, run="r", known=[*calls])
        for envelope in taken:
            told += [event.body for event in fold.take(envelope)]
        told += [event.body for event in fold.settle()]
        calls += fold.needs
    return [{name: value for name, value in event.items() if name != "sequence_number"} for event in told]


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_has_every_message_of_a_recorded_session(name: str) -> None:
    """S-83: in the protocol's types, each call once, each with its result unless the session waits for that."""
    told = history(recorded(name))
    transcript = Transcript()
    transcript.add(told)
    snapshot = [event for event in transcript.events if event["type"] == "MESSAGES_SNAPSHOT"][-1]
    messages = snapshot["messages"]
    assert isinstance(messages, list)
    ended: Item = {"type": "RUN_FINISHED", "threadId": "s", "runId": "r", "timestamp": 1}
    judge_run([run_started("s", "r", None), snapshot, ended])
    _MESSAGES.validate_python(messages)
    by_role = [message["role"] for message in messages if isinstance(message, dict)]
    assert by_role[0] == "user"
    starts = [event["toolCallId"] for event in told if event["type"] == "TOOL_CALL_START"]
    assert len(starts) == len(set(starts)) == len(transcript.calls)
    assert all("arguments" in call and call["arguments"] for call in transcript.calls.values())


def test_a_snapshot_has_the_words_of_the_user_and_nothing_that_others_put_beside_them() -> None:
    """S-83: the context of the front end, and what a hook says to the model, are no words of the user."""
    prompt = "\n\n".join([*frame(["Be kind."], ["where: </context>", "who: me"]), "hello </context>"])
    start = recorded("text")[0]
    begun = start.event.model_copy(update={"prompt": prompt})
    feedback, message = UserMessageReceived(content="go on", is_notice=True), UserMessageReceived(content="and then?")
    events = [begun, GenerationStart(model="m", messages=1), feedback, message]
    told = history([replace(start, seq=seq, event=event) for seq, event in enumerate(events, start=1)])
    assert [event["delta"] for event in told if event["type"] == "TEXT_MESSAGE_CONTENT"] == [
        "hello </context>",
        "and then?",
    ]
    assert [words_of(text) for text in (prompt, "plain", *frame((), ["image"]), "<context> is a word")] == [
        *("hello </context>", "plain", "", "<context> is a word")
    ]


def test_a_snapshot_has_a_result_that_came_while_the_turn_waited_for_others() -> None:
    taken = made(START, MADE, required("c1"), required("c2"), over("c1"))
    told = history(taken)
    assert [event["toolCallId"] for event in told if event["type"] == "TOOL_CALL_RESULT"] == ["c1"]
