"""Lists of an agent's tasks, from the turns that the store has: the latest change first."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from perdure.client.session_lists import read_turns
from perdure.contracts.a2a import STATES, TaskId, TaskState
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import StopReason
from perdure.gateway.access import Gateway
from perdure.gateway.callers import Caller
from perdure.gateway.doors.a2a.following import read_task
from perdure.gateway.doors.a2a.objects import Object, status_of, task_of
from perdure.gateway.doors.a2a.requests import ListTasks
from perdure.gateway.problems import ProblemError
from perdure.gateway.views import read_items, write_cursor
from perdure.store.records import Closure
from perdure.store.turn_lists import ListedTurn, Place, TurnFilter

ENDS: Mapping[TaskState, Sequence[StopReason]] = {
    state: [reason for reason, found in STATES.items() if found is state] for state in TaskState if state.is_terminal
}
"""Ends of turns whose tasks are in a state."""


async def list_tasks(gateway: Gateway, caller: Caller, agent: str, asked: ListTasks) -> Object:
    """A page of the agent's tasks that the caller's tenant has.

    A turn that Temporal has ended counts as one that works until its session goes on, and is shown as failed.

    Raises:
        ProblemError: The page token is none of such a list.
    """
    place = _read_place(asked.page_token)
    wanted = TurnFilter(
        agent=agent,
        tenant=None if caller.sees_all else caller.tenant,
        session=asked.context_id or None,
        ends=ENDS.get(asked.state, ()) if asked.state is not None else (),
        waits=_waits_of(asked.state),
        since=asked.since,
    )
    if asked.state in _UNKNOWN:
        return _page([], "", 0, asked)
    found = await read_turns(gateway.client.views, wanted, asked.page_size, place)
    tasks = [await _describe(gateway, turn, found.closures, asked) for turn in found.turns]
    more = write_cursor(*found.place) if found.place is not None else ""
    return _page(tasks, more, found.total, asked)


_UNKNOWN = frozenset({TaskState.SUBMITTED, TaskState.REJECTED, TaskState.AUTH_REQUIRED})
"""States of tasks that are in no list: no worker has opened their turns, or none ever is in the state."""


def _waits_of(state: TaskState | None) -> bool | None:
    return {TaskState.INPUT_REQUIRED: True, TaskState.WORKING: False}.get(state) if state is not None else None


def _page(tasks: Sequence[Object], more: str, total: int, asked: ListTasks) -> Object:
    return {"tasks": [*tasks], "nextPageToken": more, "pageSize": asked.page_size, "totalSize": total}


async def _describe(gateway: Gateway, turn: ListedTurn, closures: Mapping[str, Closure], asked: ListTasks) -> Object:
    task = TaskId(turn.session, turn.turn)
    if asked.include_artifacts or asked.history_length:
        fold = await read_task(gateway, task)
        return fold.describe(asked.history_length, artifacts=asked.include_artifacts)
    if turn.stop_reason is not None:
        metadata: Object = {"stopReason": turn.stop_reason.value}
        if turn.reason_code:
            metadata["reasonCode"] = turn.reason_code
        return task_of(task, status_of(STATES[turn.stop_reason], turn.changed_at), metadata=metadata)
    if (closure := closures.get(turn.session)) is not None:
        return task_of(task, status_of(TaskState.FAILED, closure.at))
    state = TaskState.INPUT_REQUIRED if turn.is_waiting else TaskState.WORKING
    return task_of(task, status_of(state, turn.changed_at))


def _read_place(token: str) -> Place | None:
    """The place of a page.

    Raises:
        ProblemError: The token is none of such a list.
    """
    if not token:
        return None
    match read_items(token):
        case [str(at), str(session), int(turn)] if "\0" not in session and 0 < turn < 2**31:
            try:
                moment = datetime.fromisoformat(at)
                if moment.tzinfo is not None:
                    return moment.astimezone(UTC), session, turn
            except (ValueError, OverflowError):
                pass
        case _:
            pass
    msg = "pageToken: does not belong to this list; send the nextPageToken of its last page, or leave it out"
    raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg)
