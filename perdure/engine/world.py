"""The port between a turn and the world around it, which is ``perdure/workflows/world.py``."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CommitTurn
from perdure.contracts.waits import Pause
from perdure.engine import delegates
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Mailbox, TurnState


@dataclass(frozen=True)
class WaitForUnpause:
    """Begin nothing until the pause is taken back."""

    pause: Pause


Action = (
    RunHooks
    | Generate
    | Compact
    | CallTools
    | CallDelegates
    | AwaitDelegates
    | AskPeople
    | WaitForPeople
    | WaitForUnpause
    | CommitTurn
)
"""Action that a turn asks of the world."""


class World(Protocol):
    """World of a turn: all that it needs from outside.

    A stop ends every wait, which raises :class:`Stopped` unless all that was waited for has come. Three methods never
    raise it, since the turn has to take in what they return: ``delegate``, ``ask``, ``wait_for_people``; nor does
    ``await_delegates`` at the turn's end.
    """

    mail: Mailbox
    """Messages from outside."""

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        ...

    @property
    def now(self) -> datetime:
        """The current time, with its time zone."""
        ...

    def charge_ended(self, state: TurnState) -> TurnState:
        """The state charged for its background delegates that have ended meanwhile."""
        ...

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        """End this run and go on in a fresh history, if one is due.

        Returns:
            True if the turn waited before that and goes on in this run: another action may be next.
        """
        ...

    async def generate(self, action: Generate) -> Generation | Failed:
        """Ask the model."""
        ...

    async def wait(self, seconds: float) -> None:
        """Wait, in seconds, before the model reads that its last call failed."""
        ...

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        """Wait until the pause of the session is taken back. The time budget does not count this wait."""
        ...

    async def compact(self, action: Compact) -> Compacted | Failed:
        """Have the beginning of the conversation summarised."""
        ...

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed:
        """Call the hooks written in Python."""
        ...

    async def call_tools(self, action: CallTools) -> ToolResults:
        """Run tools in parallel; one outcome for each call, in order."""
        ...

    async def delegate(self, action: CallDelegates) -> Sequence[delegates.End]:
        """Have delegates work in parallel, and return the end of each, in order: None for one in the background.

        A stop cancels them and still returns their ends, since the turn is charged for what they spent.
        """
        ...

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for background delegates; return the outcome of the model's call that waits for them, if one does."""
        ...

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Write what the turn waits for, or what was decided, into the event log. A stop does not interrupt this.

        Returns:
            In a replay the decisions of the recording, which stand in for people's; otherwise None.
        """
        ...

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Wait for a reply, and return how long the turn waited. A stop ends the wait."""
        ...


class Stopped(Exception):  # noqa: N818 - a stop is no error
    """The turn was cancelled, or its time is used up.

    Attributes:
        aborted_step: The step whose model call was interrupted. The store may have its answer.
    """

    def __init__(self, aborted_step: int | None = None) -> None:
        super().__init__()
        self.aborted_step = aborted_step
