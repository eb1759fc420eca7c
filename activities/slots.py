"""Has a turn wait until its agent and its tenant have a slot for it.

The activity ``open_turn`` fails without a slot, and Temporal retries it. So a wait of days adds no event to the history
and holds no worker.
"""

import contextlib
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.errors import runtime_error, transient
from perdure.activities.telling.notifications import Notifications
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import OpenTurn
from perdure.store import Store
from perdure.store.errors import TurnBlockedError
from perdure.store.slots import PRIORITY, InTheWay, SlotLimit, SlotWait

SOONEST, LATEST = timedelta(seconds=1), timedelta(seconds=10)
"""Bounds of the wait before a turn asks again."""

SHARE_OF_WAIT = 50
"""A turn asks again after this part (1/50) of the time it has waited: after hours, a few more seconds matter little."""

JITTER = 0.2

OTHERS = "*"
"""Key of the limit for every tenant without one of its own."""


class Slots:
    """Asks the store for the slots of one worker's turns."""

    def __init__(self, store: Store, tenants: Mapping[str, int], notifications: Notifications) -> None:
        self._store = store
        self._tenants = tenants
        self._notifications = notifications

    def limits_of(self, opening: OpenTurn, definition: AgentDefinition) -> tuple[SlotLimit, ...]:
        """The limits that must have a free slot. A delegate uses its caller's slot; a stopped turn needs none."""
        if opening.stopped or opening.request.delegated is not None:
            return ()
        limits: list[SlotLimit] = []
        if definition.max_running is not None:
            limits.append(SlotLimit(of="agent", name=definition.name, most=definition.max_running))
        tenant = opening.request.tenant
        most = self._tenants.get(tenant, self._tenants.get(OTHERS))
        if most is not None:
            limits.append(SlotLimit(of="tenant", name=tenant, most=most))
        return tuple(limits)

    async def require_slot(self, opening: OpenTurn, definition: AgentDefinition, limits: Sequence[SlotLimit]) -> None:
        """Refuse to open the turn until it has a slot, before anything else is done for it. Safe to run twice.

        Raises:
            ApplicationError: There is no free slot; Temporal retries the activity.
            TurnBlockedError: A block refuses the turn, so it does not wait any more.
        """
        if not limits:
            if activity.info().attempt > 1 or opening.stopped:  # an earlier attempt may have joined the queue
                await self._store.leave_queue(opening.session)
            return
        priority = activity.info().priority.priority_key or PRIORITY  # of the workflow, whoever has started it
        wait = await self._store.ask_for_slot(opening, definition.name, limits, priority)
        if wait is None:
            return
        if wait.is_near and await self._free_some(opening.session, wait):
            wait = await self._store.ask_for_slot(opening, definition.name, limits, priority)
        if wait is None:
            return
        try:
            await self._store.require_unblocked(definition, (opening.request.tenant,))
        except TurnBlockedError:
            await self._store.leave_queue(opening.session)
            raise
        raise error_of(wait)

    async def leave(self, session: str) -> None:
        """Take a turn that was refused out of the queue."""
        if activity.info().attempt > 1:
            await self._store.leave_queue(session)

    async def _free_some(self, session: str, wait: SlotWait) -> bool:
        """End those of a few turns in the way whose workflow does not run any more; False if there was none."""
        found = await self._store.find_in_the_way(session, wait, activity.info().attempt)
        freed = False
        for other in found:
            if await _is_gone(other) and await self._store.free_slot(other):
                freed = True
                # Its span is emitted when the session's next turn opens, as for every turn that Temporal has ended.
                await self._notifications.tell_ended(other.session, other.turn)
        return freed


def error_of(wait: SlotWait) -> ApplicationError:
    """The failure of an attempt without a slot. The sooner the turn may get one, the sooner it is retried.

    delay = max(time waited / 50, 1 s x (1 + turns before it / slots)), at most 10 s, with 20 % jitter
    """
    waited = (datetime.now(UTC) - wait.queued_at) / SHARE_OF_WAIT
    queue = SOONEST * (1 + wait.before / wait.limit.most)
    delay = min(max(waited, queue), LATEST) * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
    return transient(runtime_error(ReasonCode.RUNTIME_QUEUED, str(wait)), delay, benign=True)


async def _is_gone(other: InTheWay) -> bool:
    """Whether no workflow of the session runs; False if Temporal cannot say."""
    with contextlib.suppress(RPCError):
        try:
            described = await activity.client().get_workflow_handle(other.session).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return True
            raise
        return described.status is not WorkflowExecutionStatus.RUNNING
    return False
