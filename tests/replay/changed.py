"""Workflows that are not the recorded one any more: what a careless change would look like to a running turn."""

from datetime import timedelta

from temporalio import workflow

from perdure.contracts.generations import Generate, Generation
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import CommitTurn, TurnResult
from perdure.contracts.values import JsonValue
from perdure.engine import delegates
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.generation import Failed
from perdure.workflows.agent_turn import AgentTurn


@workflow.defn(name=AGENT_TURN)
class WaitsBeforeItCommits(AgentTurn):
    """One timer more."""

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        super().__init__(*given)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)

    async def _commit(self, action: CommitTurn) -> TurnResult:
        await workflow.sleep(timedelta(seconds=1))
        return await super()._commit(action)


@workflow.defn(name=AGENT_TURN)
class GeneratesByAnotherName(AgentTurn):
    """Another activity in the same place."""

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        super().__init__(*given)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)

    async def generate(self, action: Generate) -> Generation | Failed | None:
        await workflow.execute_activity("generate_text", action, start_to_close_timeout=timedelta(seconds=1))
        return None


@workflow.defn(name=AGENT_TURN)
class CallsToolsOneByOne(AgentTurn):
    """The same activities, not at once."""

    @workflow.init
    def __init__(self, *given: JsonValue) -> None:
        super().__init__(*given)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)

    async def call_tools(self, action: CallTools) -> ToolResults | None:
        called, _ = delegates.next_batch(self._state)
        results = [await self._start(planned.tool, call) for planned, call in zip(called, action.calls, strict=True)]
        return ToolResults(tuple(results))
