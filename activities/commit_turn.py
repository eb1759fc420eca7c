"""The activity ``commit_turn``, with which every turn ends, and ``close_as_canceled``, with which its workflow may."""

from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.delegates import Delegations
from perdure.activities.errors import permanent, runtime_error
from perdure.activities.heartbeat import keep_beating
from perdure.activities.parts import ActivityParts
from perdure.activities.recordings import RecordedTurns
from perdure.activities.secrets import with_masked_results
from perdure.activities.store_access import store_failures
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import TURN_CANCELLED, Activity
from perdure.contracts.turns import CommitTurn, TurnResult


class CommitTurnActivity:
    """Ends the turns of one worker."""

    def __init__(self, parts: ActivityParts) -> None:
        self._parts = parts
        self._store = parts.store
        self._recorded = RecordedTurns(parts.recordings)
        self._delegations = Delegations(parts)

    @activity.defn(name=Activity.COMMIT_TURN)
    async def commit_turn(self, commit: CommitTurn) -> TurnResult:
        """Close the turn: last results, the head moved, its result recorded.

        Safe to run twice: a turn that has ended keeps the result it has.
        """
        async with keep_beating(is_bounded=False), store_failures():  # a commit that gives up leaves the turn open
            await self._store.require(commit.store)
            committed = await self._store.commit_turn(with_masked_results(commit, self._parts.secrets))
            await self._recorded.keep_decisions(commit.session, commit.turn)
            result = await self._delegations.record_result(commit, committed)
        await self._parts.traces.end_turn(self._store, commit.session, commit.turn, commit.delegated)
        if committed.first:
            took = committed.ended_at - committed.started_at
            agent = self._parts.metrics.agent(result.agent)
            self._parts.metrics.turn_seconds.labels(agent).observe(took.total_seconds())
            if not commit.abandoned:
                self._parts.metrics.history_bytes.labels(agent).observe(commit.history_bytes)
            if commit.cancel_requested_at is not None:
                self._parts.metrics.note_cancel(committed.ended_at - commit.cancel_requested_at)
        async with keep_beating(is_bounded=False), store_failures():
            await self._parts.notifications.tell_ended(commit.session, commit.turn)
        # Set every field explicitly, so that the JSON result names each, also those that are null.
        return TurnResult.model_validate(result.model_dump())


@activity.defn(name=Activity.CLOSE_AS_CANCELED)
async def close_as_canceled() -> None:
    """Request Temporal's cancel of the calling workflow: without one it cannot close as Canceled.

    Safe to run twice. The request names the run, so a late attempt finds it closed and cancels no other.
    """
    info = activity.info()
    run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    async with keep_beating(is_bounded=False):
        try:
            await run.cancel(reason=TURN_CANCELLED)
        except RPCError as error:
            if error.status is RPCStatusCode.PERMISSION_DENIED:  # the workflow then closes as Failed
                message = f"Temporal does not let this worker cancel workflows: {error.message}"
                raise permanent(runtime_error(ReasonCode.RUNTIME_ABORTED, message)) from None
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
