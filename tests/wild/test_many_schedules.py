"""Many schedules of one tenant: they cost no other tenant a call, and there is a limit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch
from uuid import uuid4

import pytest
from temporalio.client import ScheduleHandle

from perdure import Agent
from perdure.client import Client
from perdure.gateway.routes.schedules import ScheduleChanges
from tests.gateway import gateway, token_lines
from tests.house import House, eventually

AGENT = Agent(name="tester", model="openai/scripted")
BODY = {"cron": "@yearly", "agent": "tester", "prompt": "go"}


@asynccontextmanager
async def schedules(client: Client, **names: list[str]) -> AsyncIterator[None]:
    """Schedules of these tenants, until the block ends."""
    try:
        for tenant, ids in names.items():
            for name in ids:
                await client.schedules.of(tenant).add(name, **BODY)

        async def listed() -> bool:
            found = [set(await client.schedules.of(tenant).names()) for tenant in names]
            return all(set(ids) <= known for ids, known in zip(names.values(), found, strict=True))

        await eventually(listed)
        yield
    finally:
        for tenant in names:
            for name in await client.schedules.of(tenant).names():
                await client.schedules.of(tenant).remove(name)


async def test_a_list_costs_a_call_for_each_of_its_own_page_and_none_for_others(house: House) -> None:
    """T-08."""
    acme, beta = f"acme-{uuid4().hex[:6]}", f"beta-{uuid4().hex[:6]}"
    lines, tokens = token_lines(ann=(acme, "read"), eve=(beta, "read"))
    async with (
        house.worker(AGENT),
        schedules(house.client, **{acme: [f"s{n}" for n in range(7)], beta: ["only"]}),
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        asked: list[str] = []
        describe = ScheduleHandle.describe

        async def count(self: ScheduleHandle) -> object:
            asked.append(self.id)
            return await describe(self)

        listed: list[str] = []
        list_schedules = type(house.temporal).list_schedules

        async def note(self: object, query: str | None = None) -> object:
            iterator = await list_schedules(self, query)  # type: ignore[arg-type]

            async def each() -> AsyncIterator[object]:
                async for found in iterator:
                    listed.append(found.id)
                    yield found

            return each()

        with (
            patch.object(ScheduleHandle, "describe", count),
            patch.object(type(house.temporal), "list_schedules", note),
        ):
            assert [item["id"] for item in (await eve.get("/v1/schedules")).json()["items"]] == ["only"]
            assert asked == listed == [f"perdure:{beta}/only"]
            asked.clear()
            page = (await ann.get("/v1/schedules", params={"limit": 3})).json()
            assert [item["id"] for item in page["items"]] == ["s0", "s1", "s2"]
            assert len(asked) == 3
        seen = [item["id"] for item in page["items"]]
        while page["next"]:
            page = (await ann.get("/v1/schedules", params={"limit": 3, "cursor": page["next"]})).json()
            seen += [item["id"] for item in page["items"]]
        assert seen == [f"s{n}" for n in range(7)]
        for cursor in ("nonsense", "WzFd", "W10"):  # the last two are [1] and []
            assert (await ann.get("/v1/schedules", params={"cursor": cursor})).status_code == 422


async def test_a_tenant_adds_no_more_schedules_than_its_limit(house: House) -> None:
    """T-08."""
    acme, beta = f"acme-{uuid4().hex[:6]}", f"beta-{uuid4().hex[:6]}"
    lines, tokens = token_lines(ann=(acme, "run"), eve=(beta, "run"))
    async with (
        house.worker(AGENT),
        schedules(house.client, **{acme: ["a", "b"], beta: []}),
        gateway(house, gateway_tokens=lines, gateway_max_schedules=3) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        assert (await ann.post("/v1/schedules", json={"id": "c", **BODY})).status_code == 201
        refused = await ann.post("/v1/schedules", json={"id": "d", **BODY})
        assert (refused.status_code, refused.json()["code"]) == (429, "request.too_many_schedules")
        assert (await ann.post("/v1/schedules", json={"id": "c", **BODY})).status_code == 409
        assert (await eve.post("/v1/schedules", json={"id": "d", **BODY})).status_code == 201
        assert (await ann.delete("/v1/schedules/a")).status_code == 204

        async def added() -> bool:
            return (await ann.post("/v1/schedules", json={"id": "d", **BODY})).status_code == 201

        await eventually(added)  # once Temporal lists the removed one no more


@pytest.mark.parametrize("odd", ["it's", 'a "quote"', "back\\slash", "a_b%", "Zürich", "a/b", "*", "a ' OR 1"])
async def test_a_tenant_of_any_name_finds_its_own(house: House, odd: str) -> None:
    stem = uuid4().hex[:6]
    tenant = f"{stem}{odd}"
    async with (
        house.worker(AGENT),
        schedules(house.client, **{tenant: ["mine"], stem: ["theirs"], f"{stem}axb": ["other"], f"{stem}a": ["b"]}),
    ):
        assert await house.client.schedules.of(tenant).names() == ("mine",)
        assert await house.client.schedules.of(tenant).runs("mine") == ()
        assert await house.client.schedules.of(stem).names() == ("theirs",)


async def test_null_takes_a_field_away_over_http_and_a_reason_leaves_the_note(house: House) -> None:
    """Each field of the body, as its document says; but a schedule has a message, a time and somebody who works."""
    tenant = f"acme-{uuid4().hex[:6]}"
    lines, tokens = token_lines(ann=(tenant, "read,run"))
    needed = {"prompt", "cron", "agent"}
    given = {"timezone": "Europe/Berlin", "when_busy": "reject", "model": "openai/other", "max_steps": 3, "priority": 2}
    given |= {"budgets": {"llm_calls": 9}, "context": {"a": 1}, "jitter": 30, "catchup": 60, "note": "for Ann"}
    assert given.keys() == set(ScheduleChanges.model_fields) - needed - {"at", "session"}
    async with house.worker(AGENT), gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
        try:
            plain, full = [
                (await ann.post("/v1/schedules", json={**BODY, **fields})).json()
                for fields in ({"id": "plain", **dict.fromkeys(given)}, {"id": "full", **given})
            ]
            paused = (await ann.post("/v1/schedules/full/pause", json={"note": "holidays"})).json()
            assert (paused["note"], paused["reason"]) == ("for Ann", "holidays")
            for name in given:
                assert full[name] != plain[name], name
                changed = await ann.patch("/v1/schedules/full", json={name: None})
                assert (changed.status_code, changed.json()[name]) == (200, plain[name]), (name, changed.text)
            for name in needed:
                refused = await ann.patch("/v1/schedules/full", json={name: None})
                assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), name
        finally:
            for name in await house.client.schedules.of(tenant).names():
                await house.client.schedules.of(tenant).remove(name)
