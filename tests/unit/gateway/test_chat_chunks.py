"""S-89: completions of recorded turns, judged by OpenAI's types: streamed, and whole."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from perdure.contracts.events import Envelope
from perdure.gateway.doors.chat.chunks import CallsShown, Chunks
from perdure.gateway.doors.chat.threads import squeeze
from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.objects import Shape
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.problems import ProblemError
from tests.unit.gateway.test_responses_fold import NAMES, live_log, recorded

pytestmark = pytest.mark.judged("OpenAI Chat Completions", "openai")

FAIL = {"error": "llm.auth_error", "cancel": "runtime.aborted"}


def completion_of(
    taken: list[Any], segment: int, turn: int = 1, shape: Shape | None = None, **options: Any
) -> tuple[list[Any], Chunks]:
    """The chunks of a segment of a turn."""
    fold = TurnFold("s", turn, shape)
    events: list[WireEvent] = []
    for item in taken:
        events += fold.take(item) if isinstance(item, Envelope) else fold.take_delta(item)
    events += fold.settle()
    chunks = Chunks(place=ResponseId("s", turn, segment), model="tester", created=1, fold=fold, **options)
    told = [chunks.begin()]
    for event in events:
        if event.segment == segment:
            told += chunks.take(event)
    return told, chunks


def whole(taken: list[Any], segment: int = 1, turn: int = 1, **options: Any) -> ChatCompletion:
    """The completion, judged as its chunks are."""
    told, chunks = completion_of(taken, segment, turn, **options)
    for chunk in told:
        judged = ChatCompletionChunk.model_validate(chunk, strict=True)
        assert (judged.model_extra or {}).keys() <= {"metadata"}
    made = ChatCompletion.model_validate(chunks.whole(told), strict=True)
    assert not made.model_extra
    streamed = "".join(str(chunk["choices"][0]["delta"].get("content", "")) for chunk in told)
    assert streamed == (made.choices[0].message.content or "")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_segment_of_a_recorded_turn_is_a_completion(name: str) -> None:
    taken = recorded(name)
    for turn in sorted({envelope.turn for envelope in taken}):
        fold = TurnFold("s", turn)
        for envelope in taken:
            fold.take(envelope)
        fold.settle()
        for segment in fold.segments:
            if segment.ending is not None and segment.ending.status in {"failed", "cancelled"}:
                with pytest.raises(ProblemError) as raised:
                    whole(taken, segment.number, turn)
                assert raised.value.code == FAIL[name]
            else:
                made = whole(taken, segment.number, turn)
                assert made.usage is not None
                assert made.choices[0].finish_reason in {"stop", "length", "tool_calls"}


@pytest.mark.parametrize("shows", ["reasoning", "text"])
@pytest.mark.parametrize("name", sorted({*NAMES} - {*FAIL}))
def test_what_a_client_has_is_passed_over(name: str, shows: CallsShown) -> None:
    """S-91: at each place of each text, whatever the white space is."""
    taken = recorded(name)
    text = whole(taken, shows=shows).choices[0].message.content or ""
    for seen in {0, 1, 2, len(squeeze(text)) // 2, max(0, len(squeeze(text)) - 1)}:
        rest = whole(taken, shows=shows, seen=seen).choices[0].message.content or ""
        assert text.endswith(rest)
        assert squeeze(text) == squeeze(text)[:seen] + squeeze(rest)
    continued = whole(taken, shows=shows, is_continued=True).choices[0].message.content or ""
    assert continued == (f"\n\n{text}" if text else "")


def test_a_streamed_answer_is_the_stored_one() -> None:
    told, _ = completion_of([*live_log()], 1)
    pieces = [chunk["choices"][0]["delta"].get("content") for chunk in told]
    assert [piece for piece in pieces if piece] == ["hel", "lo ", "wor", "ld"]


@pytest.mark.parametrize("shows", ["none", "reasoning", "text"])
def test_calls_that_perdure_runs_are_told_where_the_operator_wants(shows: CallsShown) -> None:
    made = whole(recorded("tools"), shows=shows)
    message: Any = made.choices[0].message
    reasoning = getattr(message, "reasoning_content", "")
    places = {"none": "", "reasoning": reasoning, "text": message.content}
    assert ("→" in message.content, "→" in reasoning) == (shows == "text", shows == "reasoning")
    assert places[shows].count("→") == (0 if shows == "none" else 3)
    assert message.tool_calls is None


def test_people_are_asked_in_words_with_the_page_on_which_they_decide() -> None:
    """No program takes what people decide for a call that it has to run."""
    made = whole(recorded("mixed"), link="https://perdure.example/ui/sessions/s")
    message = made.choices[0].message
    assert [called.function.name for called in message.tool_calls or []] == ["lookup"]  # type: ignore[union-attr]
    assert message.content is not None
    assert "pay waits for an approval: " in message.content
    assert "color?" in message.content
    assert message.content.count("https://perdure.example/ui/sessions/s") == 2
    assert made.choices[0].finish_reason == "tool_calls"


def test_no_call_stands_in_an_answer_that_has_a_form() -> None:
    """Clients read its text as JSON, wherever calls are told."""
    told, chunks = completion_of(recorded("tools as JSON"), 1, shows="text", shape=Shape(output_schema={}))
    made: Any = chunks.whole(told)
    message = made["choices"][0]["message"]
    assert json.loads(message["content"])
    assert "→" in message["reasoning_content"]
