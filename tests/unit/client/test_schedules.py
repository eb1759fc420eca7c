"""Fields of a schedule that changes: a note stays, a reason is a field of its own, and None takes a field away."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import ScheduleActionStartWorkflow, ScheduleUpdate, ScheduleUpdateInput

from perdure.client import Client, RequestRefusedError
from perdure.client.schedules import Schedules
from perdure.contracts.names import SCHEDULE_MEMO
from perdure.contracts.schedules import Schedule, ScheduleRequest

NIGHTLY: Mapping[str, Any] = {"cron": "0 7 * * 1-5", "agent": "writer", "prompt": "Summarise the day."}
OTHER: Mapping[str, Any] = {
    "timezone": "Europe/Berlin",
    "when_busy": "reject",
    "model": "openai/other",
    "max_steps": 3,
    "budgets": {"llm_calls": 9},
    "priority": 2,
    "context": {"team": "a"},
    "by": "ann",
    "jitter": 30,
    "catchup": 60,
    "paused": True,
    "note": "for Ann",
}
"""Another value than the default of each field that can be left out, beside those that say when and for whom."""


@pytest.fixture
async def schedules(client: Client) -> AsyncIterator[Schedules]:
    own = client.schedules.of(client.settings.task_queue)
    yield own
    for name in ("nightly", "plain"):
        await client.temporal.get_schedule_handle(own._name(name)).delete()


def told(schedule: Schedule) -> tuple[str, str, bool]:
    return schedule.note, schedule.reason, schedule.paused


@pytest.mark.parametrize("note", ["for Ann", ""])
async def test_a_schedule_keeps_its_note_whoever_pauses_it(schedules: Schedules, note: str) -> None:
    """The text that Temporal has for both is the reason, and the note again once there is no reason."""
    await schedules.add("plain", **NIGHTLY)
    assert told(await schedules.add("nightly", **NIGHTLY, note=note)) == (note, "", False)
    assert told(await schedules.pause("nightly")) == (note, "", True)
    assert told(await schedules.pause("nightly", "holidays")) == (note, "holidays", True)
    assert told(await schedules.update("nightly", max_steps=7)) == (note, "holidays", True)
    assert told(await schedules.update("nightly", note="for Bob")) == ("for Bob", "holidays", True)
    assert told(await schedules.unpause("nightly")) == ("for Bob", "", False)
    assert told(await schedules.unpause("nightly", "they are back")) == ("for Bob", "they are back", False)
    await schedules._handle("nightly").pause(note="paused due to workflow failure: x")
    assert told(await schedules.get("nightly")) == ("for Bob", "paused due to workflow failure: x", True)
    described = await schedules._handle("nightly").describe()
    assert described.schedule.state.note == "paused due to workflow failure: x"


async def test_a_schedule_of_an_older_release_has_its_note_where_temporal_shows_it(schedules: Schedules) -> None:
    await schedules.add("plain", **NIGHTLY)
    await schedules.add("nightly", **NIGHTLY)

    async def age(given: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule = given.description.schedule
        old = await schedules._made(ScheduleRequest(id="nightly", **NIGHTLY))
        assert isinstance(old.action, ScheduleActionStartWorkflow)
        assert old.action.memo
        memo: Any = old.action.memo[SCHEDULE_MEMO]
        del memo["note"]
        schedule.action, schedule.state.note = old.action, "for Ann"
        return ScheduleUpdate(schedule=schedule)

    await schedules._handle("nightly").update(age)
    assert told(await schedules.get("nightly")) == ("for Ann", "", False)
    assert told(await schedules.pause("nightly")) == ("for Ann", "", True)
    assert told(await schedules.update("nightly", max_steps=7)) == ("for Ann", "", True)


async def test_none_takes_each_field_away_and_what_has_to_be_there_is_refused(schedules: Schedules) -> None:
    assert OTHER.keys() == set(ScheduleRequest.model_fields) - {"id", "cron", "at", "agent", "session", "prompt"}
    plain, full = await schedules.add("plain", **NIGHTLY), await schedules.add("nightly", **NIGHTLY, **OTHER)
    for name in OTHER:
        assert getattr(full, name) != getattr(plain, name), name
        full = await schedules.update("nightly", **{name: None})
        assert getattr(full, name) == getattr(plain, name), name
    assert full.model_copy(update={"id": "plain", "next_at": plain.next_at}) == plain
    for name in ("prompt", "cron", "agent"):
        with pytest.raises(RequestRefusedError, match=r"prompt: |say when|say for whom"):
            await schedules.update("nightly", **{name: None})
    await schedules.update("nightly", cron=None, at=plain.next_at[0] + timedelta(days=2))


async def test_none_of_a_new_schedule_is_a_field_that_was_left_out(schedules: Schedules) -> None:
    plain = await schedules.add("plain", **NIGHTLY)
    new = await schedules.add("nightly", **NIGHTLY, **dict.fromkeys(OTHER))
    assert new.model_copy(update={"id": "plain", "next_at": plain.next_at}) == plain
