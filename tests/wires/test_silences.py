"""S-15: what has come decides where an answer ends, and the agent's setting how long it may be silent; on each wire.

Nothing of that differs between an answer that is asked for whole and one that is streamed because somebody watches.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from perdure.activities.models.failures import facts_of
from perdure.activities.models.provider_http import exchange
from perdure.activities.models.provider_packets import LINGER_SECONDS, SETTLE_SECONDS, HttpReply, Patience
from perdure.activities.models.provider_reading import USAGE_SECONDS
from perdure.activities.models.wires import CONVERSE, MESSAGES, OLLAMA, RESPONSES
from perdure.activities.models.wires.reply import Answered, Silent
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import FailureFacts, classify
from tests import jumping_loop
from tests.unit.activities.calls import NOW, Sink
from tests.wires.corpus import DONE, USAGE, binary, chunk, completion, events
from tests.wires.playing import ADDRESS, BEGUN, KINDS, answer_in, frame_of

Packets = Sequence[bytes | float | Exception]
"""What a connection does: bytes come, seconds pass, or it breaks."""

TEXT = "The whole answer"
HOUR = 3_600.0
RESET = aiohttp.ClientPayloadError("Response payload is not completed")

LAST = {"chat": DONE.encode(), "anthropic": events({"type": "message_stop"})[0]}
"""The last event of a wire, where it is one of its own; Gemini has none, and elsewhere it is the end of the answer."""

BEHIND_THE_TEXT = {"chat": 3, "anthropic": 2, "bedrock": 2}
"""Events from the finish reason on; elsewhere the last one has it."""

LATE = {name: frames[-1] for name, (_, frames) in BEGUN.items()}
"""An event with a piece of text."""

PING = {
    "chat": b": processing\n\n",
    "anthropic": events({"type": "ping"})[0],
    "gemini": b": processing\n\n",
    "bedrock": binary("ping", {}),
    "ollama": b"\n",
    "responses": events({"type": "keepalive", "sequence_number": 3})[0],
}
"""What a provider sends so that nobody takes it for lost."""


async def meet(
    name: str,
    packets: Packets,
    *,
    patience: Patience = Patience(),  # noqa: B008
    streams: bool = True,
    status: int = 200,
    sink: Sink | None = None,
) -> Answered | FailureFacts:
    """The answer, or the facts of the failure, in a reply whose connection does this."""
    wire = BEGUN[name][0]
    kind = KINDS.get(wire, "text/event-stream") if streams else "application/json"

    async def raw() -> AsyncIterator[bytes]:
        for packet in packets:
            if isinstance(packet, Exception):
                raise packet
            if isinstance(packet, bytes):
                yield packet
            else:
                await asyncio.sleep(packet)

    async def close() -> None: ...

    async def ask() -> HttpReply:
        return HttpReply(status, {"content-type": kind}, raw(), close, ADDRESS)

    try:
        return await exchange(wire, ADDRESS, ask, (sink or Silent()) if streams else None, patience)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
        return facts_of(error, NOW)


def played(name: str, packets: Packets, **more: Any) -> tuple[Answered | FailureFacts, float]:
    """The same by a clock that jumps, and the seconds that it took."""
    return jumping_loop.run(meet(name, packets, **more))


def frames_of(name: str) -> list[bytes]:
    """A good stream of a wire with its last event."""
    _, _, frames = answer_in(name, TEXT)
    return [*(frame for frame in frames if frame != LAST.get(name)), *([LAST[name]] if name in LAST else [])]


def said(got: Answered | FailureFacts) -> tuple[str, int, int]:
    """The text and the counts of an answer."""
    assert isinstance(got, Answered), got
    return got.text, got.counts.input_tokens, got.counts.output_tokens


WHOLE = (TEXT, 7, 5)

on_each_wire = pytest.mark.parametrize("name", BEGUN)


# How long a provider may be silent


@on_each_wire
@pytest.mark.parametrize("place", ["before its first event", "in its middle", "before its end"])
def test_a_stream_may_be_silent_as_long_as_a_whole_answer(name: str, place: str) -> None:
    """A model thinks for minutes: it must not be asked again because somebody watches."""
    frames = frames_of(name)
    end = len(frames) - BEHIND_THE_TEXT.get(name, 1)
    at = {"before its first event": 0, "in its middle": len(frames) // 2, "before its end": end}[place]
    got, seconds = played(name, [*frames[:at], 590.0, *frames[at:]])
    assert said(got) == WHOLE
    assert seconds < 590.0 + LINGER_SECONDS + 1


@on_each_wire
def test_a_whole_answer_may_be_silent_in_its_middle(name: str) -> None:
    _, body, _ = answer_in(name, TEXT)
    got, _ = played(name, [body[:20], 590.0, body[20:]], streams=False)
    assert said(got) == WHOLE


@on_each_wire
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("idle", [600.0, 20.0])
def test_silence_ends_a_call_after_the_agents_idle_timeout(name: str, streams: bool, idle: float) -> None:
    """S-02: and the failure names the setting; the same time whole and streamed."""
    _, body, _ = answer_in(name, TEXT)
    begun = [LATE[name]] if streams else [body[:20]]
    got, seconds = played(name, [*begun, HOUR], streams=streams, patience=Patience(idle))
    assert isinstance(got, FailureFacts)
    assert f"silent for {idle:g} s, which is the agent's idle_timeout" in got.text
    assert classify(got) == (ReasonCode.LLM_STREAM_CUT if streams else ReasonCode.LLM_TIMEOUT)
    assert idle <= seconds < idle + 1


@on_each_wire
def test_a_comment_or_a_ping_ends_a_silence(name: str) -> None:
    frames = frames_of(name)
    waiting = [part for _ in range(40) for part in (15.0, PING[name])]
    got, _ = played(name, [*waiting, frames[0], *waiting, *frames[1:]], patience=Patience(20.0, 20.0))
    assert said(got) == WHOLE


@on_each_wire
def test_behind_the_first_word_a_shorter_silence_may_be_set(name: str) -> None:
    frames = frames_of(name)
    patience = Patience(600.0, 20.0)
    assert said(played(name, [500.0, *frames], patience=patience)[0]) == WHOLE
    got, seconds = played(name, [LATE[name], HOUR], patience=patience)
    assert isinstance(got, FailureFacts)
    assert "silent for 20 s, which is the agent's stream_idle_timeout" in got.text
    assert 20 <= seconds < 21


def test_reasoning_is_not_the_first_word() -> None:
    """A model that thinks and then is silent still thinks."""
    thought = events(chunk({"reasoning_content": "let me see"}))
    got, _ = played("chat", [*thought, 500.0, *frames_of("chat")], patience=Patience(600.0, 20.0))
    assert said(got) == WHOLE


# What has come decides


@pytest.mark.parametrize("behind", ["it lingers", "it breaks", "a late piece", "a late piece at once", "a late error"])
@pytest.mark.parametrize("name", [name for name in BEGUN if name != "gemini"])
def test_behind_the_last_event_nothing_counts(name: str, behind: str) -> None:
    """Gateways keep a connection open, or send more: one answer, bought once."""
    frames, wire = frames_of(name), BEGUN[name][0]
    connections: dict[str, Packets] = {
        "it lingers": [*frames, HOUR],
        "it breaks": [*frames, RESET],
        "a late piece": [*frames, LATE[name], HOUR],
        "a late piece at once": [b"".join([*frames, LATE[name]]), HOUR],
        "a late error": [*frames, frame_of(wire, {"type": "server_error", "message": "too late"}), HOUR],
    }
    got, seconds = played(name, connections[behind])
    assert said(got) == WHOLE
    assert seconds <= SETTLE_SECONDS + 1


@pytest.mark.parametrize("name", ["chat", "anthropic", "gemini"])
@pytest.mark.parametrize("behind", [[HOUR], [RESET], [part for _ in range(60) for part in (1.0, b": ping\n\n")]])
def test_without_a_last_event_a_short_silence_ends_a_whole_answer(name: str, behind: Packets) -> None:
    """Finish reason and usage have come; comments behind them go on for ever."""
    frames = [frame for frame in frames_of(name) if frame != LAST.get(name)]
    got, seconds = played(name, [*frames, *behind])
    assert said(got) == WHOLE
    assert seconds <= LINGER_SECONDS + 1


def test_a_finish_reason_with_each_chunk_ends_nothing_while_pieces_come() -> None:
    """Some servers send ``stop`` and usage with every chunk, and pause."""
    pieces = [part for word in ("The ", "whole ", "answer") for part in (sent(word), 4.0)]
    got, _ = played("chat", [*pieces, DONE.encode()])
    assert said(got) == WHOLE


def sent(word: str) -> bytes:
    """A chunk with a finish reason and usage."""
    return events(chunk({"content": word}, "stop", usage=USAGE))[0]


@pytest.mark.parametrize("behind", [HOUR, RESET])
def test_an_answer_whose_usage_never_comes_is_not_bought_again(behind: float | Exception) -> None:
    """Its tokens are estimated, as those of a stream that ends in good order without usage."""
    got, seconds = played("chat", [*events(chunk({"content": TEXT}), chunk({}, "stop")), behind])
    assert said(got) == (TEXT, 0, 0)
    assert seconds <= USAGE_SECONDS + 1


@on_each_wire
@pytest.mark.parametrize("behind", [HOUR, RESET])
def test_a_whole_answer_ends_where_its_json_ends(name: str, behind: float | Exception) -> None:
    """The same of an answer that nobody watches: a reply without a length whose connection stays open, or breaks."""
    _, body, _ = answer_in(name, TEXT)
    got, seconds = played(name, [body, behind], streams=False)
    assert said(got) == WHOLE
    assert seconds <= LINGER_SECONDS + 1


@pytest.mark.parametrize("behind", [HOUR, RESET])
@pytest.mark.parametrize("said_before", [b'{"error": {"message": "slow down"}}', b"slow down"])
def test_an_error_keeps_its_status_whatever_its_connection_does(said_before: bytes, behind: float | Exception) -> None:
    got, seconds = played("chat", [said_before, behind], streams=False, status=429)
    assert isinstance(got, FailureFacts)
    assert (got.status, got.text, classify(got)) == (429, "slow down", ReasonCode.LLM_RATE_LIMITED)
    assert seconds <= LINGER_SECONDS + 1


@on_each_wire
@pytest.mark.parametrize("behind", [HOUR, RESET])
def test_an_error_in_a_stream_keeps_its_code_whatever_its_connection_does(name: str, behind: float | Exception) -> None:
    wire = BEGUN[name][0]
    kind = {CONVERSE: "throttlingException", RESPONSES: "rate_limit_exceeded", OLLAMA: "rate_limit_error"}
    error = {"type": kind.get(wire, "rate_limit_error"), "code": kind.get(wire, 429), "message": "rate limit reached"}
    if wire is MESSAGES:
        del error["code"]
    got, seconds = played(name, [LATE[name], frame_of(wire, error), behind])
    assert isinstance(got, FailureFacts)
    assert classify(got) == ReasonCode.LLM_RATE_LIMITED
    assert seconds <= USAGE_SECONDS + 1


# A stream that breaks before its first event


@on_each_wire
@pytest.mark.parametrize("end", [None, RESET], ids=["ends", "breaks"])
@pytest.mark.parametrize("before", [b"", b"\n\n\n", b"dat"], ids=["nothing", "blank lines", "half a name"])
def test_a_stream_that_breaks_before_its_first_event_is_a_broken_stream(
    name: str, end: Exception | None, before: bytes
) -> None:
    """After two of them the answer is asked for whole: a job must not end because somebody watches."""
    if before == b"dat" and (end is None or BEGUN[name][0] in {OLLAMA, CONVERSE}):
        return  # words in place of a stream are an error's, and Amazon's frames have no lines
    got, _ = played(name, [*([before] if before else []), *([end] if end else [])])
    assert isinstance(got, FailureFacts)
    assert classify(got) == ReasonCode.LLM_STREAM_CUT, got.text


@on_each_wire
def test_a_whole_answer_that_breaks_before_its_first_byte_is_none(name: str) -> None:
    got, _ = played(name, [RESET], streams=False)
    assert isinstance(got, FailureFacts)
    assert classify(got) == ReasonCode.LLM_NETWORK_ERROR


def test_pieces_are_shown_up_to_the_end_and_no_further() -> None:
    sink = Sink()
    played("chat", [*frames_of("chat"), LATE["chat"], HOUR], sink=sink)
    assert "".join(sink.texts) == TEXT


def test_a_whole_answer_of_json_that_pauses_behind_a_bracket_goes_on() -> None:
    """Half of an object is no object, however long the pause."""
    body = json.dumps(completion({"content": TEXT})).encode()
    at = body.index(b"}") + 1
    got, _ = played("chat", [body[:at], 60.0, body[at:]], streams=False)
    assert said(got) == WHOLE
