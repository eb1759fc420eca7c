"""Timeouts, heartbeats and retry options of each kind of activity.

Temporal is the only layer that retries. An activity decides whether its failure is retried and after which wait
(``non_retryable``, ``next_retry_delay``). The policies here only leave room for that, and for lost workers: their
attempts do not count as tries.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio.common import RetryPolicy

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.hooks import HookDeclaration, RunHooks
from perdure.contracts.tools import ToolPolicy

HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""Without a heartbeat for this time a worker is lost. Activities beat each second, or each five if very many run."""

GRACE = timedelta(minutes=15)
"""Added to an activity's own deadline for its start_to_close timeout: room to wait for an absent store.

A lost or stuck worker is noticed long before, by its missing heartbeats.
"""

LOST_WORKER_MARGIN = 1000
"""Attempts beyond the policy's own, for lost workers, an absent store, and a version that no worker has for days."""

STEADY = timedelta(seconds=1)
"""Wait before the next attempt if the failure named none, because the worker was lost."""


PINNED_WAIT = timedelta(seconds=60)
"""schedule_to_start timeout of a call that only one worker may take; past it, that worker is lost."""

LOST_WAIT = timedelta(seconds=1)
"""schedule_to_start timeout of the turn's later calls to a lost worker: it may only have been slow."""


MOST_EVENTS = 500
"""Assumed events of one step that a hook is called with; it only bounds the activity's timeout."""


DELIVERY_TIME = timedelta(days=3)
"""Time in which a webhook's message is retried. After that it can be sent again by hand."""


class ActivityOptions(TypedDict):
    """Options that differ between kinds of activity."""

    schedule_to_start_timeout: NotRequired[timedelta | None]
    schedule_to_close_timeout: NotRequired[timedelta | None]
    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


def bookkeeping() -> ActivityOptions:
    """For activities that only write to the store: short, and retried until the store is there."""
    return ActivityOptions(
        start_to_close_timeout=timedelta(seconds=30),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10), maximum_attempts=0
        ),
    )


def opening() -> ActivityOptions:
    """For ``open_turn``, which also asks the agent's MCP servers for their tools, each within its ``init_timeout``."""
    return {**bookkeeping(), "start_to_close_timeout": timedelta(minutes=10)}


def generation(policy: TurnPolicy) -> ActivityOptions:
    """For ``generate`` and ``compact``, which call a model."""
    return ActivityOptions(
        start_to_close_timeout=policy.generation_timeout + GRACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_steady(policy.max_retries + 1 + LOST_WORKER_MARGIN),
    )


AT_THE_END = 10
"""Attempts at the hooks of a turn's end. Their reactions change nothing, so the result must not wait long for them."""


def run_hooks(policy: TurnPolicy, action: RunHooks) -> ActivityOptions:
    """For ``run_hooks``. It bounds each call of a hook itself; a second attempt goes on where the lost one stopped."""
    called = [hook for hook in policy.hooks if isinstance(hook, HookDeclaration) and hook.name in action.calling]
    longest = sum((hook.timeout for hook in called), timedelta(0)) * MOST_EVENTS
    return ActivityOptions(
        start_to_close_timeout=longest + GRACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_steady(AT_THE_END if action.boundary == "end" else 1 + LOST_WORKER_MARGIN),
    )


def tool_call(policy: ToolPolicy, lost: Collection[str]) -> ActivityOptions:
    """For a tool's call. The ledger decides whether a second attempt runs the body again.

    ``lost`` are the task queues of workers that this turn has found lost.
    """
    wait = LOST_WAIT if policy.task_queue in lost else PINNED_WAIT
    return ActivityOptions(
        schedule_to_start_timeout=wait if policy.pinned else None,
        start_to_close_timeout=policy.timeout + GRACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_steady(1 + LOST_WORKER_MARGIN),
    )


def delivery(*, once: bool) -> ActivityOptions:
    """For ``deliver_webhook``, whose failures say when it is tried again, for three days; a test is sent once."""
    return ActivityOptions(
        schedule_to_close_timeout=DELIVERY_TIME,
        start_to_close_timeout=timedelta(minutes=1),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=30), backoff_coefficient=1, maximum_attempts=1 if once else 0
        ),
    )


def knock() -> ActivityOptions:
    """For ``send_scheduled``: retried for a day, as server, store and workers may be away."""
    return ActivityOptions(
        schedule_to_close_timeout=timedelta(days=1),
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=5)),
    )


def sweep() -> ActivityOptions:
    """For ``sweep_retention``: many small transactions, with heartbeats, and waits for a store that is away."""
    return {**bookkeeping(), "start_to_close_timeout": timedelta(minutes=30)}


def _steady(attempts: int) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=STEADY,
        backoff_coefficient=1,
        maximum_attempts=attempts,
        non_retryable_error_types=["PayloadsTooLarge"],
    )
