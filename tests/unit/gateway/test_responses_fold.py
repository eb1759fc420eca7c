"""S-83: the fold of the Responses door, over recorded logs and every cut of their streams, judged by OpenAI's types."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.contracts.deltas import Delta
from perdure.contracts.events import CONTENT_CHARACTERS, AgentEnd, AgentStart, Envelope, GenerationContent
from perdure.contracts.values import replace
from perdure.gateway.doors.responses.events import TurnFold, WireEvent, fold_turn
from perdure.gateway.doors.responses.objects import texts_of
from perdure.gateway.doors.responses.places import SPACE, Place, ResponseId
from tests.unit.gateway.openai_types import judge_event, judge_response

pytestmark = pytest.mark.judged("OpenAI Responses", "openai")

TURNS = Path(__file__).parent / "turns"
NAMES = [*sorted(path.stem for path in TURNS.glob("*.jsonl")), "text as JSON", "tools as JSON", "text at length"]


def bodies(events: Iterable[WireEvent], kind: str) -> list[dict[str, Any]]:
    found: list[Any] = [event.body for event in events if event.body["type"] == kind]
    return found


def recorded(name: str) -> list[Envelope]:
    plain, change = name.partition(" ")[0], {"as JSON": _as_json, "at length": _at_length}.get(name.partition(" ")[2])
    lines = (TURNS / f"{plain}.jsonl").read_text(encoding="utf-8").splitlines()
    log = [Envelope.from_json(line) for line in lines]
    return log if change is None else [change(envelope) for envelope in log]


def _as_json(envelope: Envelope) -> Envelope:
    """The same of a turn whose answer has to be JSON."""
    event = envelope.event
    if isinstance(event, AgentStart):
        event = replace(event, structured=True)
    elif isinstance(event, AgentEnd) and event.output:
        event = replace(
            event, output=f"```json\n{json.dumps({'text': event.output})}\n```", value={"text": event.output}
        )
    return replace(envelope, event=event)


def folded(log: Sequence[Envelope | Delta], turn: int = 1, after: int = -1) -> list[WireEvent]:
    """The stream events of a log and of pieces between its events, for a reader behind a number."""
    session = log[0].session
    fold = TurnFold(session, turn, place=Place.parse(after))
    found: list[WireEvent] = []
    for item in log:
        found += fold.take(item) if isinstance(item, Envelope) else fold.take_delta(item)
    return [*found, *fold.settle()]


def shown(events: Iterable[WireEvent]) -> list[dict[str, Any]]:
    """The items as a client puts them together from the events alone."""
    items: dict[int, dict[str, Any]] = {}
    for event in events:
        body: dict[str, Any] = event.body
        index: int = body.get("output_index", -1)
        match body["type"]:
            case "response.output_item.added":
                items[index] = {**body["item"], "text": ""}
            case "response.output_text.delta":
                items[index]["text"] += body["delta"]
            case "response.output_text.done":
                assert items[index]["text"] == body["text"]
            case "response.output_item.done":
                items[index] = {**body["item"], "text": items.get(index, {}).get("text", "")}
    return [items[index] for index in sorted(items)]


LONG = "x" * CONTENT_CHARACTERS


def _at_length(envelope: Envelope) -> Envelope:
    """The same with an answer of which its event has only the beginning."""
    event = envelope.event
    if isinstance(event, GenerationContent):
        event = replace(event, content=LONG)
    elif isinstance(event, AgentEnd):
        event = replace(event, output=f"{LONG} and more")
    return replace(envelope, event=event)


def test_a_long_answer_is_one_message_and_whole() -> None:
    """Seen: two messages, of which the second had all of the first again, or, with pieces, the text three times."""
    log, whole = recorded("text at length"), f"{LONG} and more"
    place = next(at for at, line in enumerate(log) if isinstance(line.event, GenerationContent))
    fields: dict[str, Any] = {"session": log[0].session, "turn": 1, "step": log[place].step, "attempt": 1, "n": 0}
    piece = Delta(**fields, offset=0, text=f"{LONG} an")
    logs: list[list[Envelope | Delta]] = [[*log], [*log[:place], piece, *log[place:]]]
    for taken in logs:
        (message,) = shown(folded(taken))
        assert message["content"][0]["text"] == message["text"] == whole


@pytest.mark.parametrize("name", NAMES)
def test_every_event_is_one_of_openais_and_numbers_rise(name: str) -> None:
    log = recorded(name)
    for turn in {envelope.turn for envelope in log}:
        events = folded(log, turn)
        assert events
        for event in events:
            judge_event(event.body)
        numbers = [event.number for event in events]
        assert numbers == sorted(set(numbers))
        fold = fold_turn(log[0].session, turn, log)
        for segment in fold.segments:
            body: Any = fold.response(segment.number)
            judge_response(body)
            own = [event for event in events if event.segment == segment.number]
            assert [own[0].body["type"], own[1].body["type"]] == ["response.created", "response.in_progress"]
            assert own[-1].is_last
            assert own[-1].body["response"] == body
            assert [{**item, "text": ""} for item in shown(own)] == [{**item, "text": ""} for item in body["output"]]


@pytest.mark.parametrize("name", NAMES)
def test_each_cut_of_a_stream_goes_on_exactly_there(name: str) -> None:
    """S-83: prefix and suffix are the whole, behind every event of it."""
    log = recorded(name)
    for turn in {envelope.turn for envelope in log}:
        whole = folded(log, turn)
        for cut in range(len(whole) + 1):
            after = whole[cut - 1].number if cut else -1
            assert folded(log, turn, after) == whole[cut:]


def test_a_turn_that_waits_has_a_response_for_each_wait() -> None:
    fold = fold_turn("s", 1, recorded("mixed"))
    first, second = fold.segments
    assert [item["type"] for item in first.items] == [
        "mcp_call",
        "function_call",
        "message",
        "mcp_approval_request",
        "function_call",
    ]
    assert [item["type"] for item in second.items] == ["mcp_call", "message"]
    assert [item["name"] for item in first.items if "name" in item] == ["add", "lookup", "pay", "ask_user"]
    assert texts_of(first.items) == [f"pay waits for an approval: {first.items[3]['arguments']}"]
    assert first.items[1]["arguments"] == '{"id": 7}'
    assert (second.items[0]["status"], second.items[0]["approval_request_id"]) == ("failed", first.items[3]["id"])
    assert [said.decision for said in second.inputs] == ["returned", "denied", "answered"]
    assert (first.usage.total_tokens, second.usage.total_tokens) == (15, 13)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("text", "completed", "finished"),
        ("max", "incomplete", "max_steps_reached"),
        ("error", "failed", "error"),
        ("cancel", "cancelled", "cancelled"),
    ],
)
def test_the_end_of_a_turn_is_a_status_with_our_words_beside_it(name: str, status: str, reason: str) -> None:
    fold = fold_turn("s", 1, recorded(name))
    body: Any = fold.response(len(fold.segments))
    assert (body["status"], body["metadata"]["stop_reason"]) == (status, reason)
    if status == "failed":
        assert body["metadata"]["reason_code"] == "llm.auth_error"
        assert "refused the key" in body["error"]["message"]


def test_a_session_that_stopped_goes_on_in_the_next_turn() -> None:
    log = recorded("stop")
    first, second = fold_turn("s", 1, log), fold_turn("s", 2, log)
    assert (len(first.segments), len(second.segments), first.has_ended) == (1, 1, True)
    assert [item["type"] for item in second.segments[0].items] == ["mcp_call", "message"]


def piece(text: str, n: int, offset: int, attempt: int = 1) -> Delta:
    return Delta(session="s", turn=1, step=1, attempt=attempt, n=n, offset=offset, text=text)


def live_log() -> list[Envelope | Delta]:
    log = recorded("text")
    pieces = [piece("hel", 0, 0), piece("lo ", 1, 3), piece("wor", 2, 6)]
    return [*log[:2], *pieces, *log[2:]]


def test_an_answer_is_shown_while_it_is_written_and_ends_with_the_stored_one() -> None:
    events = folded(live_log())
    for event in events:
        judge_event(event.body)
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    deltas = bodies(events, "response.output_text.delta")
    assert [body["delta"] for body in deltas] == ["hel", "lo ", "wor", "ld"]
    assert shown(events)[0]["text"] == "hello world"


@pytest.mark.parametrize("is_live", [False, True])
def test_a_cut_in_the_middle_of_an_answer_goes_on_with_its_next_character(is_live: bool) -> None:
    """S-83: while the answer is written, a reader that comes again is sent all of it, and has a part already."""
    log = live_log()
    whole = folded(log)
    for cut in range(len(whole)):
        after = whole[cut].number
        place = Place.parse(after)
        again: list[Envelope | Delta] = [*recorded("text")]
        if is_live and place.seq <= 2:
            again = [*again[:2], piece("hello wor", 0, 0), *again[2:]]
        both = [*whole[: cut + 1], *folded(again, after=after)]
        assert shown(both) == shown(whole)
        assert both[-1].body == whole[-1].body
        numbers = [event.number for event in both]
        assert numbers == sorted(set(numbers))


def test_text_of_a_lost_attempt_is_closed_and_the_stored_answer_takes_its_place() -> None:
    log = recorded("text")
    lost = [piece("He", 0, 0), piece("hello", 0, 0, attempt=2)]
    events = folded([*log[:2], *lost, *log[2:]])
    closed = bodies(events, "response.output_item.done")
    assert [(body["item"]["status"], body["output_index"]) for body in closed] == [("incomplete", 0), ("completed", 0)]
    assert closed[0]["item"]["id"] != closed[1]["item"]["id"]
    assert shown(events)[0]["text"] == "hello world"
    for cut in range(len(events)):
        after = events[cut].number
        both = [*events[: cut + 1], *folded(log, after=after)]
        assert [item["content"] for item in shown(both)] == [item["content"] for item in shown(events)]


def test_ids_say_where_a_response_is_and_nothing_else_is_one() -> None:
    place = ResponseId("desk-1:a@b", 3, 2)
    assert ResponseId.parse(str(place)) == place
    for text in (
        "",
        "resp_",
        "resp_x",
        str(place)[:-1],
        f"{place}=",
        str(place).removeprefix("resp_"),
        "resp_" + "A" * 900,
    ):
        assert ResponseId.parse(text) is None
    assert Place.parse(7 * SPACE + 3) == Place(7, 3)
