"""An error row says where the failure was, then what happened: on the terminal as in the structured events, once."""

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent, Budgets, tool
from perdure.cli.live import Printer
from perdure.contracts.events import Envelope
from perdure.contracts.values import JsonValue
from perdure.store import StoreError
from perdure.testing import Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.workflow.bodies import Body, happened

pytestmark = pytest.mark.deep

DONE = say("done")
REFUSED_KEY = faults.error(401, "Incorrect API key provided", name="invalid_api_key")
NAMES = ("agent_error", "AgentError", "errorRun", "stopRunByError")


@tool
def work() -> str:
    """Break."""
    msg = "it broke\nin two"
    raise ValueError(msg)


@tool
def fine() -> str:
    """Work."""
    return "fine"


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": (work, fine), **settings})


async def perdure(*args: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a command."""
    command = [sys.executable, "-m", "perdure.cli", *args]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def rows(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Title and body of each error row."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("✗ "):
            found.append((line[2:], []))
        elif line.startswith("  ") and found:
            found[-1][1].append(line[2:])
    return found


async def shown_everywhere(house: House, titles: list[str]) -> dict[str, JsonValue]:
    """The error that ended the first turn, once each view has shown it as the last of rows with these titles.

    The title of a tool's own exception has its class.
    """
    (event,) = await house.events("agent_error")
    error: dict[str, JsonValue] = event["error"]
    heard: list[Envelope] = []
    turn = await house.client.attach(house.session, 1)
    await turn.listen(heard.append, types=["errorRun"])
    assert [envelope.line() for envelope in heard] == [event]
    code, lines = await perdure("export", house.session, "--format", "events", "--type", NAMES[-1])
    assert (code, [json.loads(line) for line in lines]) == (0, [event])

    printer = Printer(as_json=False)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        await turn.listen(printer.event)
    lines = printed.getvalue().splitlines()
    body = str(error["message"]).splitlines()
    assert [title for title, _ in rows(lines)] == titles
    assert rows(lines)[-1] == (titles[-1], body)
    assert lines.count(f"  {body[0]}") == 1
    assert error["title"] == titles[-1].partition(" · ")[0]
    return error


async def ended(house: House, using: Agent, *replies: Reply) -> None:
    async with ScriptedProvider(Script(replies=replies, repeat=True)) as provider, house.worker(using):
        house.use(provider)
        await house.run()


async def test_the_error_is_found_by_its_name_in_what_is_printed(house: House) -> None:
    """S-50: as ``jq 'select(.type == "errorRun")'`` does, by each preset's name, and by ours without."""
    await ended(house, agent(), DONE.after(REFUSED_KEY))
    (error,) = await house.events("agent_error")
    for names, error_name, end_name in (
        ("perstack", "errorRun", "agent_end"),
        ("dreadnode", "AgentError", "AgentEnd"),
        ("perdure", "agent_error", "agent_end"),
    ):
        code, lines = await perdure("follow", house.session, "--json", "--names", names)
        printed = [json.loads(line) for line in lines]
        assert (code, printed[-1]["type"]) == (1, end_name)
        (selected,) = [line for line in printed if line["type"] == error_name]
        assert selected == {**error, "type": error_name, "replayed": True}
        _, lines = await perdure("follow", house.session, "--json", "--names", names, "--type", error_name)
        assert [json.loads(line) for line in lines] == [selected]


async def test_a_failure_of_the_model_is_a_row_titled_generation_and_a_refused_key_says_what_to_do(
    house: House,
) -> None:
    """S-51 S-50: the event is found under each of its names."""
    await ended(house, agent(), DONE.after(REFUSED_KEY))
    error = await shown_everywhere(house, ["generation"])
    assert error["code"] == "llm.auth_error"
    assert "set a valid one in the worker's environment and start it again" in str(error["message"])
    found = [await perdure("follow", house.session, "--json", "--type", name) for name in NAMES]
    assert found == [found[0]] * len(NAMES)
    code, (line,) = found[0]
    assert (code, json.loads(line)["type"], json.loads(line)["error"]) == (1, "agent_error", error)


async def test_a_failure_of_a_tool_is_a_row_titled_with_the_tool(house: House) -> None:
    """S-51 S-20: the tool's event and the turn's error are one fact, shown once beside what its siblings did."""
    await ended(house, agent(), call(("fine", {}), ("work", {})))
    error = await shown_everywhere(house, ["work · ValueError"])
    assert [line["error"] for line in await house.events("tool_error")] == [error]
    assert str(error["message"]).startswith("step 1, tool work: ValueError: it broke\nin two; it ended the turn")


async def test_two_tools_that_fail_in_one_answer_are_two_rows(house: House) -> None:
    """S-51: and the turn's error, which is that of the first, is none besides, whichever failed last."""

    @tool
    def other() -> str:
        raise KeyError

    await ended(house, agent(tools=(work, other)), call(("work", {}), ("other", {})))
    (event,) = await house.events("agent_error")
    _, lines = await perdure("follow", house.session)
    assert event["error"]["title"] == "work"
    assert sorted(title for title, _ in rows(lines)) == ["other · KeyError", "work · ValueError"]


async def test_too_many_failures_in_a_row_are_a_row_titled_agent(house: House) -> None:
    """S-51: each failure is the tool's, the limit is the agent's."""
    await ended(house, agent(on_tool_error="feed_back"), call(("work", {})))
    error = await shown_everywhere(house, [*["work · ValueError"] * 10, "agent · ValueError"])
    assert str(error["message"]).startswith("10 tool errors in a row; the last one, of work: it broke")


async def test_a_budget_that_is_used_up_is_a_row_titled_agent(house: House) -> None:
    """S-51: the agent's own rule ends the turn."""
    await ended(house, agent(budgets=Budgets(llm_calls=1)), call(("fine", {})))
    assert (await shown_everywhere(house, ["agent"]))["code"] == "budget.llm_calls_exhausted"


async def test_a_budget_of_tool_calls_names_the_call_that_did_not_run_and_then_the_agents_rule(house: House) -> None:
    """S-51."""
    await ended(house, agent(budgets=Budgets(tool_calls=1)), call(("fine", {}), ("fine", {})))
    assert (await shown_everywhere(house, ["fine", "agent"]))["code"] == "budget.tool_calls_exhausted"


async def test_a_store_that_refuses_is_a_row_titled_runtime(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-51."""

    async def refuse(*_: Any) -> None:
        msg = "the store refused a statement: too big"
        raise StoreError(msg)

    monkeypatch.setattr(house.store, "finish_generation", refuse)
    await ended(house, agent(), DONE)
    told = await shown_everywhere(house, ["runtime"])
    assert told["code"] == "runtime.store_refused"
    assert "step 1, openai/scripted: the answer could not be stored: the store refused" in str(told["message"])
    assert f"perdure resume {house.session}" in str(told["message"])


async def test_a_turn_whose_workflow_was_terminated_has_a_row_titled_runtime(house: House) -> None:
    """S-51: written when the next turn opens."""
    body = Body()
    script = Script(replies=(call(("held", {})), DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent(tools=(body.held(),))):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await handle.terminate("by hand")
        body.released.set()
        await house.run()
    assert (await shown_everywhere(house, ["runtime"]))["code"] == "runtime.turn_closed"


async def test_a_request_that_never_became_a_turn_is_one_line_and_has_no_events(house: House) -> None:
    """S-51: there is no session, so there is no log that a row could stand in."""
    async with house.worker(agent()):
        result = await house.run(agent="nobody")
        await house.start(agent="nobody")
        turn = await house.client.attach(house.session)
        assert [envelope async for envelope in turn.events()] == []
    assert (result["turn"], result["reason_code"]) == (None, "request.unknown_agent")
    assert result["error"] == "no worker that polls has an agent 'nobody'; this worker has: tester"
