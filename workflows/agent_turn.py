"""The workflow of a turn on Temporal: what closes it, and how. What a turn does stands in ``world``.

What it may import is in the architecture page; it reads no clock but Temporal's and draws no random number.
"""

from collections.abc import Sequence

from temporalio import workflow
from temporalio.exceptions import ApplicationError, CancelledError

from perdure.contracts.names import AGENT_TURN, RESULT_MEMO
from perdure.contracts.turns import Continuation, StopReason, TurnResult
from perdure.contracts.values import JsonValue
from perdure.workflows import failures
from perdure.workflows.handlers import Handlers, read_input, unreadable
from perdure.workflows.temporal_runtime import TemporalRuntime
from perdure.workflows.world import TurnWorld


@workflow.defn(name=AGENT_TURN)
class AgentTurn(Handlers):
    """One turn of an agent in the session that the workflow id names.

    Its input is a :class:`TurnRequest`, its result a :class:`TurnResult`. Input other than a request fails the
    workflow. Everything after that, refused agents and failed models included, completes it with a result, unless
    ``PERDURE_FAIL_WORKFLOWS`` has errors close it as Failed and cancels as Canceled. Temporal's own cancel closes it as
    Canceled in any case.
    """

    @workflow.init
    def __init__(self, *_: JsonValue) -> None:
        self.world = TurnWorld(TemporalRuntime())
        super().__init__(self.world)

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """Run the turn, or the rest of one that rotated, and then the next if messages wait."""
        try:
            asked = _parse(given)
        except ApplicationError as error:
            await self.world.finish_refused(error.details[0])
            raise
        return self._close(await self.world.run(asked))

    def _close(self, result: TurnResult) -> TurnResult:
        """The result, if the run closes as Completed.

        Raises:
            CancelledError: It closes as Canceled.
            ApplicationError: It closes as Failed, with the result among the failure's details.
        """
        fails = self.world.fails_workflow and result.stop_reason in {StopReason.ERROR, StopReason.CANCELLED}
        requested = workflow.cancellation_reason() is not None and result.stop_reason is StopReason.CANCELLED
        if self.world.cancelled_by_runtime or (fails and requested):
            if self.world.fails_workflow:
                workflow.upsert_memo({RESULT_MEMO: failures.for_memo(result)})
            raise CancelledError(result.error or "Operation aborted")
        if fails:
            raise failures.of_turn(result)
        return result


def _parse(given: Sequence[JsonValue]) -> Continuation:
    """Read the input. Fields that only perdure sends are taken from the run before this one, or a delegate's caller."""
    what, send = "turn request", '{"agent": "name", "prompt": "text"}'
    asked = read_input(given, Continuation, what=what, send=send)
    info, delegated = workflow.info(), asked.delegated
    caller = info.parent.workflow_id if info.parent is not None else None
    ours = info.continued_run_id is not None or (delegated is not None and delegated.session == caller)
    if asked.own_fields and not ours:
        raise unreadable(f"{asked.own_fields[0]}: only perdure itself sends it", what=what, send=send)
    return asked
