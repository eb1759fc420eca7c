"""Temporal under a turn's world: activities, timers, child workflows, continue-as-new."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate, TypedSearchAttributes
from temporalio.exceptions import ActivityError, is_cancelled_exception

from perdure.contracts.names import TURN_CANCELLED
from perdure.contracts.tools import CallTool, ToolOutcome
from perdure.contracts.turns import Continuation
from perdure.engine.delegates import StartDelegate
from perdure.workflows import versions
from perdure.workflows.delegates import ChildTurn
from perdure.workflows.options import ActivityOptions
from perdure.workflows.runtime import Argument, History, RunningActivity, Runtime, Started


class TemporalRuntime(Runtime):
    """The run of a workflow. A cancel by Temporal is noted like the cancel signal, and never raised."""

    def __init__(self) -> None:
        self.note_cancel: Callable[[], None] = lambda: None

    @property
    def session(self) -> str:
        """The workflow's id."""
        return workflow.info().workflow_id

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return workflow.info().run_id

    @property
    def started_at(self) -> datetime:
        """When this run began."""
        return workflow.info().start_time

    @property
    def now(self) -> datetime:
        """Temporal's clock."""
        return workflow.now()

    @property
    def history(self) -> History:
        """The history as of this workflow task.

        By default a server suggests continue-as-new at 4,096 events or 4 MB, and terminates at 51,200 events or 50 MB.
        """
        info = workflow.info()
        return History(
            info.get_current_history_length(),
            info.get_current_history_size(),
            info.is_continue_as_new_suggested(),
        )

    @property
    def version(self) -> str:
        """The version of the worker deployment that has this task."""
        return versions.own_version()

    def has_another_target(self, moved_from: str) -> bool:
        """Whether a worker deployment's new version is to carry this run on."""
        return versions.is_another_target(moved_from)

    @property
    def handlers_finished(self) -> bool:
        """Whether every message handler has finished."""
        return workflow.all_handlers_finished()

    @property
    def search_attributes(self) -> TypedSearchAttributes:
        """The search attributes of this run."""
        return workflow.info().typed_search_attributes

    def patched(self, patch: str) -> bool:
        """Whether this run began with the change, or has reached it for the first time."""
        return workflow.patched(patch)

    def start(
        self,
        activity: Callable[[Argument], Awaitable[Any]] | Callable[[], Awaitable[Any]],
        argument: Argument | None,
        bounds: ActivityOptions,
        summary: str | None = None,
        queue: str | None = None,
    ) -> RunningActivity:
        """Start an activity."""
        given = () if argument is None else (argument,)
        call: Callable[..., Awaitable[Any]] = activity
        return workflow.start_activity(call, args=given, summary=summary, task_queue=queue, **bounds)

    def start_tool(
        self, tool: str, call: CallTool, bounds: ActivityOptions, summary: str, queue: str | None
    ) -> RunningActivity:
        """Start a tool's activity, which has the tool's name."""
        return workflow.start_activity(tool, call, result_type=ToolOutcome, summary=summary, task_queue=queue, **bounds)

    def start_delegate(self, start: StartDelegate) -> ChildTurn:
        """Start a delegate's child workflow."""
        return ChildTurn(start)

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a coroutine of the workflow."""
        return asyncio.create_task(work)

    async def wait(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait for a condition, at most as long as a timer runs."""
        with contextlib.suppress(TimeoutError):
            try:
                await workflow.wait_condition(condition, timeout=at_most)
            except asyncio.CancelledError:
                self._note_cancel()

    async def sleep(self, time: timedelta) -> None:
        """Wait for a timer."""
        await workflow.sleep(time)

    async def finish(self, *started: Started) -> list[Any]:
        """Await activities and delegates.

        A result in the same activation as the cancel gets lost behind asyncio's own ``CancelledError``; the commit
        finds it in the store.
        """
        awaited = cast("tuple[Awaitable[Any], ...]", started)
        running = asyncio.gather(*awaited, return_exceptions=True)
        try:
            outcomes = await asyncio.shield(running)
        except asyncio.CancelledError:
            self._note_cancel()
            outcomes = await running
        for outcome in outcomes:
            expected = isinstance(outcome, ActivityError) or is_cancelled_exception(outcome)
            if isinstance(outcome, BaseException) and not expected:
                raise outcome
        return list(outcomes)

    def continue_as_new(self, request: Continuation, *, on_newest: bool) -> NoReturn:
        """End this run with continue-as-new."""
        workflow.continue_as_new(request, initial_versioning_behavior=versions.newest() if on_newest else None)

    def show(self, details: str) -> None:
        """Set the current details, which cost no event."""
        workflow.set_current_details(details)

    def upsert(self, updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
        """Upsert search attributes, which costs an event."""
        workflow.upsert_search_attributes(updates)

    def _note_cancel(self) -> None:
        if workflow.cancellation_reason() != TURN_CANCELLED:  # which this run requested itself, to close as Canceled
            self.note_cancel()
