"""The port between a turn's world and the machine under it: what runs activities, waits, and keeps the history.

Two classes implement it: ``TemporalRuntime``, and ``MemoryRuntime`` in ``perdure.testing``.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, Protocol, TypeVar

from temporalio.common import SearchAttributeUpdate, TypedSearchAttributes

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.tools import CallTool
from perdure.contracts.turns import Continuation, TurnResult
from perdure.engine.delegates import StartDelegate
from perdure.workflows.options import ActivityOptions

Argument = TypeVar("Argument")


@dataclass(frozen=True)
class History:
    """The history of a run.

    Attributes:
        events: Events so far.
        size: Bytes so far.
        continue_as_new_suggested: Whether the server suggests a fresh history.
    """

    events: int = 0
    size: int = 0
    continue_as_new_suggested: bool = False


class Started(Protocol):
    """An activity or a delegate's turn that was started; :meth:`Runtime.finish` returns its outcome."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...


class RunningActivity(Started, Protocol):
    """An activity that was started."""

    def cancel(self) -> object:
        """Request its cancellation."""
        ...


class RunningDelegate(Started, Protocol):
    """A delegate's turn that was started."""

    begun: bool
    """Whether its workflow has started, or failed to start."""

    @property
    def outcome(self) -> TurnResult | ErrorDetail:
        """Result of the turn that is done, or why there is none."""
        ...

    def cancel_turn(self, reason: str) -> None:
        """Have it end as cancelled, as soon as it has started."""
        ...


class Task(Protocol):
    """Work beside the turn."""

    def cancel(self) -> object:
        """End the work."""
        ...


class Runtime(Protocol):
    """Machine under a turn's world: all that the world needs of it.

    Attributes:
        note_cancel: Called when the machine itself cancels the run; the world sets it.
    """

    note_cancel: Callable[[], None]

    @property
    def session(self) -> str:
        """The session's id, which is the workflow's id."""
        ...

    @property
    def run_id(self) -> str:
        """The id of this run."""
        ...

    @property
    def started_at(self) -> datetime:
        """When this run began."""
        ...

    @property
    def now(self) -> datetime:
        """The current time, with its time zone."""
        ...

    @property
    def history(self) -> History:
        """Length of this run's history."""
        ...

    @property
    def version(self) -> str:
        """The version of the workers on which this run is; empty without versions."""
        ...

    def has_another_target(self, moved_from: str) -> bool:
        """Whether another version than this run's, and than ``moved_from``, has become the target of the run."""
        ...

    @property
    def handlers_finished(self) -> bool:
        """Whether every message handler has finished."""
        ...

    @property
    def search_attributes(self) -> TypedSearchAttributes:
        """The search attributes of this run."""
        ...

    def patched(self, patch: str) -> bool:
        """Whether this run began with a change of :data:`perdure.workflows.versions.PATCHES`."""
        ...

    def start(
        self,
        activity: Callable[[Argument], Awaitable[Any]] | Callable[[], Awaitable[Any]],
        argument: Argument | None,
        bounds: ActivityOptions,
        summary: str | None = None,
        queue: str | None = None,
    ) -> RunningActivity:
        """Start an activity of :mod:`perdure.workflows.stubs`; an argument of None is none."""
        ...

    def start_tool(
        self, tool: str, call: CallTool, bounds: ActivityOptions, summary: str, queue: str | None
    ) -> RunningActivity:
        """Start a tool's activity."""
        ...

    def start_delegate(self, start: StartDelegate) -> RunningDelegate:
        """Start a delegate's turn."""
        ...

    def start_task(self, work: Coroutine[Any, Any, None]) -> Task:
        """Start work beside the turn, which waits by this runtime."""
        ...

    async def wait(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait until a condition holds, the time ``at_most`` is over, or the machine cancels the run."""
        ...

    async def sleep(self, time: timedelta) -> None:
        """Let so much time pass; only for work beside the turn."""
        ...

    async def finish(self, *started: Started) -> list[Any]:
        """Wait until all have ended, even if the machine cancels the run; the result or the failure of each."""
        ...

    def continue_as_new(self, request: Continuation, *, on_newest: bool) -> NoReturn:
        """End this run, and begin the next with a fresh history; ``on_newest``: on the workers' current version."""
        ...

    def show(self, details: str) -> None:
        """Set the current details of the run, as Markdown."""
        ...

    def upsert(self, updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
        """Set search attributes."""
        ...
