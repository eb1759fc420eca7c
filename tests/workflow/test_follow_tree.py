"""A session with its delegates as one stream: whoever comes back with the last id gets the rest of each, once."""

import asyncio
import json
import random
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.client import RequestRefusedError
from perdure.client.tree import TreePlace
from perdure.contracts.retention import Retention
from perdure.testing import ScriptedProvider, call, say
from tests.gateway import Door, gateway
from tests.house import House
from tests.sse import Sent, follow, whole
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played

pytestmark = pytest.mark.deep


def numbers(stream: list[Sent]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for sent in stream:
        if "seq" in sent.data:
            found[sent.data["session"]].append(sent.data["seq"])
    return dict(found)


async def cut(door: Door, session: str, seed: int) -> list[Sent]:
    """The stream, read by one who is cut off at random and comes back with the last id."""
    dice, seen, last = random.Random(seed), list[Sent](), "0"
    while True:
        left = dice.randint(1, 4)
        async with follow(door.http, session, last, tree=1) as stream:
            async for sent in stream:
                if sent.event == "end":
                    return [*seen, sent]
                seen.append(sent)
                last = sent.id
                if (left := left - 1) <= 0:
                    break


async def test_a_tree_is_whole_for_whoever_comes_back(house: House) -> None:
    """S-47 S-64: of a caller, its delegates and theirs, while they run and when all is over."""
    lead = agent("tester", delegates=["helper"])
    helper = agent("helper", delegates=["deep"])
    answers = played(
        tester=in_order(asks("one", "two"), asks("three"), DONE),
        helper=lambda request: say("helped") if request.index % 2 else call(("deep", {"query": "more"})),
        deep=lambda _: say("found"),
    )
    async with ScriptedProvider(answers) as provider, gateway(house) as door:
        house.use(provider)
        async with house.worker(lead, helper, agent("deep")):
            handle = await house.start()
            await house.wait_for_event("generation_start")
            live = await cut(door, house.session, 1)
            await handle.result()
        wanted = {house.session: len(await house.events())}
        for record, _ in await children(house):
            wanted[record.session] = record.last_seq
        assert len(wanted) >= 5
        for stream in (live, await whole(door.http, house.session, tree=1), await cut(door, house.session, 2)):
            assert numbers(stream) == {name: list(range(1, last + 1)) for name, last in wanted.items()}
            assert _ends_are_last(stream)
            assert stream[-1].event == "end"
            ids = [sent.id for sent in stream[:-1]]
            assert ids[-1] == str(wanted[house.session])  # nobody is left to be named
        printed = await by_command(house.session)
        assert numbers(printed) == {name: list(range(1, last + 1)) for name, last in wanted.items()}
        assert _ends_are_last(printed)
        alone = await whole(door.http, house.session)
        assert set(numbers(alone)) == {house.session}
        path = f"/v1/sessions/{house.session}/events"
        some = next(sent.id for sent in live if "." in sent.id)
        wrong = some.rpartition("-")[0] + "-9999"
        refused = await door.http.get(path, params={"tree": 1, "after": wrong})
        assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid")


async def by_command(session: str) -> list[Sent]:
    """What the command prints of a tree."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "follow", session, "--json", "--tree", "--after", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    lines = [json.loads(line) for line in output.splitlines()]
    return [Sent("", line["type"], line) for line in lines]


def _ends_are_last(stream: list[Sent]) -> bool:
    """Whether no event of a delegate comes behind its caller's ``delegate_end``."""
    ended: set[Any] = set()
    for sent in stream:
        if sent.data.get("session") in ended:
            return False
        if sent.event == "delegate_end":
            ended.add(sent.data["delegate"])
    return True


@pytest.mark.parametrize("text", ["0", "41", "41.9f3c61e2ab47-7", "1.000000000000-0.ffffffffffff-12"])
def test_a_place_is_read_as_it_was_written(text: str) -> None:
    assert str(TreePlace.parse(text)) == text


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", "1.short-2", "1.9f3c61e2ab47-", "9" * 30, "\u0661"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(RequestRefusedError, match="is no place in a tree"):
        TreePlace.parse(text)


async def test_who_comes_back_to_a_tree_that_was_swept_is_told_what_is_gone(house: House) -> None:
    """Of a delegate, of the caller with the delegate's beginning, and of one that was erased; the rest comes."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("helped"))
    async with ScriptedProvider(answers) as provider, gateway(house) as door, house.worker(lead, helper):
        house.use(provider)
        await house.run()
        stream = await whole(door.http, house.session, tree=1)
        last = len(await house.events())
        ((below, _),) = [found for found in await children(house) if found[0].session != house.session]
        place = next(sent.id for sent in stream if "." in sent.id and not sent.id.endswith("-0"))
        (key, seen), after = place.split(".")[1].split("-"), int(place.split(".")[0])

        await sweep(house, below.session)
        told, *rest = await whole(door.http, house.session, place, tree=1)
        gone = {"after_seq": int(seen), "oldest": below.last_seq + 1, "latest": below.last_seq}
        assert told == Sent("", "resync", {"session": below.session, **gone})
        assert numbers(rest) == {house.session: list(range(after + 1, last + 1))}
        assert [sent.event for sent in rest].count("end") == 1
        printed = await by_command(house.session)
        assert numbers(printed) == {house.session: list(range(1, last + 1))}

        await sweep(house, house.session)
        notices = (await whole(door.http, house.session, place, tree=1))[:-1]
        of_caller = {"session": house.session, "after_seq": after, "oldest": last + 1, "latest": last}
        assert notices == [
            Sent("", "resync", {**of_caller, "oldest": after + 1, "lost": [key]}),
            Sent("", "resync", of_caller),
        ]


async def test_a_delegate_of_the_place_that_was_erased_is_told(house: House) -> None:
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("helped"))
    async with ScriptedProvider(answers) as provider, gateway(house) as door, house.worker(lead, helper):
        house.use(provider)
        await house.run()
        stream = await whole(door.http, house.session, tree=1)
        place = next(sent.id for sent in stream if "." in sent.id and not sent.id.endswith("-0"))
        ((below, _),) = [found for found in await children(house) if found[0].session != house.session]
        await house.store.erase_session(below.session)
        told, *rest = await whole(door.http, house.session, place, tree=1)
        assert (told.event, told.data["lost"]) == ("resync", [place.split(".")[1].split("-")[0]])
        assert [sent.event for sent in rest][-2:] == ["agent_end", "end"]


async def sweep(house: House, session: str) -> None:
    """Have the retention of its agent delete the events of a session."""
    later = datetime.now(UTC) + timedelta(days=2)
    assert (await house.store.trim_session(session, Retention(events="1d"), later)).events
