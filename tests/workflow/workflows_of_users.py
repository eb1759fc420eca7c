"""Workflows as users write them around agents. They run in Temporal's own sandbox, with its own data converter."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure import Budgets
    from perdure.workflow import AgentHandle, SharedBudget, run_agent, start_agent


@workflow.defn
class Report:
    """Parts by several agents at once, each within its share of one budget."""

    @workflow.run
    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        shared = SharedBudget(Budgets(llm_calls=asked["llm_calls"]), at_once=asked["at_once"])
        queue = asked["task_queue"]
        results = await asyncio.gather(
            *(run_agent("tester", part, shared=shared, task_queue=queue) for part in asked["parts"])
        )
        return {"outputs": [result.output for result in results], "llm_calls": shared.spent.llm_calls}


@workflow.defn
class Single:
    """One turn, with whatever options were asked for."""

    @workflow.run
    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        return (await run_agent(**asked)).model_dump(mode="json")


@workflow.defn
class Conversation:
    """A turn that gets a message or is cancelled while it works, as signals say."""

    def __init__(self) -> None:
        self._orders: list[str] = []
        self.turn: int | None = None

    @workflow.signal
    def order(self, what: str) -> None:
        self._orders.append(what)

    @workflow.run
    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        handle: AgentHandle = await start_agent(**asked)
        await workflow.wait_condition(lambda: bool(self._orders))
        order = self._orders.pop()
        if order == "cancel":
            await handle.cancel("enough")
        elif order == "close":
            return {"session": handle.session}
        else:
            self.turn = await handle.send(order, by="the workflow")
        result = await handle
        return {"session": handle.session, "turn": self.turn, "result": result.model_dump(mode="json")}


@workflow.defn
class Operation:
    """One operation of the service, as a caller of any language writes it."""

    @workflow.run
    async def run(self, endpoint: str, operation: str, fields: dict[str, Any]) -> Any:
        client: workflow.NexusClient[Any] = workflow.create_nexus_client(service="perdure", endpoint=endpoint)
        limit = timedelta(minutes=1)
        return await client.execute_operation(operation, fields, schedule_to_close_timeout=limit)
