"""A run that was recorded is replayed in a fresh store, with no model and no tool behind it."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.agents.tool import Tool
from perdure.contracts.recordings import RecordingInfo
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House
from tests.workflow.agents_for_kill import agent as pays
from tests.workflow.killing import AGENTS, PAY, lines_of, read, result_of, worker
from tests.workflow.recording import recorded, recordings, replaying, told

pytestmark = pytest.mark.deep

TOLD = Script(
    replies=(
        call(("clock", {})),
        call(("clock", {})),
        call(("look", {"word": "tide"})),
        say("it is late"),
        say("as I said"),
    )
)


@dataclass
class Tools:
    """A clock that never says the same twice, a dictionary, and how often their bodies ran."""

    ran: list[str] = field(default_factory=list)

    def all(self) -> tuple[Tool[..., Any], ...]:
        @tool
        def clock() -> str:
            """What time it is."""
            self.ran.append("clock")
            return f"{len(self.ran)} o'clock"

        @tool
        def look(word: str) -> str:
            """Look a word up."""
            self.ran.append("look")
            return f"{word}: a noun"

        return clock, look


def agent(*tools: Tool[..., Any], **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "instructions": "Tell.", "tools": tools, **settings})


async def test_a_recorded_run_is_replayed_whole_without_a_single_call(house: House) -> None:
    """S-73: the same transcript, events, usage and output."""
    tools = Tools()
    first = await recorded(house, TOLD, agent(*tools.all()))
    assert len(tools.ran) == 3
    async with replaying(house, agent(*tools.all())) as again:
        second = await again.run()
        assert await told(again) == await told(house)
        events, originals = await again.events(), await house.events()
    assert {**second, "session": ""} == {**first, "session": ""}
    assert second["usage"]["input_tokens"] > 0
    assert len(tools.ran) == 3
    assert [line["type"] for line in events] == [line["type"] for line in originals]
    flags = [line["recorded"] for line in events if line["type"] in {"generation_end", "tool_end"}]
    assert (flags, [line["recorded"] for line in originals if "recorded" in line]) == ([True] * 7, [False] * 7)


async def test_equal_calls_keep_their_several_answers_in_their_order(house: House) -> None:
    """S-73: also those of one answer, which end in any order."""
    tools, script = Tools(), Script(replies=(*(call(*[("clock", {})] * 3),) * 2, say("late")))
    await recorded(house, script, agent(*tools.all()))
    async with replaying(house, agent(*tools.all())) as again:
        await again.run()
        assert await told(again) == await told(house)
    assert len(tools.ran) == 6


async def test_a_replay_is_neither_paid_nor_counted(house: House) -> None:
    await recorded(house, TOLD, agent(*Tools().all()))
    async with replaying(house, agent(*Tools().all())) as again:
        await again.run()
    labels = {"model": "openai/scripted", "kind": "input", "purpose": "generation"}
    tokens = {**labels, "agent": "tester", "tenant": ""}
    assert house.registry.get_sample_value("perdure_tokens_total", tokens)
    assert again.registry.get_sample_value("perdure_tokens_total", tokens) is None
    assert again.registry.get_sample_value("perdure_tool_calls_total", {"tool": "look", "outcome": "ok"}) is None
    assert again.registry.get_sample_value("perdure_steps_total", {"agent": "tester"}) == 4


@tool(name="look")
def look_closer(word: str, language: str = "en") -> str:
    """Look a word up."""
    raise AssertionError(word + language)


DRIFTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "prompt": ({}, {"prompt": "go away"}, 'message 1 (user) has "go away" at character 3, recorded was "go"'),
    "model": ({}, {"model": "openai/other"}, 'model is "openai/other", recorded was "openai/scripted"'),
    "system prompt": ({"instructions": "Tell me."}, {}, 'the system prompt has "Tell me." at character 5'),
    "tool's schema": ({"tools": (Tools().all()[0], look_closer)}, {}, "the tool 'look' has another schema"),
    "tools": ({"tools": Tools().all()[:1]}, {}, "the tool 'look' is gone"),
    "limit": ({"generate_params": {"max_tokens": 7}}, {}, "generate_params 'max_tokens' is 7, recorded was null"),
    "output's schema": (
        {"output_schema": {"type": "object"}},
        {},
        'output_schema is {"type": "object"}, recorded was null',
    ),
}


@pytest.mark.parametrize(("settings", "request_", "parts"), DRIFTS.values(), ids=DRIFTS.keys())
async def test_a_request_that_was_not_recorded_ends_the_turn_and_says_what_differs(
    house: House, settings: dict[str, Any], request_: dict[str, Any], parts: str
) -> None:
    """S-73: llm.fixture_missing, and no call goes out."""
    tools = Tools()
    await recorded(house, TOLD, agent(*tools.all()))
    async with (
        ScriptedProvider(TOLD) as provider,
        replaying(house, agent(**{"tools": tools.all(), **settings})) as again,
    ):
        again.use(provider)
        result = await again.run(**request_)
        assert provider.request_count == 0
    assert (result["stop_reason"], result["reason_code"], result["steps"]) == ("error", "llm.fixture_missing", 0)
    assert parts in result["error"]
    assert "(recording 'tester', request " in result["error"]
    assert len(tools.ran) == 3


async def test_where_a_request_is_sent_and_with_which_key_is_not_part_of_it(house: House) -> None:
    """S-73: and the key does not get into the folder."""
    house.environment.setenv("MINE", "key-of-mine-1234")
    async with ScriptedProvider(TOLD) as provider:
        sent = {"api_base": provider.url, "api_key": "${MINE}", "extra_headers": {"X-Who": "me-and-you"}}
        recordings(house, "record")
        async with house.worker(agent(*Tools().all(), generate_params=sent)):
            await house.run()
        assert provider.requests[0].headers["authorization"] == "Bearer key-of-mine-1234"
    async with replaying(house, agent(*Tools().all())) as again:
        assert (await again.run())["output"] == "it is late"
    assert not [found for found in ("key-of-mine-1234", "me-and-you") if found in everything_in(again)]


def everything_in(house: House) -> str:
    """Every name and every byte of the recordings."""
    folder = recordings(house, "replay")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return "\n".join([*(str(path.relative_to(folder)) for path in files), *(path.read_text() for path in files)])


@pytest.mark.parametrize("settings", [{}, {"on_tool_error": "feed_back"}], ids=["abort", "feed_back"])
async def test_a_tool_call_that_was_not_recorded_ends_the_turn_also_where_its_error_is_caught(
    house: House, settings: dict[str, Any]
) -> None:
    """S-73: tool.fixture_missing names the argument; the body does not run."""
    tools = Tools()
    clock, look = tools.all()
    using = agent(clock, look.with_(catch=True), **settings)
    await recorded(house, TOLD, using)
    for path in (recordings(house, "record") / "tester" / "llm").glob("*.json"):
        text = path.read_text()
        path.write_text(text.replace(r"{\"word\": \"tide\"}", r"{\"word\": \"time\"}"))
    async with replaying(house, using) as again:
        result = await again.run()
        (error,) = await again.events("tool_error")
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.fixture_missing")
    assert "step 3, tool look: " in result["error"]
    assert 'argument \'word\' is "time", recorded was "tide"' in result["error"]
    assert error["error"]["message"] == result["error"]
    assert len(tools.ran) == 3


async def test_calls_that_failed_are_not_recorded(house: House) -> None:
    """S-74: the retried call is in the recording once, as what it came to at last; its waits are not replayed."""
    flaky = Script(replies=(say("at last").after(faults.status(500), faults.status(429)),))
    retry = {"base": 0, "jitter": 0}
    await recorded(house, flaky, agent(retry=retry))
    assert len(await house.events("generation_retry")) == 2
    assert len(list(recordings(house, "record").rglob("llm/*.json"))) == 1
    async with replaying(house, agent(retry=retry)) as again:
        assert (await again.run())["output"] == "at last"
        assert await again.events("generation_retry") == []


async def test_a_run_that_failed_for_good_has_no_answer_to_replay(house: House) -> None:
    """S-74."""
    refused = Script(replies=(say("never").after(faults.status(401)),))
    assert (await recorded(house, refused, agent()))["reason_code"] == "llm.auth_error"
    async with replaying(house, agent()) as again:
        result = await again.run()
    assert (result["reason_code"], "no model call is recorded" in result["error"]) == ("llm.fixture_missing", True)


async def test_a_replay_goes_with_its_recording_and_stops_at_the_first_event_that_is_another(house: House) -> None:
    """S-74: the turns of a session share its recording; the events before the parting are those that were recorded."""
    using = agent(*Tools().all())
    recordings(house, "record")
    async with ScriptedProvider(TOLD) as provider, house.worker(using):
        house.use(provider)
        await house.run(recording="both")
        await house.run(prompt="again")
    assert [path.name for path in recordings(house, "record").iterdir()] == ["both"]
    async with replaying(house, using) as again:
        assert (await again.run(recording="both"))["stop_reason"] == "finished"
        result = await again.run(prompt="once more")
        replayed = await again.events()
    originals = await house.events()
    kinds = [line["type"] for line in replayed]
    parting = kinds.index("generation_error")
    assert kinds[:parting] == [line["type"] for line in originals][:parting]
    assert (originals[parting]["type"], replayed[parting]["step"]) == ("generation_content", 1)
    assert (
        'step 1, openai/scripted: no recorded answer fits this request: message 9 (user) has "once more"'
        in result["error"]
    )


async def test_what_a_failing_tool_did_to_its_turn_is_replayed(house: House) -> None:
    """S-73: the outcome may be an error."""

    @tool
    def break_down() -> str:
        msg = "out of order"
        raise RuntimeError(msg)

    first = await recorded(house, Script(replies=(call(("break_down", {})),)), agent(break_down))
    async with replaying(house, agent(break_down)) as again:
        second = await again.run()
    assert first["reason_code"] == "tool.execution_error"
    assert {**second, "session": ""} == {**first, "session": ""}


async def test_a_long_output_is_replayed_with_its_artifact(house: House) -> None:
    """S-26 S-73: the handle that the model reads is the session's own, and leads to the whole text."""

    @tool
    def read() -> str:
        return "a" * 50_000

    first = await recorded(house, Script(replies=(call(("read", {})), say("long"))), agent(read))
    async with replaying(house, agent(read)) as again:
        second = await again.run()
        (end,) = await again.events("tool_end")
        assert (await again.store.artifact(end["artifact"])).text == "a" * 50_000
    assert (second["output"], second["usage"]) == (first["output"], first["usage"])


async def test_no_secret_gets_into_a_recording_and_the_run_still_replays(house: House) -> None:
    """S-52 S-73: planted in arguments, in the result and the error that repeat them, and in the environment."""
    house.environment.setenv("SERVICE_TOKEN", "value-of-the-environment")

    @tool(masked=["pin"], catch=True)
    def login(password: str, pin: int, note: str) -> str:
        if note == "fail":
            msg = f"refused {password}, having seen {type(pin).__name__}"
            raise ValueError(msg)
        return f"welcome, {password}, with value-of-the-environment"

    secrets = ("tr0ub4dor-and-3", "42042042", "value-of-the-environment")
    asked: dict[str, JsonValue] = {"password": "tr0ub4dor-and-3", "pin": 42042042}
    script = Script(
        replies=(
            call(("login", {**asked, "note": "ok"}), ("login", {**asked, "note": "fail"})),
            say("it is value-of-the-environment"),
        )
    )
    first = await recorded(house, script, agent(login), prompt="use sk-live-0123456789")
    assert first["stop_reason"] == "finished"
    assert [secret for secret in secrets if secret in everything_in(house)] == []
    async with replaying(house, agent(login)) as again:
        second = await again.run(prompt="use sk-live-0123456789")
        assert await told(again) == await told(house)
    assert (second["stop_reason"], second["output"]) == ("finished", "it is ***")


async def test_an_answer_and_a_result_that_only_look_secret_are_replayed_as_they_were(house: House) -> None:
    """S-73: also where the answer has to be JSON and speaks of credentials."""
    result = 'found API_KEY=sk-example-0123456789 and {"password": "string"}'

    @tool
    def find(command: str) -> str:
        return result if command else ""

    answer = '{"has_credentials": true, "api_key": null, "password": 12345}'
    using = agent(find, output_schema={"required": ["has_credentials", "api_key"]})
    first = await recorded(house, Script(replies=(call(("find", {"command": "-u a:4f9a"})), say(answer))), using)
    async with replaying(house, using) as again:
        second = await again.run()
        assert await told(again) == await told(house)
    assert (second["stop_reason"], {**second, "session": ""}) == ("finished", {**first, "session": ""})
    assert [text in everything_in(house) for text in (json.dumps(result), "4f9a")] == [True, False]


async def test_the_name_of_a_fixture_is_the_hash_of_what_it_shows_and_not_of_when_it_was_made(house: House) -> None:
    """S-73: recorded_at does not change the hash; recording again replaces, and nothing is left lying about."""
    await recorded(house, TOLD, agent(*Tools().all()))
    folder = recordings(house, "record")
    before = {path.relative_to(folder): path.read_text() for path in folder.rglob("*.json")}
    house.session += "-second"
    await recorded(house, TOLD, agent(*Tools().all()))
    after = {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert after.keys() == before.keys()
    changed = [str(name) for name in after if after[name] != before[name]]
    assert len(changed) == len(after) - 1
    assert all({"request", "recorded_at", "seconds"} <= json.loads(after[Path(name)]).keys() for name in changed)
    assert len([name for name in changed if name.startswith("tester/tools/clock/")]) == 2


@pytest.mark.parametrize(
    ("mode", "request_", "error"),
    [
        ("off", {"recording": "demo"}, "this worker neither records nor replays; start the worker with --record DIR"),
        ("replay", {"recording": "demo"}, "recording 'demo' was made with agent 'writer', not 'tester'"),
        ("record", {"recording": "demo"}, "recording 'demo' was made with agent 'writer', not 'tester'"),
        ("replay", {}, "there is no recording 'tester' in "),
        ("replay", {"recording": "old"}, "recording 'old' has format 0, this release has 1; record it again"),
        ("record", {"recording": "stray"}, "stray is no recording: it has no readable recording.json"),
        ("replay", {"recording": "broken"}, "broken is no recording: it has no readable recording.json"),
    ],
)
async def test_a_recording_that_cannot_be_used_is_refused_before_the_turn_exists(
    house: House, mode: str, request_: dict[str, Any], error: str
) -> None:
    """Bad input: cause and fix."""
    folder = recordings(house, mode)
    for name, form, by in (("demo", 1, "writer"), ("old", 0, "tester")):
        (folder / name).mkdir(parents=True)
        info = RecordingInfo.model_validate({"format": form, "agent": by, "created_at": "2026-01-01T00:00:00Z"})
        (folder / name / "recording.json").write_text(info.model_dump_json())
    (folder / "stray").mkdir()
    (folder / "stray" / "notes.txt").touch()
    (folder / "broken").mkdir()
    (folder / "broken" / "recording.json").write_text("{")
    async with house.worker(agent()):
        result = await house.run(**request_)
    assert (result["stop_reason"], result["reason_code"], result["turn"]) == ("error", "request.invalid", None)
    assert error in result["error"]


async def test_a_recording_is_whole_although_its_worker_was_killed(house: House) -> None:
    """S-73: right after a result was stored; the next attempt records what the store has."""
    lines = lines_of(house)
    settings = {"PERDURE_RECORDINGS": str(recordings(house, "record")), "PERDURE_RECORDING_MODE": "record"}
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        dying = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER="finish_call", **settings)
        handle = await house.start()
        assert await asyncio.to_thread(dying.process.wait, WAIT_SECONDS) == -9
        await worker(house, **settings)
        first = await result_of(handle)
    assert (first["stop_reason"], len(read(lines))) == ("finished", 1)
    async with replaying(house, pays) as again:
        second = await again.run()
    assert {**second, "session": ""} == {**first, "session": ""}
    assert len(read(lines)) == 1
