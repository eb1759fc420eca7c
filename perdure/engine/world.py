"""What a turn needs of the world around it: Temporal, or none at all.

Its two makers are ``workflows/agent_turn.py`` and ``perdure/testing/memory_turn.py``.
"""

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
from perdure.engine.state import Mailbox


@dataclass(frozen=True)
class StandStill:
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
    | StandStill
    | CommitTurn
)
"""What a turn asks of the world."""


class World(Protocol):
    """What a turn needs of the world. An answer is None if the turn was stopped before it came."""

    mail: Mailbox
    """What came in from outside."""

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        ...

    @property
    def now(self) -> datetime:
        """The time."""
        ...

    def hear_delegates(self) -> None:
        """Charge the turn for the background delegates that have ended."""
        ...

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        """Go on in a fresh history if one is due: this run then ends here. True if time passed; look what is next."""
        ...

    async def generate(self, action: Generate) -> Generation | Failed | None:
        """Ask the model."""
        ...

    async def wait(self, seconds: float) -> None:
        """Wait before the model is told of its failure."""
        ...

    async def stand_still(self, action: StandStill) -> None:
        """Wait until the pause of the session is taken back. The turn's own clock does not count it."""
        ...

    async def compact(self, action: Compact) -> Compacted | Failed | None:
        """Have the beginning of the conversation summarised."""
        ...

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed | None:
        """Call the hooks written in Python."""
        ...

    async def call_tools(self, action: CallTools) -> ToolResults | None:
        """Run tools in parallel."""
        ...

    async def delegate(self, action: CallDelegates) -> Sequence[delegates.End]:
        """Have delegates work in parallel. The ends of those that a stop has ended count too."""
        ...

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for background delegates. The outcome is that of the model's call, if one waits for them."""
        ...

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Tell people what the turn waits for, or readers what was decided. A recording answers in people's place."""
        ...

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Wait for a reply; the time that the turn waited."""
        ...


class Stopped(Exception):  # noqa: N818 - a stop is no error
    """The turn was cancelled, or its time is used up.

    Attributes:
        aborted_step: The step whose model call was interrupted. The store may have its answer.
    """

    def __init__(self, aborted_step: int | None = None) -> None:
        super().__init__()
        self.aborted_step = aborted_step
