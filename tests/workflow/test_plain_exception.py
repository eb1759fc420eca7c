"""An exception that no table knows is called by its class, wherever somebody looks for the reason."""

import asyncio
import json

import pytest
from click.testing import CliRunner
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, RetryPolicy, hook, tool
from perdure.activities.models.conversations import Conversations
from perdure.cli.main import cli
from perdure.contracts.events import Event
from perdure.testing import Script, ScriptedProvider, call, say
from perdure.workflows import options
from tests.house import House


async def test_a_bug_ends_the_turn_as_exception_and_its_class(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-69: in the result, the log of events and the search; a worker that is mended would have gone on meanwhile."""

    async def bug(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Conversations, "read", bug)
    monkeypatch.setattr(options, "LOST_WORKER_MARGIN", 1)
    agent = Agent(name="tester", model="openai/scripted", retry=RetryPolicy(max_retries=0))
    async with (
        ScriptedProvider(lambda _: say("never")) as provider,
        house.worker(agent, runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "exception.ZeroDivisionError")
    (error,) = await house.events("agent_error")
    assert (error["error"]["code"], error["error"]["title"]) == ("exception.ZeroDivisionError", "generation")
    (found,) = await house.client.sessions(reason_code="exception.ZeroDivisionError")
    assert found[0].session == house.session
    assert result["exception"] == "exception.ZeroDivisionError"
    assert provider.request_count == 0


class OddError(Exception):
    """An exception of the agent's own module."""


@tool
def pay(amount: int) -> str:
    """Pay."""
    raise OddError(amount)


@hook("generation_step")
def watch(_: Event) -> None:
    """Look at each step."""
    raise OddError


async def found(house: House, code: str) -> list[str]:
    """The sessions that the store, the command line and the server find by a code."""
    stored = [last.session for _, last in await house.client.sessions(reason_code=code)]
    listed = await asyncio.to_thread(CliRunner().invoke, cli, ["list", "--reason-code", code, "--json"])
    assert [json.loads(line)["session"] for line in listed.stdout.splitlines()] == stored
    query = f'WorkflowId = "{house.session}" AND PerdureException = "{code}"'
    async with asyncio.timeout(120):
        while not [execution async for execution in house.client.temporal.list_workflows(query)] and stored:
            await asyncio.sleep(0.1)
    return stored


@pytest.mark.parametrize(("kind", "code"), [("tool", "tool.execution_error"), ("hook", "runtime.hook_failed")])
async def test_a_plain_exception_of_a_tool_or_a_hook_has_its_class_as_a_second_code(
    house: House, kind: str, code: str
) -> None:
    """S-69: in the result, the events, the search of the store and of the server, and in the list."""
    calls = [call(("pay", {"amount": 1}))] if kind == "tool" else []
    agent = Agent(
        name="tester",
        model="openai/scripted",
        tools=[pay] if kind == "tool" else [],
        hooks=[watch] if kind == "hook" else [],
    )
    async with ScriptedProvider(Script(replies=(*calls, say("done")))) as provider, house.worker(agent):
        house.use(provider)
        result = await house.run()
    assert (result["reason_code"], result["exception"]) == (code, "exception.OddError")
    (error,) = await house.events("agent_error")
    assert (error["error"]["code"], error["error"]["exception"]) == (code, "exception.OddError")
    assert await found(house, "exception.OddError") == [house.session]
    assert await found(house, "exception.Odd_rror") == []
    stored = [last.session for _, last in await house.client.sessions(reason_code=code)]
    assert stored == [house.session]


async def test_what_perdure_itself_finds_wrong_has_no_class_of_an_exception(house: House) -> None:
    """S-69: bad arguments are the model's, and no exception of the tool."""
    script = Script(replies=(call(("pay", {"amount": "much"})), say("done")))
    agent = Agent(name="tester", model="openai/scripted", tools=[pay])
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        result = await house.run()
    (ended,) = await house.events("tool_end")
    assert (result["stop_reason"], result["exception"]) == ("finished", None)
    assert (ended["error"]["code"], ended["error"]["exception"]) == ("tool.invalid_input", None)
