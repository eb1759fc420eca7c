"""What a tool gives beside its text, on a real server: progress, images and files, and the wish that the turn ends."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Compaction, File, Image, StdioServerConfig, ToolContext, read_output, tool
from perdure.activities import heartbeat
from perdure.activities.toolbox import runner
from perdure.agents.files import MAX_BYTES
from perdure.agents.tool import Tool
from perdure.llm.compaction import INSTRUCTIONS
from perdure.llm.tool_output import OFFLOAD_CHARACTERS
from perdure.store import NotFoundError
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from perdure.testing.script import ChatRequest
from tests.house import WAIT_SECONDS, House, eventually
from tests.memory import Run
from tests.pictures import PNG
from tests.workflow.agents_with_outputs import LONG
from tests.workflow.bodies import Body, happened
from tests.workflow.killing import result_of

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_with_outputs"
DONE = say("done")
PEER = Path(__file__).parent.parent / "mcp_peer.py"


def agent(*tools: Tool[..., Any], **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


def script(*answers: Reply | Callable[[ChatRequest], Reply]) -> Callable[[ChatRequest], Reply]:
    """These answers in order; one that is a function looks at what the model reads."""

    def reply(request: ChatRequest) -> Reply:
        answer = answers[request.index]
        return answer if isinstance(answer, Reply) else answer(request)

    return reply


async def played(
    run: Run, using: Agent, *answers: Reply | Callable[[ChatRequest], Reply]
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The result of a turn, and the tool messages that the model read last."""
    result = await run(using, script=script(*answers))
    return result, results(run.requests[-1].request)


def results(request: ChatRequest) -> list[str]:
    """The results that a model call reads."""
    return [str(message["content"]) for message in request.messages if message["role"] == "tool"]


def numbers(lines: Sequence[Mapping[str, Any]]) -> list[tuple[float, float | None, str]]:
    return [(line["progress"], line["total"], line["message"]) for line in lines]


def is_gapless(lines: Sequence[Mapping[str, Any]]) -> bool:
    return [line["seq"] for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_progress_is_in_the_event_log_and_at_the_pending_activity_while_the_body_runs(
    house: House, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """And the last report is written with the result, before it."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.05)
    body = Body()

    @tool(name="dig")
    def dig_sync(context: ToolContext) -> str:
        context.report_progress(1, 3, "one\nhole")
        assert body.released.wait(WAIT_SECONDS)
        context.report_progress(3, 3)
        return "dug"

    @tool(name="dig")
    async def dig_async(context: ToolContext) -> str:
        context.report_progress(1, 3, "one\nhole")
        assert await asyncio.to_thread(body.released.wait, WAIT_SECONDS)
        context.report_progress(3, 3)
        return "dug"

    using = agent(dig_sync if kind == "sync" else dig_async)
    async with ScriptedProvider(Script(replies=(call(("dig", {})), DONE))) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start()
        (first,) = await house.wait_for_event("tool_progress")
        assert (first["tool"], first["step"]) == ("dig", 1)
        await eventually(lambda: _pending_note(handle, "1 of 3 one hole"))
        body.released.set()
        assert (await handle.result())["stop_reason"] == "finished"
    events = await house.events()
    assert numbers([line for line in events if line["type"] == "tool_progress"]) == [(1, 3, "one hole"), (3, 3, "")]
    of_call = [line["type"] for line in events if line["type"].startswith("tool_")]
    assert of_call == ["tool_start", "tool_progress", "tool_progress", "tool_end", "tool_step"]
    assert is_gapless(events)


async def _pending_note(handle: Any, text: str) -> bool:
    pending = (await handle.describe()).raw_description.pending_activities
    return any(text in str(payload.data) for activity in pending for payload in activity.heartbeat_details.payloads)


async def test_a_thousand_reports_are_two_events_and_the_last_one_counts(house: House) -> None:
    """At most one a second for each call, and one with its result."""

    @tool
    def count(context: ToolContext) -> str:
        for number in range(1_000):
            context.report_progress(number, message="counting")
        return "counted"

    async with ScriptedProvider(Script(replies=(call(("count", {})), DONE))) as provider, house.worker(agent(count)):
        house.use(provider)
        await house.run()
    reported = numbers(await house.events("tool_progress"))
    assert len(reported) <= 2
    assert reported[-1] == (999, None, "counting")


@pytest.mark.parametrize("report", [("a lot",), (float("nan"),), (1, float("inf"))])
async def test_a_report_that_is_no_number_fails_nothing(run: Run, report: tuple[Any, ...]) -> None:
    """It is left out, and the worker's log says so."""

    @tool
    def work(context: ToolContext) -> str:
        context.report_progress(*report)
        return "worked"

    _, read = await played(run, agent(work), call(("work", {})), DONE)
    assert read == ["worked"]
    assert await run.events("tool_progress") == []


async def test_nothing_is_written_after_the_end_of_a_call_and_no_secret_at_any_time(house: House) -> None:
    """S-52: of a blocking body that ran out of its time and reports on; what it said before stands before the end."""
    body = Body()

    @tool(timeout=timedelta(milliseconds=300), catch=[TimeoutError], masked=["pin"])
    def slow(pin: str, context: ToolContext) -> str:
        context.report_progress(1, message=f"with {pin}")
        assert body.released.wait(WAIT_SECONDS)
        context.report_progress(2, message="too late")
        body.stopped.set()
        return "never"

    asked = call(("slow", {"pin": "tr0ub4dor-and-3"}))
    async with ScriptedProvider(Script(replies=(asked, DONE, DONE))) as provider, house.worker(agent(slow)):
        house.use(provider)
        assert (await house.run())["stop_reason"] == "finished"
        body.released.set()
        await happened(body.stopped)
        assert (await house.run(prompt="again"))["stop_reason"] == "finished"
    events = await house.events()
    assert numbers([line for line in events if line["type"] == "tool_progress"]) == [(1, None, "with ***")]
    assert is_gapless(events)


async def test_the_progress_of_a_servers_tool_takes_the_same_way(house: House) -> None:
    server = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER),))
    async with (
        ScriptedProvider(Script(replies=(call(("peer__progress", {})), DONE))) as provider,
        house.worker(agent(mcp_servers=[server])),
    ):
        house.use(provider)
        await house.run()
    reported = await house.events("tool_progress")
    assert numbers(reported)[-1] == (2, 2, "half a step")
    assert {line["tool"] for line in reported} == {"peer__progress"}


async def test_images_and_files_become_artifacts_and_the_model_reads_a_line_for_each(house: House) -> None:
    """Byte for byte, named by the event, and readable by a tool of the same session."""

    @tool
    def draw() -> list[object]:
        return ["as you wished", Image(PNG), File("data.csv", "a,b\n", "text/csv")]

    @tool
    def look(handle: str, context: ToolContext) -> str:
        file = context.read_artifact(handle)
        return f"{file.media_type}: {file.data!r}"

    def ask(request: ChatRequest) -> Reply:
        (read,) = results(request)
        return call(
            *(("look", {"handle": handle}) for handle in re.findall(r"art_\w+", read)), ("look", {"handle": "x"})
        )

    async with ScriptedProvider(script(call(("draw", {})), ask, DONE)) as provider, house.worker(agent(draw, look)):
        house.use(provider)
        await house.run()
        read = results(provider.requests[-1].request)
    (end, *_) = await house.events("tool_end")
    assert [(file["media_type"], file.get("name")) for file in end["attachments"]] == [
        ("image/png", None),
        ("text/csv", "data.csv"),
    ]
    image, table = (file["artifact"] for file in end["attachments"])
    assert read[0].splitlines() == [
        "as you wished",
        f"[image, image/png, {len(PNG)} bytes: artifact {image}]",
        f"[file data.csv, text/csv, 4 bytes: artifact {table}]",
    ]
    assert end["artifact"] is None
    assert read[1:3] == [f"image/png: {PNG!r}", "text/csv: b'a,b\\n'"]
    assert ("tool.invalid_input" in read[3], "this session has no artifact 'x'" in read[3]) == (True, True)
    assert (await house.client.artifact(house.session, image)).data == PNG


async def test_an_image_over_the_limit_is_an_error_and_nothing_of_it_is_stored(run: Run) -> None:
    """S-25: tool.invalid_output."""

    @tool
    def draw() -> list[object]:
        return [Image(PNG), Image(bytes(MAX_BYTES + 1))]

    result, _ = await played(run, agent(draw), call(("draw", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.invalid_output")
    assert "image has more than 10,000,000 bytes, the most an artifact may have" in result["error"]
    (failed,) = await run.events("tool_error")
    with pytest.raises(NotFoundError):
        await run.store.artifact(f"art_{failed['call_id']}_1")


async def test_a_tool_may_ask_the_turn_to_end_and_all_results_of_its_answer_are_kept(run: Run) -> None:
    """S-30: finished, with its reason, in the result, the last event and the store; the model is not asked again."""

    @tool
    def ship(context: ToolContext) -> str:
        context.stop_turn("the  build is out")
        context.stop_turn("only the first reason counts")
        return "shipped"

    @tool
    async def note() -> str:
        return "noted"

    using, asked = agent(ship, note), call(("note", {}), ("ship", {}), ("note", {}), text="on it")
    result = await run(using, asked, say("on we go"))
    assert len(run.requests) == 1
    assert (await run(using, asked, say("on we go"), prompt="and now?"))["output"] == "on we go"
    assert results(run.requests[-1].request) == ["noted", "shipped", "noted"]
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "ship: the build is out")
    assert (result["output"], result["steps"], result["error"]) == ("on it", 1, None)
    first, second = await run.events("agent_end")
    assert (first["stopped_by"], second["stopped_by"]) == ("ship: the build is out", None)
    stored = (await run.store.turn(run.session, 1)).result
    assert stored is not None
    assert stored.stopped_by == "ship: the build is out"


async def test_a_call_that_aborts_wins_over_one_that_asks_the_turn_to_end(run: Run) -> None:
    """S-20 S-30."""

    @tool
    def ship(context: ToolContext) -> str:
        context.stop_turn("the build is out")
        return "shipped"

    @tool
    def fail() -> str:
        raise ArithmeticError

    result, _ = await played(run, agent(ship, fail), call(("ship", {}), ("fail", {})), DONE)
    assert (result["stop_reason"], result["stopped_by"]) == ("error", None)


async def test_a_call_that_fails_asks_for_nothing(run: Run) -> None:
    """S-30: its result is an error, which the model has to read."""

    @tool(catch=True)
    def ship(context: ToolContext) -> str:
        context.stop_turn("the build is out")
        raise ValueError("or not")

    result, _ = await played(run, agent(ship), call(("ship", {})), DONE)
    assert (result["stop_reason"], result["output"], result["stopped_by"]) == ("finished", "done", None)


async def test_a_reason_shows_no_secret(run: Run) -> None:
    """S-52."""

    @tool(masked=["pin"])
    def ship(pin: str, context: ToolContext) -> str:
        context.stop_turn(f"shipped with {pin}")
        return "shipped"

    result, _ = await played(run, agent(ship), call(("ship", {"pin": "tr0ub4dor-and-3"})), DONE)
    assert result["stopped_by"] == "ship: shipped with ***"


async def test_a_stop_that_a_lost_worker_recorded_still_counts(house: House) -> None:
    """S-30 S-80: the second attempt gives the recorded result."""
    async with ScriptedProvider(Script(replies=(call(("hand_over", {})), DONE))) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER="finish_call")
        handle = await house.start()
        assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -9
        await house.spawn_worker(AGENTS).polling()
        result = await result_of(handle)
        assert provider.request_count == 1
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "hand_over: a person goes on")


async def test_the_model_reads_a_long_output_to_its_end_also_on_another_worker(house: House) -> None:
    """S-26: part by part as the notes say, and the parts are the whole."""
    async with ScriptedProvider(script(call(("write", {})), *[read_on] * 9)) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS)
        await first.polling()
        handle = await house.start()
        await house.wait_for_event("tool_end")
        first.kill()
        await house.spawn_worker(AGENTS).polling()
        assert (await result_of(handle))["stop_reason"] == "finished"
        cut, *parts = results(provider.requests[-1].request)
    assert "(read on with read_output, start=15000) …" in cut
    assert cut[:15_000] + "".join(part.partition("\n")[2] for part in parts) == LONG
    assert parts[-1].startswith(f"[characters 190,000 to {len(LONG):,} of {len(LONG):,} of art_")
    assert all(len(part) <= OFFLOAD_CHARACTERS for part in parts)
    assert [line["artifact"] is None for line in await house.events("tool_end")] == [False] + [True] * len(parts)


def read_on(request: ChatRequest) -> Reply:
    """Read on where the last note says."""
    *_, last = results(request)
    handle, start = re.findall(r"art_\w+", last)[0], re.findall(r"start=(\d+)", last)
    return call(("read_output", {"handle": handle, "start": int(start[-1])})) if start else DONE


async def test_a_long_output_of_a_server_is_read_on_after_a_compaction_and_by_no_other_session(house: House) -> None:
    """S-26 S-43: the summary has the handle, and the store the text."""
    handles: list[str] = []

    def answer(request: ChatRequest) -> Reply:
        if str(request.messages[0].get("content")).startswith(INSTRUCTIONS[:50]):
            return say("<summary>There was a long output.</summary>")
        if request.messages[-1]["role"] == "tool":
            return DONE
        if not handles:
            return call(("peer__big", {"size": 40_000}))
        return call(("read_output", {"handle": handles[0], "start": 39_990}))

    server = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER),))
    using = agent(read_output, mcp_servers=[server], compaction=Compaction(keep=2))
    async with ScriptedProvider(answer) as provider, house.worker(using):
        house.use(provider)
        await house.run()
        (end,) = await house.events("tool_end")
        handles.append(end["artifact"])
        assert (await (await house.client.compact(house.session)).result()).stop_reason == "finished"
        await (await house.client.start("tester", "what was its end?", session=house.session)).result()
        *_, read = results(provider.requests[-1].request)
        other = replace(house, session=f"{house.session}-other")
        assert (await other.run())["stop_reason"] == "finished"
        (refused,) = results(provider.requests[-1].request)
    assert "compaction_event" in {line["type"] for line in await house.events()}
    assert read == f"[characters 39,990 to 40,000 of 40,000 of {handles[0]}; this is its end]\n{'x' * 10}"
    error = json.loads(refused)["error"]
    assert error["code"] == "tool.invalid_input"
    assert error["message"].startswith(f"this session has no artifact {handles[0]!r}; a handle stands in the output")
