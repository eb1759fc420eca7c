"""A session is followed through its turns: whoever comes back misses nothing, and the end is where no turn is left."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.client import Client, RequestRefusedError, TurnClosedError, UnknownSessionError
from perdure.contracts.events import Envelope
from tests.house import eventually

pytestmark = [pytest.mark.deep, pytest.mark.timeout(120), pytest.mark.usefixtures("worker")]


async def heard(client: Client, session: str, after: int | None = None, **wanted: Any) -> list[Envelope]:
    return [envelope async for envelope in client.events(session, after, **wanted)]


@dataclass(frozen=True)
class Followed:
    code: int
    lines: list[dict[str, Any]]
    stderr: str


async def follow(client: Client, session: str, *arguments: str) -> Followed:
    """What ``perdure follow --json`` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "follow", session, "--json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PERDURE_STORE_URL": client.settings.store_url},
    )
    output, errors = await process.communicate()
    return Followed(process.returncode or 0, [json.loads(line) for line in output.splitlines()], errors.decode())


async def finish(client: Client, session: str) -> None:
    await client.temporal.get_workflow_handle(session).signal("finish")


async def three_turns(client: Client) -> str:
    """A session of three turns, two events each; the second one is carried over continue-as-new."""
    turn = await client.start("writer", "go")
    await turn.result()
    for prompt in ("rotate", "go"):
        await (await client.send(turn.session, prompt)).result()
    return turn.session


async def test_who_comes_back_gets_all_that_follows_through_the_later_turns(client: Client) -> None:
    """S-47: from each number, by the client and by the command, and all of it marked as replayed."""
    session = await three_turns(client)
    for after in range(7):
        events = await heard(client, session, after)
        assert [(event.seq, event.turn) for event in events] == [(n, (n + 1) // 2) for n in range(after + 1, 7)]
        assert all(event.replayed for event in events)
    for after in (0, 3, 6):
        followed = await follow(client, session, "--after", str(after))
        assert [line["seq"] for line in followed.lines] == list(range(after + 1, 7))
        assert all(line["replayed"] is True for line in followed.lines)
        assert followed.code == 0
    assert [event.seq for event in await heard(client, session)] == [5, 6]  # the last turn
    chosen = await heard(client, session, 0, types=["AgentEnd"])
    assert [event.seq for event in chosen] == [2, 4, 6]


async def test_turns_that_wait_and_turns_that_begin_meanwhile_are_followed_too(client: Client) -> None:
    """S-47: no number is missing or comes twice, and what comes while it is followed is not marked."""
    turn = await client.start("writer", "hold 1")
    session = turn.session
    got: list[Envelope] = []

    async def read() -> None:
        async for envelope in client.events(session, 0):
            got.append(envelope)  # noqa: PERF401 - looked at while it grows

    async def has(seq: int) -> bool:
        return bool(got) and got[-1].seq >= seq

    await turn.number()
    following = asyncio.create_task(read())
    await eventually(lambda: has(1))
    await client.send(session, "rotate hold 2")
    await client.send(session, "hold 3")
    await finish(client, session)
    await eventually(lambda: has(3))
    later = await client.send(session, "go 4")
    for number in (2, 3):
        await eventually(lambda number=number: has(2 * number - 1))  # type: ignore[misc]
        assert not following.done()
        await finish(client, session)
    await following
    assert later.turn == 4
    assert [(event.seq, event.turn) for event in got] == [(n, (n + 1) // 2) for n in range(1, 9)]
    assert [event.replayed for event in got] == [True] + [False] * 7


async def test_one_turn_ends_with_its_own_end(client: Client) -> None:
    """The turn's events are its own; the session's go on."""
    session = await three_turns(client)
    second = await client.attach(session, 2)
    assert [event.seq async for event in second.events(1)] == [3, 4]


async def test_a_turn_that_is_terminated_ends_the_stream_with_its_cause(client: Client) -> None:
    """What had been written comes first."""
    session = await three_turns(client)
    await client.send(session, "hold")
    events = client.events(session, 4)
    assert [(await anext(events)).seq for _ in range(3)] == [5, 6, 7]  # the turn has begun
    await client.temporal.get_workflow_handle(session).terminate(reason="enough of it")
    with pytest.raises(TurnClosedError, match="enough of it"):
        await anext(events)
    followed = await follow(client, session, "--after", "4")
    assert (followed.code, len(followed.lines)) == (1, 3)
    assert "was terminated: enough of it" in followed.stderr


async def test_a_number_that_is_none_of_the_log_is_refused(client: Client) -> None:
    """Nothing would ever come behind it, or the wrong thing: of another session, or of a store that lost its end."""
    session = await three_turns(client)
    with pytest.raises(RequestRefusedError, match="has 6 events, so that nothing can come after 7"):
        await heard(client, session, 7)
    with pytest.raises(RequestRefusedError, match="after: -1 is no event's number"):
        await heard(client, session, -1)
    turn = await client.attach(session, 3)
    with pytest.raises(RequestRefusedError, match="has 6 events"):
        _ = [event async for event in turn.events(99)]
    followed = await follow(client, session, "--after", "7")
    assert (followed.code, followed.lines) == (2, [])
    assert "name the number of one that you have seen" in followed.stderr


async def test_a_session_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(UnknownSessionError, match="no session 'nowhere'"):
        await heard(client, "nowhere", 0)


async def test_the_exit_code_is_that_of_the_last_turn(client: Client) -> None:
    """Whether its end is among the events that are printed or not."""
    session = await three_turns(client)
    turn = await client.send(session, "hold")
    await turn.number()
    await turn.cancel()
    await turn.result()
    for after in ("0", "7", "8"):
        followed = await follow(client, session, "--after", after)
        assert (followed.code, len(followed.lines)) == (6, 8 - int(after))


async def test_a_request_that_was_refused_is_told_as_that(client: Client) -> None:
    turn = await client.start("nobody", "go")
    await turn.result()
    assert await heard(client, turn.session) == []
    followed = await follow(client, turn.session)
    assert followed.code == 2
    assert "refused by the stand-in" in followed.stderr
