"""Events over HTTP: each one once, in order, for whoever comes back, however far behind or slow; and what is wrong."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx
import pytest

from perdure import Agent, ToolContext, tool
from perdure.contracts.events import EVENT_TYPES
from perdure.gateway import hub, sse
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import WAIT_SECONDS, House, eventually
from tests.sse import Sent, follow, whole

NOTICES = {sse.RESYNC, sse.DROPPED, sse.END}


@tool
def dig(parts: int, size: int, context: ToolContext) -> str:
    """Dig, and say so often."""
    for part in range(parts):
        context.report_progress(part, parts, "x" * size)
    return "dug"


@tool
def hold() -> str:
    """Hold until the test lets go."""
    GATE.wait(WAIT_SECONDS)
    return "held"


GATE = threading.Event()
HOLDS = Script(replies=(call(("hold", {})), say("done")))
AGENT = Agent(name="tester", model="openai/scripted", tools=[dig, hold])


@pytest.fixture(autouse=True)
def gate() -> Iterator[threading.Event]:
    """Closed at first, open at the end, so that the worker can go."""
    GATE.clear()
    yield GATE
    GATE.set()


def digs(parts: int, size: int = 1) -> Script:
    return Script(replies=(call(("dig", {"parts": parts, "size": size})), say("done")))


def seqs(stream: list[Sent]) -> list[int]:
    """The numbers of the events, which are their ids."""
    assert all(sent.id == str(sent.data["seq"]) for sent in stream if sent.event not in NOTICES)
    return [int(sent.id) for sent in stream if sent.event not in NOTICES]


async def test_a_running_job_is_followed_to_its_end_and_a_finished_one_is_replayed(house: House) -> None:
    """S-47 S-50: the same lines as those of the command, then the end; who has seen all is sent away."""
    held = Script(replies=(call(("hold", {})), say("one"), say("two")))
    async with ScriptedProvider(held) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await house.start()
        await house.wait_for_event("tool_start")
        async with follow(door.http, house.session) as stream:
            live = [await anext(stream) for _ in range(2)]
            await house.client.send(house.session, "and again")
            GATE.set()
            live += [sent async for sent in stream]
        known = [json.loads(envelope.to_json()) for envelope in await house.store.events(house.session)]
        assert seqs(live) == list(range(1, len(known) + 1))
        assert [{k: v for k, v in sent.data.items() if k != "replayed"} for sent in live[:-1]] == known
        assert [sent.event for sent in live[:-1]] == [line["type"] for line in known]
        marks = ["replayed" in sent.data for sent in live[:-1]]
        assert (marks[0], marks[-1], marks) == (True, False, sorted(marks, reverse=True))
        last = len(known)
        assert live[-1] == Sent("", "end", {"session": house.session, "after": str(last), "code": None, "detail": ""})
        replayed = await whole(door.http, house.session, after=3)
        assert seqs(replayed) == list(range(4, last + 1))
        assert all(sent.data["replayed"] for sent in replayed[:-1])
        path = f"/v1/sessions/{house.session}/events"
        assert (await door.http.get(path, headers={"Last-Event-ID": str(last)})).status_code == 204
        ends = await whole(door.http, house.session, types="AgentEnd, agent_start")
        assert [sent.event for sent in ends] == ["agent_start", "agent_end", "agent_start", "agent_end", "end"]


async def test_last_event_id_wins_over_after_and_a_wrong_place_is_a_problem(house: House) -> None:
    """S-47: also from the future, also in a tree; nothing is streamed then."""
    async with ScriptedProvider(digs(1)) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await house.run()
        last = len(await house.events())
        assert seqs(await whole(door.http, house.session, "5", after=2)) == list(range(6, last + 1))
        assert seqs(await whole(door.http, house.session, "", after=2)) == list(range(3, last + 1))
        path = f"/v1/sessions/{house.session}/events"
        wrong: list[tuple[dict[str, str], dict[str, Any]]] = [
            ({"Last-Event-ID": str(last + 1)}, {}),
            ({}, {"after": last + 1}),
            ({"Last-Event-ID": "5.0123456789ab-1"}, {}),
            ({"Last-Event-ID": "five"}, {"after": 1}),
            ({}, {"after": "-1"}),
            ({}, {"after": "9" * 30}),
            ({}, {"types": "no_such_event"}),
            ({}, {"gap_policy": "forget"}),
            ({}, {"tree": 1, "gap_policy": "notify"}),
            ({}, {"tree": 1, "after": "5.xyz-1"}),
            ({}, {"tree": "maybe"}),
        ]
        for headers, query in wrong:
            answer = await door.http.get(path, params=query, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), (headers, query)
        missing = await door.http.get("/v1/sessions/nobody/events")
        assert (missing.status_code, missing.json()["code"]) == (404, "request.unknown_session")


async def test_who_is_far_behind_gets_every_event_or_a_notice(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-48: by the reader's choice, and the notice has no id."""
    monkeypatch.setattr(hub, "MOST_FRAMES", 10)
    async with ScriptedProvider(digs(50)) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await house.run()
        last = len(await house.events())
        assert seqs(await whole(door.http, house.session, after=2)) == list(range(3, last + 1))
        notice, *rest = await whole(door.http, house.session, after=2, gap_policy="notify")
        assert notice == Sent("", "resync", {"after_seq": 2, "oldest": last - 9, "latest": last})
        assert seqs(rest) == list(range(last - 9, last + 1))
        near = await whole(door.http, house.session, after=last - 10, gap_policy="notify")
        assert seqs(near) == list(range(last - 9, last + 1))


async def test_a_slow_follower_is_dropped_with_its_number_and_slows_nobody(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-49: the others get all of it, the job goes on, and the slow one comes back for the rest."""
    monkeypatch.setattr(sse, "STALL", timedelta(milliseconds=300))
    held = Script(replies=(call(("hold", {})), call(("dig", {"parts": 20, "size": 1})), say("done")))
    async with (
        ScriptedProvider(held) as provider,
        house.worker(AGENT),
        gateway(house) as door,
        AsyncExitStack() as stack,
    ):
        house.use(provider)
        await house.start()
        await house.wait_for_event("tool_start")
        quick = await stack.enter_async_context(follow(door.http, house.session))
        await anext(quick)
        taking = asyncio.Event()
        dropped: list[bytes] = []

        async def send(message: Any) -> None:
            """A socket that takes the first of it and then nothing, until it does again."""
            if len(dropped) > 2 and not message.get("body", b"").startswith(b"event: dropped"):
                await taking.wait()
            dropped.append(message.get("body", b""))

        following = door.app.state.gateway.hub.follow(house.session, 0)
        from perdure.gateway.routes import events as route  # noqa: PLC0415 - only here its inside is looked at

        chunks = route._encode(following, [], door.app.state.gateway.hub.deltas)
        response = sse.EventStream(chunks, place="0", ends={})
        slow = asyncio.create_task(response({"type": "http"}, _stays, send))
        GATE.set()
        rest = [sent async for sent in quick]
        last = len(await house.events())
        assert seqs(rest) == list(range(2, last + 1))
        await asyncio.wait_for(slow, WAIT_SECONDS)
        notice = dropped[-1].decode()
        taken = b"".join(dropped).decode()
        after = json.loads(notice.split("data: ")[1])["after"]
        assert notice.startswith("event: dropped\n")
        assert int(after) < last
        assert f"id: {after}\n" in taken or after == "0"
        assert f"id: {int(after) + 1}\n" not in taken
        assert seqs(await whole(door.http, house.session, after)) == list(range(int(after) + 1, last + 1))
        assert door.app.state.gateway.hub.sessions == 0


async def _stays() -> Any:
    await asyncio.Event().wait()


async def test_many_followers_of_one_session_share_one_reader_of_the_store(house: House) -> None:
    """S-46: each gets every number; the events are read from the store once."""
    held = Script(replies=(call(("hold", {})), call(("dig", {"parts": 40, "size": 1})), say("done")))
    async with ScriptedProvider(held) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await house.start()
        await house.wait_for_event("tool_start")
        async with (
            httpx.AsyncClient(base_url=door.url, timeout=60, limits=httpx.Limits(max_connections=None)) as http,
            AsyncExitStack() as stack,
        ):
            streams = [await stack.enter_async_context(follow(http, house.session)) for _ in range(40)]
            for stream in streams:
                await anext(stream)
            assert door.app.state.gateway.hub.sessions == 1
            store = await door.app.state.gateway.client.store()

            async def attended() -> bool:
                return len(store.doorbell._bells) == 1

            await eventually(attended)
            reads = 0
            events = store.events

            async def count(*arguments: Any, **options: Any) -> Any:
                nonlocal reads
                reads += 1
                return await events(*arguments, **options)

            store.events = count
            GATE.set()
            got = await asyncio.gather(*(_seqs_of(stream) for stream in streams))
            assert reads < 40
        last = len(await house.events())
        assert got == [list(range(2, last + 1))] * 40


async def _seqs_of(stream: AsyncIterator[Sent]) -> list[int]:
    return seqs([sent async for sent in stream])


async def test_a_stream_ends_with_its_place_when_the_gateway_stops(house: House) -> None:
    """S-47: another replica goes on from there."""
    async with ScriptedProvider(HOLDS) as provider, house.worker(AGENT), gateway(house) as second:
        house.use(provider)
        async with gateway(house) as first:
            await house.start()
            await house.wait_for_event("tool_start")
            async with follow(first.http, house.session) as stream:
                got = [await anext(stream) for _ in range(len(await house.events()))]
                first.server.stop()
                (farewell,) = [sent async for sent in stream]
        assert farewell == Sent("", "dropped", {"after": got[-1].id})
        GATE.set()
        rest = await whole(second.http, house.session, got[-1].id)
        assert seqs(got + rest) == list(range(1, len(await house.events()) + 1))


async def test_a_job_that_temporal_has_ended_ends_its_stream_with_the_code(house: House) -> None:
    async with ScriptedProvider(HOLDS) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        handle = await house.start()
        await house.wait_for_event("tool_start")
        async with follow(door.http, house.session) as stream:
            await anext(stream)
            await handle.terminate("enough")
            notice = [sent async for sent in stream][-1]
        assert (notice.event, notice.data["code"]) == ("end", "runtime.turn_closed")
        again = await door.http.get(f"/v1/sessions/{house.session}/events", params={"after": notice.data["after"]})
        assert again.status_code == 204
        GATE.set()


async def test_another_tenants_events_are_not_there_and_streams_are_counted(house: House) -> None:
    lines, tokens = token_lines(ours=("acme", "read,run"), theirs=("other", "read"))
    (house.folder / "tokens").write_text(lines)
    settings = {"gateway_tokens_file": house.folder / "tokens", "gateway_max_streams": 2}
    async with ScriptedProvider(HOLDS) as provider, house.worker(AGENT), gateway(house, **settings) as door:
        house.use(provider)
        async with door.holder(tokens["ours"]) as ours, door.holder(tokens["theirs"]) as theirs:
            body = {"agent": "tester", "prompt": "go", "session": house.session}
            assert (await ours.post("/v1/sessions", json=body)).status_code == 202
            path = f"/v1/sessions/{house.session}/events"
            assert (await theirs.get(path)).json()["code"] == "request.unknown_session"
            assert (await door.http.get(path)).status_code == 401
            async with follow(ours, house.session) as first, follow(ours, house.session):
                await anext(first)
                refused = await ours.get(path)
                assert (refused.status_code, refused.json()["code"]) == (429, "request.too_many_streams")
            limits = door.app.state.gateway.limits

            async def closed() -> bool:
                return not limits._open

            await eventually(closed)
            GATE.set()


def test_no_event_has_the_name_of_a_notice() -> None:
    assert not NOTICES & set(EVENT_TYPES)


async def test_a_reader_that_goes_leaves_nothing_behind(house: House) -> None:
    """S-49: the socket is closed while nothing happens."""
    async with ScriptedProvider(HOLDS) as provider, house.worker(AGENT), gateway(house) as door:
        house.use(provider)
        await house.start()
        await house.wait_for_event("tool_start")
        for _ in range(3):
            async with follow(door.http, house.session) as stream:
                await anext(stream)
        found = door.app.state.gateway.hub

        async def idle() -> bool:
            return found.sessions == 0 and not found._tasks

        await eventually(idle)
        GATE.set()
