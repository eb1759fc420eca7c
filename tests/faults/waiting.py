"""What the tests with a store that is away share: what an operator sees of a turn that waits for it."""

from typing import Any

import temporalio.api.workflow.v1 as workflow_api

from tests.house import House, eventually


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
        return any(all(part in said(one) for part in ("runtime.store_unavailable", *parts)) for one in pending)

    await eventually(shown)


def told(provider: Any) -> list[Any]:
    """The tool results that the model read last."""
    return [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "tool"]
