"""Reading a task from the log, and following it: the task as it is first, then its updates."""

from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from perdure.client import TurnClosedError
from perdure.client.stream import EventReader
from perdure.client.views import TurnView
from perdure.contracts.a2a import TaskId, TaskState
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for, missing_as, own_session
from perdure.gateway.callers import Caller
from perdure.gateway.doors.a2a.errors import A2AError, Reason
from perdure.gateway.doors.a2a.events import TaskFold, is_last
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.following import asks_on, drain, follow_news, reader_at, take_log, take_news, wait_until
from perdure.gateway.hub import News
from perdure.store.live import Feed


def unknown_task(text: str) -> A2AError:
    """The refusal of an id: in the same words whether nobody has the task, another agent, or another tenant."""
    return A2AError(Reason.TASK_NOT_FOUND, f"there is no task {text[:200]!r}")


async def own_task(gateway: Gateway, caller: Caller, agent: str, text: str) -> tuple[TaskId, TurnView]:
    """The task of that id, which is the agent's and the caller's tenant's.

    Raises:
        A2AError: It is not, or nobody has it.
        SessionErasedError: It was the caller's, and was erased.
    """
    place = TaskId.parse(text)
    if place is None:
        raise unknown_task(text)
    with missing_as(unknown_task(text)):
        await own_session(place.session, await act_for(gateway, caller, place.session), gateway)
        view = await gateway.client.turn_view(place.session, place.turn)
    if view.agent not in {None, agent}:
        raise unknown_task(text)
    return place, view


async def find_view(gateway: Gateway, place: TaskId) -> TurnView:
    """The turn of a task.

    Raises:
        A2AError: There is none.
    """
    with missing_as(unknown_task(str(place))):
        return await gateway.client.turn_view(place.session, place.turn)


async def read_task(gateway: Gateway, place: TaskId, view: TurnView | None = None) -> TaskFold:
    """The fold of the task's log so far, with an end that only Temporal knows of.

    Raises:
        A2AError: There is no such task.
        EventsGoneError: The retention of the agent has deleted the log.
    """
    fold, _ = await _read(gateway, place, view or await find_view(gateway, place))
    return fold


async def _read(gateway: Gateway, place: TaskId, view: TurnView) -> tuple[TaskFold, EventReader]:
    fold = TaskFold(place, view.request_id, gateway.client.settings.gateway_url)
    reader = await reader_at(gateway, place.session, place.turn)
    await take_log(reader, fold, place.turn)
    if not fold.is_asking or not await asks_on(gateway, fold.task.session, fold.seq):
        fold.settle()
    if not fold.has_ended and view.state is RunState.ENDED:
        _close(fold, view)
    if fold.has_stopped and await _has_gone_on(gateway, place):
        fold.go_on()
    return fold, reader


async def _has_gone_on(gateway: Gateway, place: TaskId) -> bool:
    view = await gateway.client.session_view(place.session)
    return view.opened is not None and view.opened[1].turn > place.turn


def _close(fold: TaskFold, view: TurnView) -> list[Object]:
    """End the task by what the log does not have: a worker refused its turn, or Temporal has ended its workflow."""
    if view.closure is not None:
        return fold.close(TaskState.FAILED, view.closure.at, view.closure.text, "runtime.turn_closed")
    if view.result is None or view.result.turn is not None:
        return []  # the log has the end, or is about to
    result = view.result
    return fold.close(
        TaskState.REJECTED, view.ended_at or datetime.now(UTC), result.error or "", result.reason_code or ""
    )


async def follow(
    gateway: Gateway, place: TaskId, beyond: Sequence[str] = (), feed: Feed | None = None, history: int | None = None
) -> AsyncGenerator[list[Object], None]:
    """The task as it is, then its updates until it ends or waits; an empty list when nothing has come for long.

    Args:
        gateway: The gateway.
        place: The task.
        beyond: Requests that have to be decided before the task is said to wait.
        feed: Pieces of answers, to be shown too.
        history: Most messages of the task.

    Raises:
        A2AError: There is no such task.
    """
    fold, reader = await _read(gateway, place, await find_view(gateway, place))
    yield [{"task": fold.describe(history)}]
    if fold.has_ended or (fold.is_interrupted and all(request in fold.decided for request in beyond)):
        return
    async with aclosing(await follow_news(gateway, place.session, reader, feed)) as news:
        try:
            async for item in news:
                found = await take_news(gateway, place.session, fold, item)
                if found or (isinstance(item, News) and not item.frames):
                    yield found
                if (found and is_last(found[-1], beyond, fold)) or fold.has_ended:
                    return
        except TurnClosedError:
            pass
    if last := _close(fold, await find_view(gateway, place)):
        yield last


async def wait_for_client(
    gateway: Gateway,
    place: TaskId,
    ends: Sequence[Coroutine[Any, Any, object]],
    beyond: Sequence[str] = (),
    seconds: float | None = None,
) -> None:
    """Wait until the task has ended or waits for its client, or one of these has ended, or so many seconds."""
    await wait_until(drain(follow(gateway, place, beyond)), ends, seconds)
