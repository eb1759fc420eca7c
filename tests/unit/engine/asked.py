"""What a turn asks of the world next, from any state between two of its actions."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NoReturn

from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CommitTurn
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.delegates import AwaitDelegates, CallDelegates, End
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Mailbox, Place, TurnState
from perdure.engine.turn import Story
from perdure.engine.world import Action, WaitForUnpause, World
from tests.unit.engine.opening import NOW


class Asked(Exception):  # noqa: N818 - no error
    """The turn asks for something."""

    def __init__(self, action: Action) -> None:
        self.action = action


class Silent(World):
    """A world that answers nothing: what it is asked is raised."""

    def __init__(self, mail: Mailbox, now: datetime, *, stopped: bool) -> None:
        self.mail = mail
        self._now = now
        self._stopped = stopped

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def now(self) -> datetime:
        return self._now

    def charge_ended(self, state: TurnState) -> TurnState:
        return state

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        raise Asked(action)

    async def generate(self, action: Generate) -> Generation | Failed:
        raise Asked(action)

    async def wait(self, seconds: float) -> None:
        raise AssertionError(seconds)

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        raise AssertionError(action)

    async def compact(self, action: Compact) -> Compacted | Failed:
        raise Asked(action)

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed:
        raise Asked(action)

    async def call_tools(self, action: CallTools) -> ToolResults:
        raise Asked(action)

    async def delegate(self, action: CallDelegates) -> Sequence[End]:
        raise Asked(action)

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        raise Asked(action)

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        raise Asked(action)

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        raise Asked(action)


def run_now(story: Story) -> CommitTurn:
    """Run a turn in a world that never waits."""
    running = story.run()
    try:
        running.send(None)
    except StopIteration as end:
        commit: CommitTurn = end.value
        return commit
    return _waits()


def _waits() -> NoReturn:
    msg = "the world has waited"
    raise AssertionError(msg)


def asked_next(
    state: TurnState, mail: Mailbox, now: datetime = NOW, *, stopped: bool = False, place: Place = "calls"
) -> tuple[TurnState, Mailbox, Action]:
    """The next action, with the state and the mailbox as they are then."""
    world = Silent(mail, now, stopped=stopped)
    story = Story(state, world, place)
    action: Action
    try:
        action = run_now(story)
    except Asked as asked:
        action = asked.action
    return story.state, world.mail, action


def next_action(state: TurnState, mail: Mailbox, place: Place = "calls") -> Action:
    """The next action."""
    return asked_next(state, mail, place=place)[2]
