"""Typed signatures of the activities, without bodies: the workflow names them by these. A test compares both."""

from temporalio import activity

from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import Activity
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.retention import SweepSlice, Swept
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.tools import CollectDelegates, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenTurn, TurnResult
from perdure.contracts.webhooks import Notify


@activity.defn(name=Activity.OPEN_TURN)
async def open_turn(opening: OpenTurn) -> OpenedTurn:
    """Freeze the agent's definition, claim the turn's number, store the prompt."""
    raise NotImplementedError


@activity.defn(name=Activity.GENERATE)
async def generate(request: Generate) -> Generation:
    """Call the model and store its answer as a step."""
    raise NotImplementedError


@activity.defn(name=Activity.COMPACT)
async def compact(request: Compact) -> Compacted:
    """Summarise the beginning of the conversation in what the model reads."""
    raise NotImplementedError


@activity.defn(name=Activity.RUN_HOOKS)
async def run_hooks(request: RunHooks) -> HookResults:
    """Call hooks with the events of a step, and return what they want."""
    raise NotImplementedError


@activity.defn(name=Activity.ASK)
async def ask(asking: AskPeople) -> RecordedDecisions | None:
    """Write input requests and decisions into the event log; in a replay, return the recorded decisions."""
    raise NotImplementedError


@activity.defn(name=Activity.COLLECT_DELEGATES)
async def collect_delegates(asked: CollectDelegates) -> ToolOutcome:
    """Write the results of background delegates as the result of the call that waited for them."""
    raise NotImplementedError


@activity.defn(name=Activity.COMMIT_TURN)
async def commit_turn(commit: CommitTurn) -> TurnResult:
    """Close the turn: last results, the head moved, its result recorded."""
    raise NotImplementedError


@activity.defn(name=Activity.CLOSE_AS_CANCELED)
async def close_as_canceled() -> None:
    """Request Temporal's cancel of the calling workflow: without one it cannot close as Canceled."""
    raise NotImplementedError


@activity.defn(name=Activity.FIND_PARENT)
async def find_parent(session: str) -> str | None:
    """Find the workflow that started another one as its child."""
    raise NotImplementedError


@activity.defn(name=Activity.DELIVER_WEBHOOK)
async def deliver_webhook(notify: Notify) -> int:
    """Send a message to a webhook's address, and return the HTTP status of the answer."""
    raise NotImplementedError


@activity.defn(name=Activity.SEND_SCHEDULED)
async def send_scheduled(knock: Knock) -> Knocked:
    """Send a schedule's message to its session."""
    raise NotImplementedError


@activity.defn(name=Activity.SWEEP_RETENTION)
async def sweep_retention(part: SweepSlice) -> Swept:
    """Sweep the next slice of an agent's sessions: delete what is older than its retention."""
    raise NotImplementedError
