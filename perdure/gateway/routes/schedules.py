"""Schedules of the caller's tenant: turns that the clock starts, and what came of them."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.status import HTTP_201_CREATED, HTTP_202_ACCEPTED, HTTP_204_NO_CONTENT

from perdure.client.schedules import Schedules
from perdure.contracts.budgets import Budgets
from perdure.contracts.schedules import SCHEDULE_ID_PATTERN, Schedule, ScheduleRun
from perdure.contracts.turns import Label, WhenBusy
from perdure.contracts.values import JsonValue
from perdure.gateway.access import Caller, Gateway, GatewayOf, Reader, Runner
from perdure.gateway.views import Body, Page, SessionName

router = APIRouter(prefix="/v1", tags=["schedules"])

ScheduleName = Annotated[str, Path(pattern=SCHEDULE_ID_PATTERN, description="The schedule's id")]


class ScheduleChanges(Body):
    """Fields of a schedule; those that are left out stay as they are, and null takes one away."""

    cron: str | None = Field(default=None, max_length=200, description="Again and again: minute hour day month weekday")
    at: datetime | None = Field(default=None, description="Once; without an offset, in the time zone")
    timezone: str = Field(default="UTC", min_length=1, max_length=100, description="A name of the tz database")
    agent: Label | None = Field(default=None, min_length=1, description="A new session of this agent for each run,")
    session: SessionName | None = Field(default=None, description="or a message for this session")
    prompt: str = Field(default="", min_length=1, description="At most 128 KiB")
    when_busy: WhenBusy = "queue"
    model: Label | None = Field(default=None, min_length=1, description="Of new sessions")
    max_steps: int | None = Field(default=None, ge=1, le=1_000_000, description="Of new sessions")
    budgets: Budgets | None = Field(default=None, description="Of new sessions")
    context: dict[str, JsonValue] | None = Field(default=None, description="At most 16 KiB; no model reads it")
    jitter: float = Field(default=0, ge=0, le=86_400, description="Seconds: begin up to so much later")
    catchup: float | None = Field(
        default=None, ge=10, le=31_536_000, description="Seconds: make up for what was missed by less than this"
    )
    note: str = Field(default="", max_length=1000)


class ScheduleBody(ScheduleChanges):
    """A schedule: cron or at says when, agent or session for whom."""

    id: str = Field(pattern=SCHEDULE_ID_PATTERN, description="The ids of its sessions begin with it")
    prompt: str = Field(min_length=1, description="At most 128 KiB")
    paused: bool = False


class NoteBody(Body):
    """Why."""

    note: str = Field(default="", max_length=1000)


def _own(gateway: Gateway, caller: Caller) -> Schedules:
    return gateway.client.schedules.of(caller.tenant)


@router.post("/schedules", status_code=HTTP_201_CREATED, operation_id="add_schedule")
async def add_schedule(caller: Runner, body: ScheduleBody, gateway: GatewayOf) -> Schedule:
    """Have the clock start turns from now on, in the caller's name."""
    fields = {name: getattr(body, name) for name in body.model_fields_set - {"id"}}
    return await _own(gateway, caller).add(body.id, **fields, by=caller.name)


@router.get("/schedules", operation_id="list_schedules")
async def list_schedules(caller: Reader, gateway: GatewayOf) -> Page[Schedule]:
    """The tenant's schedules, by their ids; one that was just made may be missing for a moment."""
    return Page(items=await _own(gateway, caller).list())


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


@router.post("/schedules/{schedule}/pause", operation_id="pause_schedule")
async def pause_schedule(
    caller: Runner, schedule: ScheduleName, gateway: GatewayOf, body: NoteBody | None = None
) -> Schedule:
    """Start nothing for now."""
    return await _own(gateway, caller).pause(schedule, (body or NoteBody()).note)


@router.post("/schedules/{schedule}/unpause", operation_id="unpause_schedule")
async def unpause_schedule(
    caller: Runner, schedule: ScheduleName, gateway: GatewayOf, body: NoteBody | None = None
) -> Schedule:
    """Go on."""
    return await _own(gateway, caller).unpause(schedule, (body or NoteBody()).note)


@router.post("/schedules/{schedule}/trigger", status_code=HTTP_202_ACCEPTED, operation_id="trigger_schedule")
async def trigger_schedule(caller: Runner, schedule: ScheduleName, gateway: GatewayOf) -> Schedule:
    """Have it run now, paused or not; its runs then have one more."""
    own = _own(gateway, caller)
    await own.trigger(schedule)
    return await own.get(schedule)


@router.get("/schedules/{schedule}/runs", operation_id="list_schedule_runs")
async def list_schedule_runs(
    caller: Reader, schedule: ScheduleName, gateway: GatewayOf, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> Page[ScheduleRun]:
    """What it has started, the newest first, as long as Temporal keeps it."""
    return Page(items=await _own(gateway, caller).runs(schedule, limit=limit))
