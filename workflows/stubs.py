"""Typed signatures of the activities, without bodies: the workflow names them by these. A test compares both."""

from temporalio import activity

from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import Activity
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.tools import CollectDelegates, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenedTurn, OpenTurn, TurnResult
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
    """Write what the turn waits for people for into the event log; in a replay, give what was decided."""
    raise NotImplementedError


@activity.defn(name=Activity.COLLECT_DELEGATES)
async def collect_delegates(asked: CollectDelegates) -> ToolOutcome:
    """Write what delegates in the background came to as the result of the call that waited for them."""
    raise NotImplementedError


@activity.defn(name=Activity.COMMIT_TURN)
async def commit_turn(commit: CommitTurn) -> TurnResult:
    """Close the turn: last results, the head moved, its result recorded."""
    raise NotImplementedError


@activity.defn(name=Activity.CLOSE_AS_CANCELED)
async def close_as_canceled() -> None:
    """Request Temporal's cancel of the workflow that asks: without one no workflow can close as Canceled."""
    raise NotImplementedError


@activity.defn(name=Activity.DELIVER_WEBHOOK)
async def deliver_webhook(notify: Notify) -> int:
    """Send a message to a webhook's address, and give the status of the answer."""
    raise NotImplementedError


@activity.defn(name=Activity.SEND_SCHEDULED)
async def send_scheduled(knock: Knock) -> Knocked:
    """Send a schedule's message to its session."""
    raise NotImplementedError
