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
from perdure.workflows.handlers import Handlers
from perdure.workflows.temporal_runtime import TemporalRuntime
from perdure.workflows.world import TurnWorld


class Waits(TurnWorld):
    """One timer more."""

    async def _commit(self, action: CommitTurn) -> TurnResult:
        await workflow.sleep(timedelta(seconds=1))
        return await super()._commit(action)


class Renames(TurnWorld):
    """Another activity in the same place."""

    async def generate(self, action: Generate) -> Generation | Failed:
        answer: Generation = await workflow.execute_activity(
            "generate_text", action, result_type=Generation, start_to_close_timeout=timedelta(seconds=1)
        )
        return answer


class CallsInTurn(TurnWorld):
    """The same activities, not at once."""

    async def call_tools(self, action: CallTools) -> ToolResults:
        called, _ = delegates.next_batch(self._state)
        results = []
        for planned, call in zip(called, action.calls, strict=True):
            results += await self.runtime.finish(self._start_tool(planned.tool, call))
        return ToolResults(tuple(results))


@workflow.defn(name=AGENT_TURN)
class WaitsBeforeItCommits(AgentTurn):
    """As recorded, in another world."""

    @workflow.init
    def __init__(self, *_: JsonValue) -> None:
        self.world = Waits(TemporalRuntime())
        Handlers.__init__(self, self.world)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)


@workflow.defn(name=AGENT_TURN)
class GeneratesByAnotherName(AgentTurn):
    """As recorded, in another world."""

    @workflow.init
    def __init__(self, *_: JsonValue) -> None:
        self.world = Renames(TemporalRuntime())
        Handlers.__init__(self, self.world)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)


@workflow.defn(name=AGENT_TURN)
class CallsToolsOneByOne(AgentTurn):
    """As recorded, in another world."""

    @workflow.init
    def __init__(self, *_: JsonValue) -> None:
        self.world = CallsInTurn(TemporalRuntime())
        Handlers.__init__(self, self.world)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """As recorded."""
        return await super().run(*given)
