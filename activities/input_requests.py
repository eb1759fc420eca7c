"""The activity ``ask``: write a turn's input requests, and people's decisions, into the event log."""

from temporalio import activity

from perdure.activities.errors import permanent
from perdure.activities.heartbeat import keep_beating
from perdure.activities.parts import ActivityParts
from perdure.activities.recordings import FixtureMissingError, RecordedTurns
from perdure.activities.store_access import store_failures
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import NewEvent, UserInputReceived, UserInputRequired
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import Activity
from perdure.contracts.recordings import RecordedDecisions


class PeopleActivity:
    """The questions of one worker's turns."""

    def __init__(self, parts: ActivityParts) -> None:
        self._store = parts.store
        self._notifications = parts.notifications
        self._recorded = RecordedTurns(parts.recordings)

    @activity.defn(name=Activity.ASK)
    async def ask(self, asking: AskPeople) -> RecordedDecisions | None:
        """Write each request and decision into the event log, for those who follow the turn. Safe to run twice.

        In a replay nobody is asked: return the recorded decisions.
        """
        told: list[UserInputRequired | UserInputReceived] = [
            *(UserInputRequired(**dict(request), stops=asking.stops) for request in asking.requests),
            *(UserInputReceived(**dict(decided)) for decided in asking.decided),
        ]
        events = [
            NewEvent(
                key=f"{asking.turn}/{event.request_id}/{event.type}", turn=asking.turn, step=asking.step, event=event
            )
            for event in told
        ]
        async with keep_beating(), store_failures():
            await self._store.require(asking.store)
            await self._store.append_events(asking.session, events)
            if not asking.requests:
                return None
            asked = [request.request_id for request in asking.requests]
            await self._notifications.tell_waiting(asking.session, asking.turn, asked)
            try:
                return await self._recorded.decisions(asking)
            except FixtureMissingError as error:
                code = ReasonCode.TOOL_FIXTURE_MISSING
                text = f"step {asking.step}: {REASONS[code].cause}: {error}; {REASONS[code].advice}"
                raise permanent(ErrorDetail(code=code, title="people", message=text)) from None
