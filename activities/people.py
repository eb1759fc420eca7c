"""The activity ``ask``: tell people what a turn is about to wait for. The waiting itself needs no activity."""

from temporalio import activity

from activities.errors import store_failures
from activities.heartbeat import beating
from perdure.contracts.events import NewEvent, UserInputRequired
from perdure.contracts.names import Activity
from perdure.contracts.people import AskPeople
from perdure.store import Store


class PeopleActivity:
    """The questions of one worker's turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn(name=Activity.ASK)
    async def ask(self, asking: AskPeople) -> None:
        """Write each request into the event log, where those who follow the turn see it. Safe to run twice."""
        events = [
            NewEvent(
                key=f"{asking.turn}/{request.request_id}/user_input_required",
                turn=asking.turn,
                step=asking.step,
                event=UserInputRequired(**dict(request)),
            )
            for request in asking.requests
        ]
        async with beating(), store_failures():
            await self._store.append_events(asking.session, events)
