"""What a recorded call is known by, and what a worker does with it."""

import asyncio
import dataclasses
import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.activities.models.model_call import Answer
from perdure.activities.recordings import CallRecording, FixtureMissingError, RecordingError, Recordings
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.recordings import RecordingInfo
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.tools import CallTool, RawCall, ToolDeclaration
from perdure.llm.openai_format import WireMessage, wire
from perdure.llm.recorded_calls import (
    Asked,
    clean,
    difference,
    find_nearest,
    request_of_generation,
    request_of_tool_call,
)
from perdure.settings import RecordingMode, SettingsError, load_settings
from perdure.store import Artifact, Store

SECRET = "key-of-the-worker"
LOOK = ToolDeclaration(name="look", description="Look.", parameters={"type": "object"}, reference="a:look")
AGENT = AgentDefinition(name="tester", model="openai/scripted", instructions="Tell.", tools=(LOOK,), recording="demo")
ANSWER = Answer(
    text="here",
    calls=(RawCall(name="look", arguments='{"at": 1}'),),
    thinking=({"type": "thinking", "signature": "abc"},),
    finish_reason="tool_calls",
    usage=Usage(input_tokens=3, output_tokens=2),
    cost_usd=Decimal("0.00012"),
)


def conversation(digits: str = "0123456789abcdef", prompt: str = "go") -> list[Message]:
    """Two equal calls beside another one; all ids are of one session."""
    first, second, other = (f"call_{digits}_{index}" for index in range(3))
    return [
        UserMessage(content=prompt),
        AssistantMessage(
            tool_calls=(
                ToolCall(id=first, name="look", arguments='{"at":  1}'),
                ToolCall(id=second, name="look", arguments='{"at": 1}'),
                ToolCall(id=other, name="look", arguments=json.dumps({"at": f"art_{first}"})),
            )
        ),
        ToolMessage(call_id=first, name="look", content=f"the whole output is artifact art_{first}"),
        ToolMessage(call_id=second, name="look", content="again"),
        ToolMessage(call_id=other, name="look", content="there"),
    ]


def asked(definition: AgentDefinition = AGENT, messages: Sequence[Message] | None = None) -> Asked:
    wired: list[WireMessage] = [{"role": "system", "content": definition.instructions}]
    return request_of_generation(definition, [*wired, *map(wire, conversation() if messages is None else messages)])


def changed(**changes: Any) -> AgentDefinition:
    return AGENT.model_copy(update=changes)


DRIFTS: dict[str, tuple[Asked, str]] = {
    "model": (asked(changed(model="openai/other")), 'model is "openai/other", recorded was "openai/scripted"'),
    "system prompt": (asked(changed(instructions="Tell me.")), 'the system prompt has "Tell me." at character 5'),
    "prompt": (asked(messages=conversation(prompt="gone")), 'message 1 (user) has "gone" at character 3'),
    "length": (asked(messages=conversation()[:2]), "the conversation has 2 messages, recorded were 5"),
    "new tool": (
        asked(changed(tools=(LOOK, LOOK.model_copy(update={"name": "find"})))),
        "the tool 'find' is new",
    ),
    "description": (
        asked(changed(tools=(LOOK.model_copy(update={"description": "See."}),))),
        "the tool 'look' has another description",
    ),
    "parameter": (
        asked(changed(generate_params={"temperature": 0.5})),
        "generate_params 'temperature' is 0.5, recorded was null",
    ),
    "output's schema": (asked(changed(output_schema={})), "output_schema is {}, recorded was null"),
}


@pytest.mark.parametrize(("drifted", "words"), DRIFTS.values(), ids=DRIFTS.keys())
def test_whatever_a_model_reads_changes_the_hash_and_is_named(drifted: Asked, words: str) -> None:
    """S-73 S-74."""
    assert drifted.digest != asked().digest
    assert words in difference(drifted.request, asked().request)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"description": "other"},
        {"max_steps": 3},
        {"retry": RetryPolicy.dawn()},
        {"on_tool_error": "feed_back"},
        {"recording": "other"},
        {
            "generate_params": {
                "api_base": "http://x",
                "api_key": "k",
                "aws_region_name": "r",
                "extra_headers": {"a": "b"},
            }
        },
        {"tools": (LOOK.model_copy(update={"reference": "b:look", "idempotent": True}),)},
    ],
)
def test_what_no_model_reads_does_not_change_the_hash(changes: dict[str, Any]) -> None:
    """S-73: a recording outlives changes of limits, policies and addresses."""
    assert asked(changed(**changes)).digest == asked().digest


def test_another_session_asks_for_the_same_although_its_ids_are_its_own() -> None:
    """S-73: in calls, in results, and in handles of artifacts."""
    first, other = asked(), asked(messages=conversation("f" * 16))
    assert first.digest == other.digest
    assert "0123456789abcdef" not in json.dumps(first.request)
    assert other.numbers.show("read art_call#1, not call#9") == f"read art_call_{'f' * 16}_0, not call#9"


@pytest.mark.parametrize(("index", "occurrence"), [(0, 1), (1, 2), (2, 1)])
def test_a_call_is_counted_by_its_place_in_the_transcript(index: int, occurrence: int) -> None:
    """S-73: the same number at every attempt, whichever of its siblings have ended."""
    ids = [f"call_0123456789abcdef_{number}" for number in range(3)]
    before = request_of_tool_call(conversation()[:2], ids[index], "look")
    after = request_of_tool_call([*conversation(), *conversation("e" * 16)], ids[index], "look")
    assert (before.occurrence, before.digest) == (after.occurrence, after.digest) == (occurrence, before.digest)
    later = request_of_tool_call([*conversation(), *conversation("e" * 16)], f"call_{'e' * 16}_0", "look")
    assert later.occurrence == 3


NAMES = st.sampled_from(["password", "api_key", "has_credentials", "token", "Authorization"])
SECRETIVE = (
    *("password=hunter22", "api_key: 'x1234567'", "Bearer abcdefgh12", "sk-live-0123456789", "https://u:pw@h/"),
    *("--token ", SECRET, '"api_key": "v"', "***", "=", " ", '"', ":", "ab12cd34", "Basic dTpwYXNzd29yZA=="),
    *("TOKEN=", "PASSWORD={\u2026", "?key=4f9a8b7c", "Cookie: a=b", "-u me:hunter22", "}", "null"),
)


@given(st.lists(st.sampled_from(SECRETIVE), max_size=8).map("".join))
def test_what_is_masked_once_is_masked(text: str) -> None:
    """S-73: a replayed conversation holds masked texts, and must ask for the same as the one that was recorded."""
    assert clean(clean(text, {SECRET}), {SECRET}) == clean(text, {SECRET})


def test_the_nearest_recorded_request_is_of_the_same_step() -> None:
    """S-74."""
    steps = [asked(messages=conversation()[:1]), asked(messages=conversation())]
    drifted = asked(messages=conversation(prompt="gone")[:1])
    assert find_nearest(drifted.request, [step.request for step in steps]) == steps[0].request


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await Store.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True) as opened:
        yield opened


def worker(store: Store, folder: Path, mode: RecordingMode) -> Recordings:
    return Recordings(mode=mode, folder=folder, store=store, secrets=frozenset({SECRET}))


class Provider:
    """Answers, and counts how often it was asked."""

    def __init__(self, answer: Answer | Exception = ANSWER) -> None:
        self.asked = 0
        self._answer = answer

    async def __call__(self) -> Answer:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


PROMPT: list[WireMessage] = [{"role": "user", "content": "go"}]


async def test_an_answer_is_replayed_as_it_was(store: Store, tmp_path: Path) -> None:
    """S-73: text, calls, thinking, usage and cost."""
    provider, silent = Provider(), Provider(AssertionError("asked"))
    assert await worker(store, tmp_path, "record").answer(AGENT, PROMPT, provider) == ANSWER
    replayed = await worker(store, tmp_path, "replay").answer(AGENT, PROMPT, silent)
    assert (replayed.recorded, provider.asked, silent.asked) == (True, 1, 0)
    assert replayed == Answer(**{**vars(ANSWER), "recorded": True})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.text()
    | st.sampled_from(["hunter22", "sk-live-01234567"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(text=JSON.map(json.dumps) | st.lists(st.sampled_from(SECRETIVE), max_size=8).map("".join))
@example('{"has_credentials": true}')
@example('{"api_key": null, "password": 12345}')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
async def test_any_answer_is_replayed_as_it_was_but_for_known_secrets(store: Store, tmp_path: Path, text: str) -> None:
    """S-73: an answer is content, in a recording as in the transcript; its JSON stays JSON."""
    given_ = dataclasses.replace(ANSWER, text=text)
    await worker(store, tmp_path, "record").answer(AGENT, PROMPT, Provider(given_))
    replayed = await worker(store, tmp_path, "replay").answer(AGENT, PROMPT, Provider(AssertionError("asked")))
    assert replayed.text == text.replace(SECRET, "***")
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


async def test_a_result_is_kept_as_it_was_but_for_known_secrets(store: Store, tmp_path: Path) -> None:
    """S-73."""
    content = '{"has_credentials": true, "api_key": "example", "of": "%s"}'
    file, (call_id, *_) = tmp_path / "tools" / "look" / "a.json", ("call_0123456789abcdef_0",)
    of = request_of_tool_call(conversation(), call_id, "look", {SECRET})
    message = ToolMessage(call_id=call_id, name="look", content=content % SECRET)
    written = CallRecording(file=file, asked=of, secrets=frozenset({SECRET}))
    whole = Artifact(id=f"art_{call_id}", session="s", media_type="text/plain", text=content % SECRET)
    await written.keep(message, artifacts=[whole], ended_turn=False, seconds=1.0)
    outcome = await dataclasses.replace(written, replays=True).outcome()
    assert outcome is not None
    assert (outcome.content, outcome.artifact) == (content % "***", content % "***")


async def test_a_failed_call_leaves_no_file(store: Store, tmp_path: Path) -> None:
    """S-74."""
    with pytest.raises(TimeoutError):
        await worker(store, tmp_path, "record").answer(AGENT, PROMPT, Provider(TimeoutError()))
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("mode", "recording"), [("off", "demo"), ("replay", ""), ("replay", "demo")])
async def test_no_call_goes_out_where_the_turn_and_its_worker_disagree(
    store: Store, tmp_path: Path, mode: RecordingMode, recording: str
) -> None:
    """S-73: a worker that took the turn over from one with other settings included."""
    provider = Provider()
    with pytest.raises(FixtureMissingError):
        await worker(store, tmp_path, mode).answer(changed(recording=recording), PROMPT, provider)
    assert provider.asked == 0


@pytest.mark.parametrize(("mode", "recording"), [("off", ""), ("record", "")])
async def test_a_turn_without_a_recording_leaves_no_trace(
    store: Store, tmp_path: Path, mode: RecordingMode, recording: str
) -> None:
    assert (
        await worker(store, tmp_path / "none", mode).answer(changed(recording=recording), PROMPT, Provider()) == ANSWER
    )
    assert not (tmp_path / "none").exists()


async def test_a_fixture_that_cannot_be_read_is_named(store: Store, tmp_path: Path) -> None:
    await worker(store, tmp_path, "record").answer(AGENT, PROMPT, Provider())
    (path,) = tmp_path.rglob("llm/*.json")
    path.write_text('{"request":')
    with pytest.raises(FixtureMissingError, match=rf"{path.name} cannot be read \(ValidationError\); record it again"):
        await worker(store, tmp_path, "replay").answer(AGENT, PROMPT, Provider())


@pytest.mark.parametrize("gone", ["text", "usage", "calls"])
async def test_a_fixture_whose_answer_lacks_a_field_is_named(store: Store, tmp_path: Path, gone: str) -> None:
    """S-73: the failure is the recording's and not the provider's, so nothing is tried again."""
    await worker(store, tmp_path, "record").answer(AGENT, PROMPT, Provider())
    (path,) = tmp_path.rglob("llm/*.json")
    fixture = json.loads(path.read_text())
    del fixture["answer"][gone]
    path.write_text(json.dumps(fixture))
    with pytest.raises(FixtureMissingError, match=rf"{path.name} cannot be read \(ValidationError\); record it again"):
        await worker(store, tmp_path, "replay").answer(AGENT, PROMPT, Provider())


@pytest.mark.parametrize("broken", ["request_of_generation", "without_secrets", "write"])
async def test_a_fault_of_the_recording_does_not_cost_the_answer(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """S-74: a paid answer is no failure of the provider, whatever happens to it here."""
    monkeypatch.setattr(f"perdure.activities.recordings.{broken}", Mock(side_effect=RecursionError("too deep")))
    provider = Provider()
    with caplog.at_level(logging.WARNING):
        assert await worker(store, tmp_path, "record").answer(AGENT, PROMPT, provider) == ANSWER
    assert provider.asked == 1
    assert "a call is missing in the recording: RecursionError" in caplog.text


@pytest.mark.parametrize("broken", ["without_secrets", "write"])
async def test_a_fault_of_the_recording_does_not_cost_a_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(f"perdure.activities.recordings.{broken}", Mock(side_effect=KeyError("content")))
    call_id = "call_0123456789abcdef_0"
    written = CallRecording(file=tmp_path / "a.json", asked=request_of_tool_call(conversation(), call_id, "look"))
    with caplog.at_level(logging.WARNING):
        message = ToolMessage(call_id=call_id, name="look", content="here")
        await written.keep(message, artifacts=[], ended_turn=False, seconds=1.0)
    assert "a call is missing in the recording: KeyError" in caplog.text


async def test_without_a_recording_a_call_costs_neither_a_look_at_the_store_nor_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("request_of_generation", "request_of_tool_call"):
        monkeypatch.setattr(f"perdure.activities.recordings.{name}", Mock(side_effect=AssertionError(name)))
    off = worker(cast(Store, None), tmp_path, "off")
    definition = changed(recording="")
    assert await off.answer(definition, PROMPT, Provider()) == ANSWER
    asks = CallTool(session="s", turn=1, step=1, call_id="c", definition="d", arguments="{}")
    assert await off.tool_call(definition, asks, "look") == CallRecording()


async def test_a_disk_that_takes_no_fixture_does_not_cost_the_answer(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "demo").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        assert await worker(store, tmp_path, "record").answer(AGENT, PROMPT, Provider()) == ANSWER
    assert "a call is missing in the recording" in caplog.text


async def test_two_workers_may_write_one_recording_at_once(store: Store, tmp_path: Path) -> None:
    """S-73: each file is whole at every moment, and the recording is the first one's."""
    workers = [worker(store, tmp_path, "record") for _ in range(16)]

    def write(recordings: Recordings) -> None:
        asyncio.run(recordings.open("demo", "tester"))
        asyncio.run(recordings.answer(AGENT, PROMPT, Provider()))
        asyncio.run(worker(store, tmp_path, "replay").answer(AGENT, PROMPT, Provider()))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, workers))
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and "store.db" not in path.name)
    assert (len(names), names[-1]) == (2, "recording.json")
    assert RecordingInfo.model_validate_json((tmp_path / "demo" / "recording.json").read_bytes()).agent == "tester"


async def test_a_recording_is_its_owners_alone(store: Store, tmp_path: Path) -> None:
    """It holds a conversation in plain text."""
    recordings = worker(store, tmp_path / "new", "record")
    before = os.umask(0o022)
    try:
        await recordings.open("demo", "tester")
        await recordings.answer(AGENT, PROMPT, Provider())
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in made} == {(True, 0o700), (False, 0o600)}


async def test_a_recording_is_one_agents(store: Store, tmp_path: Path) -> None:
    """Bad input: it names both, and the way out."""
    await worker(store, tmp_path, "record").open("demo", "writer")
    for mode in ("record", "replay"):
        with pytest.raises(RecordingError, match="made with agent 'writer', not 'coder'; name another recording"):
            await worker(store, tmp_path, mode).open("demo", "coder")
    await worker(store, tmp_path, "replay").open("demo", "writer")


async def test_a_recording_that_is_not_there_is_told_from_those_that_are(store: Store, tmp_path: Path) -> None:
    await worker(store, tmp_path, "record").open("demo", "writer")
    with pytest.raises(RecordingError, match=r"there is no recording 'deom' in .*; it has: demo"):
        await worker(store, tmp_path, "replay").open("deom", "writer")


def test_a_setting_that_cannot_be_used_is_named_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: cause and fix, and nothing of the library that found it."""
    monkeypatch.setenv("PERDURE_RECORDING_MODE", "record")
    wanted = "PERDURE_RECORDING_MODE='record': needs a folder; set PERDURE_RECORDINGS too"
    with pytest.raises(SettingsError, match=f"^{wanted}$"):
        load_settings()
