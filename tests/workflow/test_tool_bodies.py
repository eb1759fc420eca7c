"""How the bodies of tools run: beside each other, within their time, and with outputs of any size."""

import asyncio
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.activities import heartbeat
from perdure.agents.context import ToolContext
from perdure.agents.tool import Tool
from perdure.contracts.values import JsonValue
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.memory import Run
from tests.workflow.bodies import Body, happened
from tests.workflow.traces import visible

DONE = say("done")
SHORT = timedelta(milliseconds=200)


def agent(*tools: Tool[..., Any], **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


async def played(run: Run, using: Agent, *answers: Reply) -> tuple[Mapping[str, Any], str]:
    """The result of a turn, and the message that the model read last."""
    result = await run(using, *answers)
    return result, str(run.requests[-1].request.messages[-1]["content"])


@pytest.mark.parametrize("kinds", [("sync", "sync", "sync"), ("async", "async", "async"), ("sync", "async", "sync")])
async def test_the_calls_of_one_answer_run_at_the_same_time(run: Run, kinds: tuple[str, ...]) -> None:
    """S-24: none of them could end if they ran one after another."""
    all_there = threading.Barrier(3, timeout=WAIT_SECONDS)

    @tool(name="sync")
    def meet_sync() -> str:
        all_there.wait()
        return "met"

    @tool(name="async")
    async def meet_async() -> str:
        await asyncio.to_thread(all_there.wait)
        return "met"

    result, _ = await played(run, agent(meet_sync, meet_async), call(*((kind, {}) for kind in kinds)), DONE)
    assert result["stop_reason"] == "finished"
    assert [line["result"] for line in await run.events("tool_end")] == ["met"] * 3


async def test_an_async_tool_over_its_time_out_is_cancelled_and_coded(run: Run) -> None:
    """S-25: tool.timeout; the body is stopped."""
    body = Body()

    @tool(timeout=SHORT)
    async def slow() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            body.stopped.set()
        return "never"

    result, _ = await played(run, agent(slow), call(("slow", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.timeout")
    assert "slow ran longer than its time-out of 0.2 s; its effect is unknown" in result["error"]
    await happened(body.stopped)


async def test_a_blocking_tool_over_its_time_out_is_told_to_stop_and_its_outcome_is_dropped(house: House) -> None:
    """S-25: the model is told when the author catches time-outs; a metric counts what runs on."""
    body = Body()

    @tool(timeout=SHORT, catch=[TimeoutError])
    def slow(context: ToolContext) -> str:
        context.wait(WAIT_SECONDS)
        body.stopped.set()
        return "too late"

    script = Script(replies=(call(("slow", {})), DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent(slow)):
        house.use(provider)
        result = await house.run()
        read = str(provider.requests[-1].request.messages[-1]["content"])
    assert result["stop_reason"] == "finished"
    assert "tool.timeout" in read
    await happened(body.stopped)
    assert [line["error"]["code"] for line in await house.events("tool_end")] == ["tool.timeout"]
    assert house.registry.get_sample_value("perdure_tools_abandoned_total", {"tool": "slow"}) == 1


@pytest.mark.parametrize(
    ("returned", "raised", "code"),
    [
        (None, ConnectionRefusedError("refused"), "tool.network_error"),
        (None, ValueError("wrong"), "tool.execution_error"),
        (None, OSError("disk"), "tool.execution_error"),
        (object(), None, "tool.invalid_output"),
        ({"f": len}, None, "tool.invalid_output"),
    ],
)
async def test_each_kind_of_failure_has_its_code(run: Run, returned: Any, raised: Exception | None, code: str) -> None:
    """S-25."""

    @tool
    def work() -> Any:
        if raised is not None:
            raise raised
        return returned

    result, _ = await played(run, agent(work), call(("work", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ("error", code)


def written(characters: int, **settings: Any) -> Agent:
    """An agent with a tool that writes so many characters."""

    @tool(**settings)
    def write() -> str:
        return "a" * (characters // 2) + "z" * (characters - characters // 2)

    return agent(write)


async def test_an_output_over_30_000_characters_is_stored_elsewhere_and_the_model_reads_both_ends(
    run: Run,
) -> None:
    """S-26: head, tail and a handle by which any worker can read all of it."""
    _, read = await played(run, written(100_000), call(("write", {})), DONE)
    (end,) = await run.events("tool_end")
    assert read.startswith("a" * 15_000 + "\n\n…")
    assert read.endswith("…\n\n" + "z" * 15_000)
    assert f"70,000 characters (0 lines) left out; the whole output is artifact {end['artifact']}" in read
    assert (await run.store.artifact(end["artifact"])).text == "a" * 50_000 + "z" * 50_000


async def test_an_output_of_30_000_characters_stays_whole(run: Run) -> None:
    """S-26: the edge."""
    _, read = await played(run, written(30_000), call(("write", {})), DONE)
    assert len(read) == 30_000
    assert [line["artifact"] for line in await run.events("tool_end")] == [None]


async def test_offload_off_keeps_an_output_of_any_size(run: Run) -> None:
    """S-26: the history holds a preview only."""
    _, read = await played(run, written(3_000_000, offload=False), call(("write", {})), DONE)
    assert len(read) == 3_000_000


async def test_truncate_keeps_no_more_than_it_says(run: Run) -> None:
    """S-26: and no artifact."""
    _, read = await played(run, written(100_000, truncate=500), call(("write", {})), DONE)
    assert (len(read), read[0], read[-1]) == (500, "a", "z")
    assert [line["artifact"] for line in await run.events("tool_end")] == [None]


async def test_a_tool_that_blocks_the_loop_of_async_tools_stops_no_heartbeat(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-25: neither its own nor that of the one it keeps from running; a silent activity would be run again."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    body = Body()

    @tool
    async def rude() -> str:
        body.started.set()
        body.released.wait(WAIT_SECONDS)  # blocks the event loop
        return "rude"

    @tool
    async def polite() -> str:
        return "polite"

    script = Script(replies=(call(("rude", {}), ("polite", {})), DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent(rude, polite)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)

        async def both_beat() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            beats = {running.activity_type.name for running in pending if running.HasField("last_heartbeat_time")}
            return "rude" in beats and beats >= {running.activity_type.name for running in pending}

        await eventually(both_beat)
        body.released.set()
        assert (await handle.result())["stop_reason"] == "finished"
    assert len(await house.events("tool_start")) == 2


SECRETS: dict[str, JsonValue] = {
    "password": "tr0ub4dor-and-3",
    "pin": "0420-1337",
    "nested": {"api_key": "k-5up3rs3cr3t"},
}


@pytest.mark.parametrize("policy", ["abort", "feed_back"])
@pytest.mark.parametrize("broken", [False, True])
async def test_a_masked_argument_reaches_the_body_and_nothing_else(
    house: House, caplog: pytest.LogCaptureFixture, policy: str, broken: bool
) -> None:
    """S-52: planted in arguments, in the exception that repeats them, in an output, and in broken arguments."""
    seen: list[Any] = []

    @tool(masked=["pin"])
    def login(password: str, pin: str, nested: dict[str, str]) -> str:
        seen.append((password, pin, nested))
        msg = f"refused {password} and {pin} and {nested}"
        raise ValueError(msg)

    @tool
    def environment() -> str:
        return "OPENAI_API_KEY=sk-scripted-0123456789"

    text = '{"password": "tr0ub4dor-and-3", "pin": "0420-1337", "nested": {"api_key": "k-5up3rs3cr3t"'
    asked = call(("login", text if broken else SECRETS), ("environment", {}))
    using = agent(login, environment, on_tool_error=policy)
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        everything = await visible(house, handle, caplog)
    assert seen == ([] if broken else [("tr0ub4dor-and-3", "0420-1337", {"api_key": "k-5up3rs3cr3t"})])
    found = [
        secret
        for secret in ("tr0ub4dor-and-3", "0420-1337", "k-5up3rs3cr3t", "sk-scripted-0123456789")
        if secret in everything
    ]
    assert found == []


@pytest.mark.parametrize(
    ("policy", "ends"), [("abort", ("error", "tool.invalid_output")), ("feed_back", ("finished", None))]
)
async def test_a_result_outside_its_annotation_is_bad_output(run: Run, policy: str, ends: tuple[str, str]) -> None:
    """S-25: it ends the turn or the model reads it, as the agent says; the body ran once, the value is not shown."""
    ran: list[int] = []

    @tool
    def weigh() -> list[float]:
        ran.append(1)
        return ["s3cret"]  # type: ignore[list-item]

    result, read = await played(run, agent(weigh, on_tool_error=policy), call(("weigh", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ends
    assert ran == [1]
    said = (
        "the function returned a value that does not fit its annotation list[float]: 0: Input should be a valid number"
    )
    assert said in (result["error"] if policy == "abort" else read)
    assert "s3cret" not in str(await run.events())
