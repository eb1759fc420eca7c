"""Schedules of the caller's tenant: turns that the clock starts, and what came of them."""

from datetime import datetime
from typing import Annotated, ClassVar

from fastapi import Path, Query
from pydantic import Field
from starlette.status import HTTP_201_CREATED, HTTP_202_ACCEPTED, HTTP_204_NO_CONTENT

from perdure.client.schedules import Schedules
from perdure.contracts.budgets import Budgets
from perdure.contracts.queues import TurnPriority
from perdure.contracts.schedules import SCHEDULE_ID_PATTERN, Schedule, ScheduleRun
from perdure.contracts.sends import WhenBusy
from perdure.contracts.values import Label
from perdure.gateway.access import Gateway, GatewayOf, Reader, Runner
from perdure.gateway.bodies import MEDIUM, Body, Json, Router
from perdure.gateway.callers import Caller
from perdure.gateway.views import LIMIT, Cursor, Limit, Page, SessionName, read_name, write_cursor

router = Router(prefix="/v1", tags=["schedules"])

ScheduleName = Annotated[str, Path(pattern=SCHEDULE_ID_PATTERN, description="The schedule's id")]


class ScheduleChanges(Body):
    """Fields of a schedule to change; fields that are left out stay, and null removes one."""

    longest: ClassVar[int | None] = MEDIUM

    cron: str | None = Field(
        default=None, max_length=200, description="Run repeatedly: minute hour day month weekday, as in 0 7 * * 1-5"
    )
    at: datetime | None = Field(default=None, description="Run once, at this time; without an offset, in timezone")
    timezone: str | None = Field(default="UTC", min_length=1, max_length=100, description="Name in the tz database")
    agent: Label | None = Field(default=None, min_length=1, description="Start a new session of this agent in each run")
    session: SessionName | None = Field(default=None, description="Send the prompt to this session, instead of agent")
    prompt: str = Field(default="", min_length=1, description="Message of each run, at most 128 KiB")
    when_busy: WhenBusy | None = "queue"
    model: Label | None = Field(default=None, min_length=1, description="With agent: provider/model of each turn")
    max_steps: int | None = Field(default=None, ge=1, le=1_000_000, description="With agent: step limit of each turn")
    budgets: Budgets | None = Field(default=None, description="With agent: budgets of each turn")
    priority: TurnPriority | None = Field(
        default=None, description="From 1, the most urgent, to 5, where work waits for workers; null is 3"
    )
    context: dict[str, Json] | None = Field(
        default=None, description="For tools, hooks and instructions, at most 16 KiB; no model reads it"
    )
    jitter: float | None = Field(default=0, ge=0, le=86_400, description="Start each run up to this many seconds later")
    catchup: float | None = Field(
        default=None,
        ge=10,
        le=31_536_000,
        description="Make up for runs missed by less than this many seconds; null is an hour, or a day with at",
    )
    note: str | None = Field(default="", max_length=1000, description="For people")


class ScheduleBody(ScheduleChanges):
    """A schedule: cron or at says when, agent or session for whom."""

    id: str = Field(
        pattern=SCHEDULE_ID_PATTERN, description="Id of the schedule; the ids of its sessions begin with it"
    )
    prompt: str = Field(min_length=1, description="Message of each run, at most 128 KiB")
    paused: bool = False


class NoteBody(Body):
    """A note on why a schedule is paused or goes on."""

    note: str = Field(default="", max_length=1000, description="Reason of the schedule; its own note stays")


def _own(gateway: Gateway, caller: Caller) -> Schedules:
    return gateway.client.schedules.of(caller.tenant)


@router.post("/schedules", status_code=HTTP_201_CREATED, operation_id="add_schedule")
async def add_schedule(caller: Runner, body: ScheduleBody, gateway: GatewayOf) -> Schedule:
    """Have the clock start turns from now on, in the caller's name."""
    fields = {name: getattr(body, name) for name in body.model_fields_set - {"id"}}
    own = _own(gateway, caller)
    async with gateway.limits.add_schedule(own, caller.tenant, body.id):
        return await own.add(body.id, **fields, by=caller.name)


@router.get("/schedules", operation_id="list_schedules")
async def list_schedules(
    caller: Reader, gateway: GatewayOf, limit: Limit = LIMIT, cursor: Cursor = None
) -> Page[Schedule]:
    """List the tenant's schedules by id; a schedule that was just made may be missing for a moment."""
    own, after = _own(gateway, caller), read_name(cursor)
    names = [name for name in await own.names() if name > after]
    more = write_cursor(names[limit - 1]) if len(names) > limit else None
    return Page(items=list(await own.describe(names[:limit])), next=more)


@router.get("/schedules/{schedule}", operation_id="get_schedule")
async def get_schedule(caller: Reader, schedule: ScheduleName, gateway: GatewayOf) -> Schedule:
    """A schedule, with its next runs."""
    return await _own(gateway, caller).get(schedule)


@router.patch("/schedules/{schedule}", operation_id="update_schedule")
async def update_schedule(
    caller: Runner, schedule: ScheduleName, body: ScheduleChanges, gateway: GatewayOf
) -> Schedule:
    """Change some fields; the schedule is then in the caller's name."""
    fields = {name: getattr(body, name) for name in body.model_fields_set}
    return await _own(gateway, caller).update(schedule, **fields, by=caller.name)


@router.delete("/schedules/{schedule}", status_code=HTTP_204_NO_CONTENT, operation_id="remove_schedule")
async def remove_schedule(caller: Runner, schedule: ScheduleName, gateway: GatewayOf) -> None:
    """Remove a schedule; turns that it has started go on."""
    await _own(gateway, caller).remove(schedule)
    gateway.limits.forget_schedule(caller.tenant, schedule)


@router.post("/schedules/{schedule}/pause", operation_id="pause_schedule")
async def pause_schedule(
    caller: Runner, schedule: ScheduleName, gateway: GatewayOf, body: NoteBody | None = None
) -> Schedule:
    """Pause a schedule: it starts no run until it is unpaused."""
    return await _own(gateway, caller).pause(schedule, (body or NoteBody()).note)


@router.post("/schedules/{schedule}/unpause", operation_id="unpause_schedule")
async def unpause_schedule(
    caller: Runner, schedule: ScheduleName, gateway: GatewayOf, body: NoteBody | None = None
) -> Schedule:
    """Let a paused schedule start runs again."""
    return await _own(gateway, caller).unpause(schedule, (body or NoteBody()).note)


@router.post("/schedules/{schedule}/trigger", status_code=HTTP_202_ACCEPTED, operation_id="trigger_schedule")
async def trigger_schedule(caller: Runner, schedule: ScheduleName, gateway: GatewayOf) -> Schedule:
    """Start a run of a schedule now, even while it is paused."""
    own = _own(gateway, caller)
    await own.trigger(schedule)
    return await own.get(schedule)


@router.get("/schedules/{schedule}/runs", operation_id="list_schedule_runs")
async def list_schedule_runs(
    caller: Reader, schedule: ScheduleName, gateway: GatewayOf, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> Page[ScheduleRun]:
    """List the runs of a schedule, the newest first, as long as Temporal keeps them."""
    return Page(items=await _own(gateway, caller).runs(schedule, limit=limit))
