"""An approval rule that fits no tool of a turn is told of in the worker's log: it may be misspelt."""

import sys
from pathlib import Path

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, StdioServerConfig
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import waiting

pytestmark = pytest.mark.deep

PEER = Path(__file__).parent.parent / "mcp_peer.py"


async def test_a_rule_that_fits_no_tool_is_a_warning_when_the_turn_opens(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """What a server offers is known then. A rule that allows what is not there allows nothing else."""
    rules = (
        ApprovalRule(tool="peer__ehco", decision="allow"),
        ApprovalRule(tool="files__*", decision="deny"),
        ApprovalRule(tool="*__echo", decision="ask"),
    )
    server = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER), ""))
    using = Agent(name="tester", model="openai/scripted", mcp_servers=[server], approvals=ApprovalPolicy(rules=rules))
    script = Script(replies=(call(("peer__echo", {"text": "hi"})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await house.client.approve(house.session, request["request_id"], by="ann")
        await handle.result()
        await house.run(prompt="more")
    told = [record.getMessage() for record in caplog.records if "fits no tool of this turn" in record.getMessage()]
    assert len(told) == 4
    assert told[0].startswith(
        "agent 'tester': the rule that says 'allow' of 'peer__ehco' fits no tool of this turn; the tools are peer__"
    )
    assert "the rule that says 'deny' of 'files__*'" in told[1]
