"""Time-outs, heartbeats and retry options of each kind of activity.

Temporal is the only layer that retries. The activities decide whether a failure is worth a retry and after which wait
(``non_retryable``, ``next_retry_delay``); the policies here only leave them room, and a margin for lost workers, whose
attempts use up no try.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import NotRequired, TypedDict

from temporalio.common import RetryPolicy

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.hooks import HookDeclaration, RunHooks
from perdure.contracts.tools import ToolPolicy

HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""A worker that has not beaten for so long is lost; activities beat every second, or five when very many run."""

GRACE = timedelta(minutes=15)
"""Time beyond an activity's own deadline before the server gives the attempt up: room to wait for an absent store.

A worker that is lost or stuck is noticed by its missing beats, long before.
"""

LOST_WORKER_MARGIN = 1000
"""Attempts beyond the policy's own, for lost workers and an absent store."""

STEADY = timedelta(seconds=1)
"""Wait before an attempt whose failure named none: the worker was lost."""


PINNED_WAIT = timedelta(seconds=60)
"""A worker that alone may take a call, and has not taken it for so long, is lost."""

LOST_WAIT = timedelta(seconds=1)
"""So long the turn's later calls wait for such a worker: it may only have been slow."""


MOST_EVENTS = 500
"""Of one step that a hook is called with, for the outermost bound of its activity."""


DELIVERY_TIME = timedelta(days=3)
"""How long a receiver may be away before a message for it is given up; it can be sent again by hand then."""


class ActivityOptions(TypedDict):
    """What differs between kinds of activity."""

    schedule_to_start_timeout: NotRequired[timedelta | None]
    schedule_to_close_timeout: NotRequired[timedelta | None]
    start_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


def bookkeeping() -> ActivityOptions:
    """For what only writes to the store: short, safe to repeat, repeated until the store is there."""
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
"""Attempts at the hooks for the end of a turn: they change nothing, so its result waits no minute for them."""


def run_hooks(policy: TurnPolicy, action: RunHooks) -> ActivityOptions:
    """For ``run_hooks``, which bounds each call of a hook itself; another attempt goes on where the lost one was."""
    called = [hook for hook in policy.hooks if isinstance(hook, HookDeclaration) and hook.name in action.calling]
    longest = sum((hook.timeout for hook in called), timedelta(0)) * MOST_EVENTS
    return ActivityOptions(
        start_to_close_timeout=longest + GRACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_steady(AT_THE_END if action.boundary == "end" else 1 + LOST_WORKER_MARGIN),
    )


def tool_call(policy: ToolPolicy, lost: Collection[str]) -> ActivityOptions:
    """For a tool. A second attempt never runs the body again unless the tool is idempotent: the ledger decides.

    ``lost`` are the queues of workers that have taken no call of this turn any more.
    """
    wait = LOST_WAIT if policy.task_queue in lost else PINNED_WAIT
    return ActivityOptions(
        schedule_to_start_timeout=wait if policy.pinned else None,
        start_to_close_timeout=policy.timeout + GRACE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=_steady(1 + LOST_WORKER_MARGIN),
    )


def delivery(*, once: bool) -> ActivityOptions:
    """For ``deliver_webhook``: sent again after 30 s, 1 min, 2 min … 24 h, for three days; a test is sent once."""
    return ActivityOptions(
        schedule_to_close_timeout=DELIVERY_TIME,
        start_to_close_timeout=timedelta(minutes=1),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=30),
            maximum_interval=timedelta(hours=24),
            maximum_attempts=1 if once else 0,
        ),
    )


def knock() -> ActivityOptions:
    """For ``send_scheduled``: tried for a day, as server, store and workers may be away."""
    return ActivityOptions(
        schedule_to_close_timeout=timedelta(days=1),
        start_to_close_timeout=timedelta(minutes=2),
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(initial_interval=timedelta(seconds=2), maximum_interval=timedelta(minutes=5)),
    )


def _steady(attempts: int) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=STEADY,
        backoff_coefficient=1,
        maximum_attempts=attempts,
        non_retryable_error_types=["PayloadsTooLarge"],
    )
