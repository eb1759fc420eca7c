"""Where a tool's own exception was raised: in the worker's log and in ``show --traceback``, and nowhere in Temporal."""

import asyncio
import json
import logging

import pytest
from click.testing import CliRunner

from perdure import Agent, tool
from perdure.cli.main import cli
from perdure.contracts.agents import OnToolError
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.worker.telemetry import JsonFormatter
from tests.house import House

pytestmark = pytest.mark.deep

KEY = "sk-planted-in-an-exception-0123456789"


class LedgerError(Exception):
    """An exception of the agent's own module."""


def deep(amount: int, padding: str) -> None:
    """Fail below the tool's own body."""
    try:
        _ = amount / 0
    except ZeroDivisionError as error:
        raise LedgerError(f"no entry for {KEY} {padding}") from error


@tool
def book(amount: int) -> str:
    """Book an amount."""
    deep(amount, "x" * 9_000)
    return "booked"


@pytest.mark.parametrize("policy", ["abort", "feed_back"])
async def test_people_find_where_a_tool_failed(
    house: House, caplog: pytest.LogCaptureFixture, policy: OnToolError
) -> None:
    house.environment.setenv("LEDGER_KEY", KEY)
    house.environment.setenv("OPENAI_API_KEY", KEY)
    agent = Agent(name="tester", model="openai/scripted", tools=[book], on_tool_error=policy)
    script = Script(replies=(call(("book", {"amount": 7})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        with caplog.at_level(logging.WARNING, logger="temporalio.activity"):
            await house.run()
        history = (await house.temporal.get_workflow_handle(house.session).fetch_history()).to_json()
    (event,) = await house.events("tool_error" if policy == "abort" else "tool_end")
    trace = event["traceback"]
    assert len(trace) <= 4_000
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["show", house.session, "--traceback"])
    assert shown.exit_code == 0, shown.output
    assert "✗ book · LedgerError" in shown.output
    assert trace.splitlines()[-1][-100:] in shown.output
    plain = await asyncio.to_thread(CliRunner().invoke, cli, ["show", house.session])
    assert "x" * 3_000 not in plain.output
    (record,) = [logged for logged in caplog.records if "book raised LedgerError" in logged.getMessage()]
    assert record.levelno == logging.WARNING
    line = json.loads(JsonFormatter(frozenset({KEY})).format(record))
    assert line["exception"] == trace
    assert line["temporal_activity"]["workflow_id"] == house.session
    for place in (trace, shown.output, history, json.dumps(line)):
        assert KEY not in place
    assert "x" * 3_900 not in history


PYTHON = ("object at 0x", "timedelta(", "datetime.datetime(", "{'", "<class '", "Error(")
"""What only Python writes."""


async def test_every_line_of_a_workers_log_is_json_without_words_of_python(house: House) -> None:
    """A job with a retry, a hook and a tool that raise, and a log line of the tool's own with all kinds of values."""
    script = Script(replies=(call(("pay", {"amount": 7})).after(faults.status(500)), say("done")))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        worker = house.spawn_worker("tests.workflow.agents_that_raise", PERDURE_LOG_LEVEL="info")
        await worker.polling()
        result = await house.run()
        await worker.stop()
    assert result["stop_reason"] == "finished"
    lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    messages = [line["message"] for line in lines]
    assert "tool pay raised OddError" in messages
    assert "paying <object>" in messages
    (own,) = [line for line in lines if line["logger"] == "shop"]
    assert (own["held"]["for"], own["held"]["who"], own["seen"]) == (7, "object", [1, 2])
    for line in lines:
        line.pop("exception", None)  # a traceback, which is Python's
        assert not [word for word in PYTHON if word in json.dumps(line)], line
