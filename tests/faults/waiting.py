"""What the tests with a store that is away share: the job, and what an operator sees of a turn that waits."""

from typing import Any

import temporalio.api.workflow.v1 as workflow_api

from perdure import Agent, tool
from perdure.testing import Script, call, say
from tests.house import House, eventually

runs: list[str] = []
"""A line for each run of the tool's body; a test empties it first."""


@tool
def pay() -> str:
    """Pay, which must never happen twice."""
    runs.append("pay")
    return "paid"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay])
SCRIPT = Script(replies=(call(("pay", {})), say("done")))

WRITES = ("open_turn", "begin_generation", "finish_generation", "claim_call", "finish_call", "commit_turn")
"""The store's writes in that job, in order."""


def said(pending: workflow_api.PendingActivityInfo) -> str:
    """What the Temporal UI shows of a pending activity: its last failure, and what its last beat says."""
    failure = pending.last_failure
    beat = b" ".join(payload.data for payload in pending.heartbeat_details.payloads).decode()
    return f"{failure.application_failure_info.type} {failure.message} {beat}"


async def waiting_visibly(house: House, *parts: str) -> None:
    """Wait until the pending activity names the absent store as its reason, with these words."""
    handle = house.temporal.get_workflow_handle(house.session)

    async def shown() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(
            all(part in said(activity) for part in ("runtime.store_unavailable", *parts)) for activity in pending
        )

    await eventually(shown)


def told(provider: Any) -> list[Any]:
    """The tool results that the model read last."""
    return [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "tool"]
