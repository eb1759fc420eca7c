"""Many sessions that an outage has ended go on at once, by a filter; what is not meant stays as it is."""

import asyncio
from datetime import timedelta

import pytest

from perdure import Agent
from perdure.client import RequestRefusedError, resumes
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.test_command_line import perdure

BACK = Script(replies=tuple(say(f"answer {n}") for n in range(9)))
CODE = "llm.network_error"


def agent(name: str = "tester") -> Agent:
    return Agent(name=name, model="openai/scripted", retry=RetryPolicy(max_retries=0))


async def failed(house: House, *turns: tuple[str, str]) -> list[str]:
    """Turns that the provider's outage has ended, one after another: agent and tenant of each; gives their sessions."""
    sessions = [f"{house.session}-{number}" for number in range(len(turns))]
    async with ScriptedProvider(always=faults.status(503)) as provider:
        house.use(provider)
        for session, (name, tenant) in zip(sessions, turns, strict=True):
            turn = await house.client.start(name, "go", session=session, tenant=tenant)
            assert (await turn.result()).reason_code == CODE
    return sessions


async def ends(house: House, session: str) -> list[str]:
    return [turn.result.stop_reason if turn.result else "running" for turn in await house.store.turns(session)]


@pytest.mark.deep
async def test_a_filter_resumes_what_it_means_the_oldest_first_and_nothing_twice(house: House) -> None:
    async with house.worker(agent(), agent("other")):
        every = await failed(house, ("tester", ""), ("tester", "acme"), ("other", "acme"), ("other", ""))
        a, b, c, d = every
        found = await house.client.resume_all(reason_code=CODE)
        assert [(each.session, each.turn, each.outcome) for each in found] == [
            (session, 2, "would_resume") for session in every
        ]
        assert await house.client.resume_all(reason_code="llm.auth_error") == []
        assert [await ends(house, session) for session in every] == [["error"]] * 4
        async with ScriptedProvider(BACK) as provider:
            house.use(provider)
            code, lines = await perdure("resume", "--all", "--reason-code", CODE, "--agent", "tester", "--tenant", "")
            assert (code, [(line["session"], line["outcome"]) for line in lines]) == (0, [(a, "resumed")])
            done = await house.client.resume_all(agent="other", dry_run=False, limit=1)
            assert [(each.session, each.agent, each.outcome) for each in done] == [(c, "other", "resumed")]
            for session in (a, c):
                assert (await (await house.client.attach(session, 2)).result()).stop_reason == "finished"
            assert [each.session for each in await house.client.resume_all()] == [b, d]
            both = await asyncio.gather(*(house.client.resume_all(dry_run=False) for _ in range(2)))
            assert {each.outcome for outcomes in both for each in outcomes} <= {"resumed", "moved_on"}
            for session in (b, d):
                await (await house.client.attach(session, 2)).result()
            assert await house.client.resume_all(dry_run=False) == []
    assert [await ends(house, session) for session in every] == [["error", "finished"]] * 4


@pytest.mark.deep
async def test_what_cannot_go_on_is_named_with_the_reason(house: House) -> None:
    async with house.worker(agent(), agent("other")), ScriptedProvider(BACK) as provider:
        a, b = await failed(house, ("tester", ""), ("other", ""))
        block = (await house.client.block("a bad release", agent="tester")).block
        house.use(provider)
        for more in ([], ["--dry-run"]):
            code, lines = await perdure("resume", "--all", *more)
            assert code == 1
            refused = next(line for line in lines if line["session"] == a)
            assert (refused["outcome"], "a bad release" in refused["error"]) == ("failed", True)
        await (await house.client.attach(b, 2)).result()
        await house.client.unblock(block.id)
        assert [each.outcome for each in await house.client.resume_all()] == ["would_resume"]


async def test_a_session_that_has_gone_on_since_it_was_listed_is_left_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the last look at it and the start: the store refuses to take the later turn back."""
    async with house.worker(agent()), ScriptedProvider(BACK) as provider:
        (session,) = await failed(house, ("tester", ""))
        house.use(provider)
        start = house.client._sessions.start

        async def late(*arguments: object) -> object:
            monkeypatch.setattr(house.client._sessions, "start", start)
            await (await house.client.resume(session, "and this")).result()
            return await start(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(house.client._sessions, "start", late)
        await house.client.resume_all(dry_run=False)
        assert [message.content for message in await house.client.transcript(session)][-2:] == ["and this", "answer 0"]
    assert await ends(house, session) == ["error", "finished"]


class Clock:
    """Stands in for ``asyncio``: time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def get_running_loop(self) -> "Clock":
        return self

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0)


async def test_turns_begin_at_the_pace_that_was_asked_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house.worker(agent()), ScriptedProvider(BACK) as provider:
        sessions = await failed(house, *[("tester", "")] * 4)
        house.use(provider)
        clock, begun, start = Clock(), list[float](), house.client._sessions.start

        async def timed(*arguments: object) -> object:
            begun.append(clock.time())
            return await start(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(resumes, "asyncio", clock)
        monkeypatch.setattr(house.client._sessions, "start", timed)
        await house.client.resume_all(dry_run=False, per_second=2)
        for session in sessions:
            await (await house.client.attach(session, 2)).result()
    assert begun == [0, 0.5, 1, 1.5]


async def test_many_are_resumed_within_a_tenant_by_an_admin_alone(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "read,run"), boss=("acme", "admin"), eve=("evil", "admin"))
    async with (
        ScriptedProvider(BACK) as provider,
        house.worker(agent()),
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["boss"]) as boss,
        door.holder(tokens["eve"]) as eve,
    ):
        a, b = await failed(house, ("tester", "acme"), ("tester", "evil"))
        house.use(provider)
        ask = {"reason_code": CODE, "dry_run": False}
        assert (await ann.post("/v1/resume", json=ask)).status_code == 403
        (listed,) = (await boss.post("/v1/resume", json={})).json()["items"]
        assert (listed["session"], listed["outcome"]) == (a, "would_resume")
        (done,) = (await boss.post("/v1/resume", json=ask)).json()["items"]
        assert (done["session"], done["turn"], done["outcome"]) == (a, 2, "resumed")
        await (await house.client.attach(a, 2)).result()
        for odd in ({"per_second": 0}, {"limit": 0}, {"since": "2026-01-01"}, {"tenants": "acme"}):
            answer = await eve.post("/v1/resume", json=odd)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), odd
        answer = await eve.post("/v1/resume", json={"tenant": "acme"})
        assert (answer.status_code, answer.json()["code"]) == (403, "request.forbidden")
        (own,) = (await eve.post("/v1/resume", json={"tenant": "evil"})).json()["items"]
        assert (own["session"], own["outcome"]) == (b, "would_resume")
        assert await ends(house, b) == ["error"]


@pytest.mark.parametrize("route", ["/v1/resume", "/v1/cancel"])
async def test_without_tokens_all_tenants_are_meant_unless_one_is_named(house: House, route: str) -> None:
    """Both ways to act on many sessions read the field alike; the empty name is the default tenant's."""
    async with house.worker(agent()), gateway(house) as door:
        if route == "/v1/resume":
            a, b = await failed(house, ("tester", ""), ("tester", "acme"))
        else:
            a, b = f"{house.session}-a", f"{house.session}-b"
            for session, tenant in ((a, ""), (b, "acme")):
                await house.temporal.start_workflow(
                    AGENT_TURN,
                    {"agent": "tester", "prompt": "go", "tenant": tenant},
                    id=session,
                    task_queue=house.settings.task_queue,
                    start_delay=timedelta(hours=1),
                )
        for body, meant in (({}, {a, b}), ({"tenant": "acme"}, {b}), ({"tenant": ""}, {a}), ({"tenant": "x"}, set())):

            async def found(body: dict[str, str] = body) -> set[str]:
                answer = await door.http.post(route, json=body)
                assert answer.status_code == 200
                return {item["session"] for item in answer.json()["items"]}

            async def is_meant(meant: set[str] = meant) -> bool:
                return await found() == meant

            await eventually(is_meant)
        if route == "/v1/cancel":
            for session in (a, b):
                await house.temporal.get_workflow_handle(session).terminate()


@pytest.mark.deep
async def test_bad_filters_are_refused_and_nothing_is_resumed(house: House) -> None:
    with pytest.raises(RequestRefusedError, match="per_second: must be more than 0"):
        await house.client.resume_all(per_second=0)
    together = (
        ["--all", "s"],
        ["--all", "--at", "2"],
        ["--all", "--detach"],
        ["s", "--dry-run"],
        ["s", "--agent", "a"],
    )
    for words in (*together, [], ["--all", "--reason-code", "llm.networ_error"]):
        code, _ = await perdure("resume", *words, refused=True)
        assert code == 2
