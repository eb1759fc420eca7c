"""Ten attacks on other systems' APIs, played on a running gateway: each docstring names the report.

They are about limits that hold for one door or one request at a time only, ids and cursors of other tenants, ids of
another case, headers that two readers read in two ways, and tokens that are taken out while a request lasts.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from temporalio import workflow
from temporalio.client import WorkflowExecution
from temporalio.worker import Worker

from perdure import Agent
from perdure.client.executions import Runs
from perdure.contracts.retries import RetryPolicy
from perdure.gateway.routes import contents
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually

AGENT = Agent(name="tester", model="openai/scripted", retry=RetryPolicy(max_retries=0))
ANSWERS = Script(replies=(say("done"),), repeat=True)
CRON = {"cron": "@yearly", "agent": "tester", "prompt": "x"}


async def end_turns(house: House, count: int, tenant: str, *, fail: bool = False) -> list[str]:
    """Sessions of the tenant whose first turns have ended, by an outage if so wanted; a worker runs."""
    sessions = [f"{house.session}-{tenant}-{number}" for number in range(count)]
    script: dict[str, Any] = {"always": faults.status(503)} if fail else {"models": {"scripted": ANSWERS}}
    async with ScriptedProvider(**script) as provider:
        house.use(provider)
        for session in sessions:
            await (await house.client.start("tester", "go", session=session, tenant=tenant)).result()
    return sessions


async def end_workflows(house: House, sessions: Sequence[str]) -> None:
    for session in sessions:
        handle = house.temporal.get_workflow_handle(session)
        if await Runs(house.temporal).is_running(session):
            await handle.terminate()


async def test_a_bulk_resume_starts_no_more_than_the_tenant_may_have(house: House) -> None:
    """T-08: kestra-io/kestra#7880: restarting failed executions passed the limit of those that run at once."""
    lines, tokens = token_lines(ann=("acme", "admin"))
    async with house.worker(AGENT):
        sessions = await end_turns(house, 5, "acme", fail=True)
    limits = {"gateway_tokens": lines, "gateway_max_running": 2}
    async with gateway(house, **limits) as door, door.holder(tokens["ann"]) as ann:  # nobody opens what begins
        asked = {"dry_run": False, "per_second": 100}
        items = (await ann.post("/v1/resume", json=asked)).json()["items"]
        assert [item["outcome"] for item in items] == ["resumed"] * 2 + ["failed"] * 3
        assert "the tenant has 2 running jobs" in items[-1]["error"]
        again = (await ann.post("/v1/resume", json=asked)).json()["items"]
        assert "resumed" not in {item["outcome"] for item in again[2:]}
        one = await ann.post(f"/v1/sessions/{sessions[4]}/resume", json={})
        assert (one.status_code, one.json()["code"]) == (429, "request.too_many_running")
        await end_workflows(house, sessions)


@pytest.mark.deep
async def test_requests_at_once_pass_no_limit_that_each_alone_does_not_pass(house: House) -> None:
    """T-08: NousResearch/hermes-agent#34153: count and start are apart, so that calls at once all pass the check."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with house.worker(AGENT):
        sessions = await end_turns(house, 8, "acme")
        others = await end_turns(house, 1, "evil")
    limits = {"gateway_tokens": lines, "gateway_max_running": 2}
    async with (
        gateway(house, **limits) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):

        async def send(http: httpx.AsyncClient, session: str) -> int:
            return (await http.post(f"/v1/sessions/{session}/resume", json={"prompt": "x"})).status_code

        at_once = await asyncio.gather(*(send(ann, session) for session in sessions))
        assert sorted(at_once) == [202] * 2 + [429] * 6
        assert [await send(ann, session) for session in sessions].count(429) >= 6  # one by one neither
        assert await send(eve, others[0]) == 202
        started = [session for session, status in zip(sessions, at_once, strict=True) if status == 202]
        async with ScriptedProvider(models={"scripted": ANSWERS}) as provider, house.worker(AGENT):
            house.use(provider)
            for session in started:
                await (await house.client.attach(session, 2)).result()

            async def taken() -> bool:
                return 202 in [await send(ann, session) for session in sessions if session not in started]

            assert await eventually(taken)  # what has ended counts no longer
        await end_workflows(house, [*sessions, *others])


async def test_schedules_added_at_once_are_no_more_than_the_tenant_may_have(house: House) -> None:
    """T-08: Canopus-Labs/PrepPilot#1553: counting first and creating then let any number at once through."""
    tenant = f"acme-{uuid4().hex[:6]}"
    lines, tokens = token_lines(ann=(tenant, "run,read"))
    async with (
        house.worker(AGENT),
        gateway(house, gateway_tokens=lines, gateway_max_schedules=3) as door,
        door.holder(tokens["ann"]) as ann,
    ):

        async def add(name: str, **fields: object) -> int:
            return (await ann.post("/v1/schedules", json={"id": name, **CRON, **fields})).status_code

        try:
            added = await asyncio.gather(*(add(f"s{number}") for number in range(10)))
            assert sorted(added) == [201] * 3 + [429] * 7
            made = [f"s{number}" for number, status in enumerate(added) if status == 201]
            assert await add(made[0]) == 409
            assert (await ann.delete(f"/v1/schedules/{made[0]}")).status_code == 204
            assert await add("bad", cron="no time") == 422  # and it leaves no trace in the count
            assert await add("later") == 201
            assert await add("more") == 429
        finally:
            own = house.client.schedules.of(tenant)
            for name in [*(f"s{number}" for number in range(10)), "later"]:
                if (await own.describe([name])) != ():
                    await own.remove(name)


ODD_HOSTS = ("[", "[::1", "1234:5678::1:8080", "[x]", "localhost:99999", "localhost:x", "a]b", "")


async def ask_raw(door: Door, *headers: str, path: str = "/v1/agents", body: str = "") -> tuple[int, str]:
    """The status and the whole answer to a request whose headers are these lines, and no other."""
    reader, writer = await asyncio.open_connection(*door.url.removeprefix("http://").split(":"))
    method = "POST" if body else "GET"
    told = ("Connection: close", f"Content-Length: {len(body)}", "Content-Type: application/json")
    writer.write("\r\n".join((f"{method} {path} HTTP/1.1", *headers, *told, "", body)).encode("latin-1"))
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def test_a_host_or_an_origin_that_is_none_is_refused_and_is_no_bug(house: House) -> None:
    """sabnzbd/sabnzbd#3561: a Host that is no address was a traceback in the log, and a 500."""
    lines, tokens = token_lines(ann=("acme", "read"))
    async with gateway(house) as door:
        for host in ODD_HOSTS:
            status, answer = await ask_raw(door, f"Host: {host}")
            assert status in {200, 403}, (host, answer)
            assert status == 200 or "request.foreign_origin" in answer, (host, answer)
        for origin in ("http://[", "http://[::1", "[", "null", "http://localhost:x"):
            status, answer = await ask_raw(door, "Host: localhost", f"Origin: {origin}", path="/v1/cancel", body="{}")
            assert (status, "request.foreign_origin" in answer) == (403, True), (origin, answer)
    async with gateway(house, gateway_tokens=lines) as door:
        cookie = f"Cookie: perdure_token={tokens['ann']}"
        for host in ODD_HOSTS:
            status, answer = await ask_raw(door, f"Host: {host}", cookie)
            assert status == 200, (host, answer)
            login = f'{{"token": "{tokens["ann"]}"}}'
            status, answer = await ask_raw(door, f"Host: {host}", path="/ui/login", body=login)
            assert status == 204, (host, answer)


async def test_of_two_tokens_none_is_chosen(house: House) -> None:
    """wso2/product-apim#6273: a header with two tokens was let in; which of them counts depends on who reads it."""
    lines, tokens = token_lines(ann=("acme", "read"), eve=("evil", "read"))
    ann, eve = (f"Bearer {tokens[name]}" for name in ("ann", "eve"))
    async with gateway(house, gateway_tokens=lines) as door:
        assert (await ask_raw(door, "Host: a", f"Authorization: {ann}"))[0] == 200
        for told in (
            (f"Authorization: {ann}", f"Authorization: {eve}"),
            (f"Authorization: {eve}", f"authorization: {ann}"),
            (f"Authorization: {ann}", "Authorization: Basic eDp5"),
            (f"Authorization: {ann}, {eve}",),
            (f"Authorization: {ann};{ann}",),
            (f"Cookie: perdure_token={tokens['ann']}", f"Cookie: perdure_token={tokens['eve']}"),
            (f"Cookie: perdure_token={tokens['ann']}; perdure_token={tokens['eve']}",),
        ):
            status, answer = await ask_raw(door, "Host: a", *told)
            assert (status, "request.unauthenticated" in answer) == (401, True), (told, answer)


async def test_a_token_that_is_taken_out_ends_what_it_has_begun(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-09: Tr3kkR/Yuzu#955: long requests asked who sends them once; here a resume of many, and an export."""
    lines, tokens = token_lines(ann=("acme", "admin"), bob=("acme", "admin"))
    async with house.worker(AGENT):
        sessions = await end_turns(house, 4, "acme", fail=True)
    path = tmp_path / "tokens"
    path.write_text(lines, encoding="utf-8")
    begun, gone = asyncio.Event(), asyncio.Event()

    async def export(*_: object) -> AsyncGenerator[dict[str, object], None]:
        yield {"line": "first"}
        begun.set()
        await gone.wait()
        yield {"line": "what came later"}

    monkeypatch.setattr(contents, "export", export)
    async with (
        gateway(house, gateway_tokens_file=path) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["bob"]) as bob,
    ):
        resuming = asyncio.create_task(ann.post("/v1/resume", json={"dry_run": False, "per_second": 1}))

        async def resumed() -> bool:
            return await Runs(house.temporal).is_running(sessions[0])

        async def refused() -> bool:
            return (await ann.get("/v1/agents")).status_code == 401

        async def read() -> str:
            text = ""
            async with ann.stream("GET", f"/v1/sessions/{sessions[0]}/export?format=openai") as answer:
                async for chunk in answer.aiter_text():
                    text += chunk
            return text

        await eventually(resumed)
        reading = asyncio.create_task(read())
        await begun.wait()
        path.write_text(lines.splitlines()[1], encoding="utf-8")
        await eventually(refused)
        gone.set()
        with pytest.raises(httpx.RemoteProtocolError):  # cut, so that nobody takes a part for the whole
            await reading
        answer = await resuming
        assert (answer.status_code, answer.json()["code"]) == (401, "request.unauthenticated")
        assert not await Runs(house.temporal).is_running(sessions[3])
        assert (await bob.get("/v1/agents")).status_code == 200
        await end_workflows(house, sessions)


@workflow.defn(name="NightlyImport", sandboxed=False)
class NightlyImport:
    """A workflow of somebody else in the namespace."""

    @workflow.run
    async def run(self, wait: bool) -> None:
        await workflow.wait_condition(lambda: not wait)


@pytest.mark.deep
async def test_an_id_gives_nobody_the_workflows_that_others_have_under_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/airflow#17897: a MySQL database takes ids of another case for the same, and Temporal may list by one.

    Neither such a run nor one of another application under the very id is the session's: its histories stay when the
    session is erased with its own, and a cancel by force does not end it.
    """
    lines, tokens = token_lines(eve=("evil", "admin"))
    queue, name, other = f"nightly-{uuid4().hex[:6]}", f"{house.session}-Nightly", f"{house.session}-nightly"
    async with Worker(house.temporal, task_queue=queue, workflows=[NightlyImport]), house.worker(AGENT):
        for each in (name, other):
            await house.temporal.execute_workflow(NightlyImport.run, args=[False], id=each, task_queue=queue)
        async with ScriptedProvider(models={"scripted": ANSWERS}) as provider:
            house.use(provider)
            async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["eve"]) as eve:
                body = {"agent": "tester", "prompt": "x", "session": name}
                assert (await eve.post("/v1/sessions", json=body)).status_code == 202
                await (await house.client.attach(name, 1)).result()
                running = await house.temporal.start_workflow(NightlyImport.run, args=[True], id=name, task_queue=queue)
                forced = await eve.post(f"/v1/sessions/{name}/cancel", json={"force": True})
                assert (forced.status_code, forced.json().get("stops")) == (202, False), forced.text
                assert await Runs(house.temporal).is_running(name)
                await running.terminate()
                listing = type(house.temporal).list_workflows

                def list_any_case(self: Any, query: str, **options: Any) -> AsyncIterator[WorkflowExecution]:
                    loose = query.replace(f'WorkflowId = "{name}"', f'WorkflowId IN ("{name}", "{other}")')
                    return listing(self, loose, **options)

                async def listed() -> bool:
                    runs = [run async for run in house.temporal.list_workflows(f'WorkflowId = "{name}"')]
                    return len(runs) == 3 and all(run.close_time is not None for run in runs)

                await eventually(listed)
                monkeypatch.setattr(type(house.temporal), "list_workflows", list_any_case)
                assert (await eve.delete(f"/v1/sessions/{name}?histories=true")).status_code == 204
                monkeypatch.undo()

        async def left() -> bool:
            runs = [run async for run in house.temporal.list_workflows(f'WorkflowId IN ("{name}", "{other}")')]
            return sorted((run.id, run.workflow_type) for run in runs) == sorted(
                [(name, "NightlyImport"), (name, "NightlyImport"), (other, "NightlyImport")]
            )

        assert await eventually(left)


async def test_no_schedule_is_bound_to_another_tenants_session_or_found_by_a_like_name(house: House) -> None:
    """T-01: aegra/aegra#395, HeliosSoftware/hfs#447: a cron ran in a foreign thread; ``a``, ``/a``, ``a/`` were one."""
    base = f"acme-{uuid4().hex[:6]}"
    tenants = (base, f"{base}/", f"/{base}", base.upper(), f"{base}\N{COMBINING ACUTE ACCENT}", f'{base}" OR 1=1')
    lines, tokens = token_lines(**{f"t{number}": (tenant, "admin") for number, tenant in enumerate(tenants)})
    async with (
        house.worker(AGENT),
        gateway(house, gateway_tokens=lines) as door,
        AsyncExitStack() as stack,
    ):
        holders = [await stack.enter_async_context(door.holder(tokens[f"t{number}"])) for number in range(len(tenants))]
        ann, *others = holders
        (session,) = await end_turns(house, 1, base)
        fields = {"cron": "@yearly", "prompt": "x", "session": session}
        assert (await ann.post("/v1/schedules", json={"id": "daily", **fields})).status_code == 201
        try:
            for eve in others:
                assert (await eve.get("/v1/schedules/daily")).status_code == 404
                assert (await eve.get("/v1/schedules")).json()["items"] == []
                for path in ("", "/pause", "/trigger"):
                    method = "PATCH" if not path else "POST"
                    found = await eve.request(method, f"/v1/schedules/daily{path}", json={})
                    assert found.status_code == 404, (path, found.text)
                bound = await eve.post("/v1/schedules", json={"id": "mine", **fields})
                assert (bound.status_code, bound.json()["code"]) == (404, "request.unknown_session")
                assert (await eve.post("/v1/schedules", json={"id": "mine", **CRON})).status_code == 201
                moved = await eve.patch("/v1/schedules/mine", json={"session": session, "agent": None})
                assert (moved.status_code, moved.json()["code"]) == (404, "request.unknown_session")
                assert (await eve.get("/v1/schedules/mine")).json()["agent"] == "tester"
            assert [item["id"] for item in (await ann.get("/v1/schedules")).json()["items"]] in (["daily"], [])
        finally:
            for tenant in tenants:
                own = house.client.schedules.of(tenant)
                for schedule in await own.describe(["daily", "mine"]):
                    await own.remove(schedule.id)


async def test_a_cursor_or_a_place_of_another_tenant_leads_nowhere(house: House) -> None:
    """T-01: nesquena/hermes-webui#5677, projectnessie/nessie#3140: a made-up place led to others' rows."""
    lines, tokens = token_lines(ann=("acme", "read"), eve=("evil", "read"))
    async with (
        house.worker(AGENT),
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        theirs = await end_turns(house, 3, "acme")
        mine = await end_turns(house, 2, "evil")
        page = (await ann.get("/v1/sessions?limit=1")).json()
        assert page["next"] is not None
        seen = (await eve.get("/v1/sessions", params={"cursor": page["next"], "limit": 50})).text
        assert not any(session in seen for session in theirs)
        key = hashlib.sha256(theirs[0].encode()).hexdigest()[:12]
        for place in (f"1.{key}-0", f"0.{key}-1", f"-1.{key}-0", "-1", "1" * 30, f"{theirs[0]}-0", "0.zz-1"):
            for after, header in ((place, {}), ("0", {"Last-Event-ID": place})):
                params = {"tree": "1", "after": after}
                answer = await eve.get(f"/v1/sessions/{mine[0]}/events", params=params, headers=header)
                assert answer.status_code in {200, 204, 422}, (place, answer.text)
                assert not any(session in answer.text for session in theirs) or answer.status_code == 422
                assert "acme" not in answer.text or answer.status_code == 422


async def test_tenants_that_hold_large_bodies_leave_room_for_the_small_ones_of_others(house: House) -> None:
    """T-11: rmyndharis/OpenWA#936: bodies that come slowly hold all memory for bodies, and nobody else sends."""
    lines, tokens = token_lines(eve=("evil", "run"), mal=("worse", "run"), ann=("acme", "run,read"))
    await house.store.register_agents([AGENT.definition])
    held, done = asyncio.Semaphore(0), asyncio.Event()
    longest = 1_000_000

    async def slowly(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 10_000):
            yield b" " * 10_000
        held.release()
        await done.wait()
        yield b"{}"

    limits = {"gateway_tokens": lines, "gateway_max_body_bytes": longest}
    async with gateway(house, **limits) as door, AsyncExitStack() as stack:
        ann, eve, mal = [await stack.enter_async_context(door.holder(tokens[name])) for name in ("ann", "eve", "mal")]
        holding = [
            asyncio.create_task(http.post("/v1/sessions", content=slowly(size)))
            for http, size in ((eve, 990_000), (eve, 250_000), (mal, 750_000))
        ]
        for _ in holding:
            await held.acquire()

        async def full() -> bool:
            return bool(door.app.state.gateway.limits._bodies.total() >= 1_980_000)

        await eventually(full)
        body = {"agent": "tester", "prompt": "x" * 20_000, "no_such": 1}  # which is said once it was read
        small = await asyncio.gather(*(ann.post("/v1/sessions", json=body) for _ in range(2)))
        assert [answer.status_code for answer in small] == [422, 422], [answer.text for answer in small]
        large = await ann.post("/v1/sessions", json={**body, "prompt": "x" * 100_000})
        assert large.status_code == 429
        done.set()
        assert {answer.status_code for answer in await asyncio.gather(*holding)} == {422}
