"""An agent says how long its sessions are kept: a schedule of Temporal sweeps, and a dry run says what it would do."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, update

from perdure import Agent, Image, tool
from perdure.cli.store import ask_sweeps
from perdure.client import EventsGoneError, SessionErasedError
from perdure.client.retention import ensure_sweeps, find_interval, schedule_id_of, schedule_sweeps
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.retention import Retention
from perdure.store import schema
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House, eventually
from tests.workflow.test_command_line import perdure
from tests.workflow.test_content import PNG

pytestmark = pytest.mark.deep

SAYS = Script(replies=(say("one"), say("two"), say("three")))


def agent(**kept: object) -> Agent:
    return Agent(name="tester", model="openai/scripted", retention=Retention(**kept))  # type: ignore[arg-type]


async def make_old(house: House) -> None:
    """Have the turns that ended so far have ended a month ago."""
    ago = datetime.now(UTC) - timedelta(days=30)

    def change(connection: Connection) -> None:
        connection.execute(update(schema.turns).values(started_at=ago, ended_at=ago))
        connection.execute(update(schema.artifacts).values(created_at=ago))

    await house.store.write("make_old", change)


async def test_a_schedule_sweeps_old_sessions_and_a_dry_run_says_which(house: House) -> None:
    queue = house.settings.task_queue
    tester = agent(transcript="1w")
    async with ScriptedProvider(SAYS) as provider, house.worker(tester):
        house.use(provider)
        await house.run()
        await make_old(house)
        code, (dry,) = await perdure("store", "retention", "--dry-run")
        assert (code, dry["erased"], dry["dry_run"]) == (0, 1, True)
        assert (await house.store.session(house.session)).turn == 1
        await ensure_sweeps(house.temporal, queue, [Agent(name="other", model="openai/scripted")], house.store)
        assert await find_interval(house.temporal, queue) is None
        await ensure_sweeps(house.temporal, queue, [tester], house.store)
        await ensure_sweeps(house.temporal, queue, [tester], house.store)
        assert await find_interval(house.temporal, queue) == timedelta(hours=1)
        await schedule_sweeps(house.temporal, queue, house.store, timedelta(days=1))
        await house.temporal.get_schedule_handle(schedule_id_of(queue)).trigger()

        async def is_erased() -> bool:
            return any(stone.finished_at for stone in await house.store.tombstones())

        await eventually(is_erased)
        with pytest.raises(SessionErasedError, match="at the end of its retention"):
            await house.client.transcript(house.session)
        code, (shown,) = await perdure("store", "retention")
        assert (code, shown["every_seconds"], shown["agents"]["tester"]["keep_latest"]) == (0, 86_400, False)
        assert (await perdure("store", "retention", "--off"))[0] == 0
        assert await find_interval(house.temporal, queue) is None


async def test_the_doctor_says_when_the_last_sweep_was_and_whether_sweeps_are_missing(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if a stranger's workflow has the id of the schedule: then no worker can make it, and each says so."""
    queue, tester = house.settings.task_queue, agent(transcript="1w")
    async with house.worker(Agent(name="other", model="openai/scripted")):
        assert await ask_sweeps(house.client) is None
    async with house.worker(tester):
        taken = f"temporal-sys-scheduler:{schedule_id_of(queue)}"
        stranger = await house.temporal.start_workflow(AGENT_TURN, {"prompt": "x"}, id=taken, task_queue="nobodys")
        await ensure_sweeps(house.temporal, queue, [tester], house.store)
        assert f"another workflow has its id, {taken}" in caplog.text
        missing = await ask_sweeps(house.client)
        assert missing is not None
        assert (missing.ok, missing.fix) == (False, "run 'perdure store retention --every 1h'")
        await stranger.terminate()

        await ensure_sweeps(house.temporal, queue, [tester], house.store)
        fresh = await ask_sweeps(house.client)
        assert fresh is not None
        assert (fresh.ok, "there was none yet" in fresh.text) == (True, True)
        late = await ask_sweeps(house.client, datetime.now(UTC) + timedelta(hours=4))
        assert late is not None
        assert late.ok is False
        await house.temporal.get_schedule_handle(schedule_id_of(queue)).trigger()

        async def has_swept() -> bool:
            found = await ask_sweeps(house.client)
            return found is not None and "the last one ended" in found.text

        await eventually(has_swept)
        await schedule_sweeps(house.temporal, queue, house.store, None)


async def test_who_follows_a_swept_log_is_told_what_is_gone_and_where_to_go_on(house: House) -> None:
    async with ScriptedProvider(SAYS) as provider, house.worker(agent(events="1d")), gateway(house) as door:
        house.use(provider)
        await house.run()
        await make_old(house)
        last = (await house.store.session(house.session)).last_seq
        code, (swept,) = await perdure("store", "retention", "--now")
        assert (code, swept["events"], swept["kept"]) == (0, last, [])
        await (await house.client.send(house.session, "more")).result()
        said = f"events 1 to {last} of session {house.session!r} were deleted by the retention of its agent"
        with pytest.raises(EventsGoneError, match=said):
            async for _ in house.client.events(house.session, after=0):
                pass
        seen = [envelope.seq async for envelope in house.client.events(house.session, after=last)]
        assert seen[0] == last + 1
        stream = (await door.http.get(f"/v1/sessions/{house.session}/events", params={"after": 2})).text
        notice, told = stream.split("\n\n")[1].splitlines()
        assert notice == "event: resync"
        assert f'"after_seq": 2, "oldest": {last + 1}, "latest": {seen[-1]}' in told
        assert stream.count("event: agent_end") == 1


@pytest.mark.parametrize(
    ("kept", "left", "said"),
    [
        ({"artifacts": "7d"}, 0, "dot.png: deleted after 7 days by retention]"),
        ({"transcript": "7d", "keep_latest": True}, 1, ": deleted by retention]"),
    ],
    ids=["age", "latest"],
)
async def test_a_conversation_goes_on_without_the_images_that_were_swept(
    house: House, monkeypatch: pytest.MonkeyPatch, kept: dict[str, object], left: int, said: str
) -> None:
    """Of messages and of tools; the model reads in their place what became of them. A warm worker forgets them too."""
    monkeypatch.setattr("perdure.activities.models.provider_messages.KEPT_FOR", timedelta(0))

    @tool
    def draw() -> list[object]:
        """Draw."""
        return ["here", Image(PNG)]

    drawer = Agent(name="tester", model="anthropic/scripted", tools=[draw], retention=Retention(**kept))  # type: ignore[arg-type]
    script = Script(replies=(call(("draw", {})), say("seen"), say("again"), say("still here")))
    async with ScriptedProvider(script) as provider, house.worker(drawer):
        house.use(provider)
        turn = await house.client.start("tester", ["Look.", Image(PNG, name="dot.png")], session=house.session)
        assert (await turn.result()).output == "seen"
        await (await house.client.send(house.session, "And now?")).result()
        assert str(provider.requests[2].body).count("'type': 'image'") == 2
        await make_old(house)
        assert (await perdure("store", "retention", "--now"))[1][0]["artifacts"] == 2 - left
        last = await (await house.client.send(house.session, "And now?")).result()
        assert (last.output, last.error) == ("still here", None)
        sent = str(provider.requests[3].body)
    assert (sent.count("'type': 'image'"), said in sent) == (left, True)
