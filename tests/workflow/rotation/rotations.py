"""Workflows that have gone on in a fresh history."""

from tests.house import House, eventually


async def rotated(house: House, session: str) -> None:
    """Wait until visibility, which is eventually consistent, knows of a run that went on in another."""
    query = f'WorkflowId = "{session}" AND ExecutionStatus = "ContinuedAsNew"'

    async def known() -> bool:
        return bool([execution async for execution in house.temporal.list_workflows(query)])

    await eventually(known)
