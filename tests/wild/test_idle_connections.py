"""Connections that send nothing: a thousand of them, without a token, and the gateway took no other.

Seen in an attack on a running gateway with a limit of 1,024 open files.
"""

import asyncio
import subprocess
import sys
from datetime import timedelta

import pytest

from perdure.gateway.connections import RESERVED_FILES, count_room
from perdure.gateway.room import owner_by_address
from tests.bare_gateway import DONE, GET, HALF, REFUSED, serving
from tests.house import eventually


async def test_a_head_that_does_not_come_closes_the_connection() -> None:
    """T-12: Nothing, a part of a head, and a part of the second head."""
    async with serving(0, timedelta(seconds=0.2)) as door:
        silent, slow, second, held = [await door.open() for _ in range(4)]
        slow.writer.write(GET[:10])
        assert await second.ask(b"") == b"HTTP/1.1 204 No Content\r\n"
        second.writer.write(GET[:10])
        waiting = asyncio.create_task(held.ask(b"held"))
        assert [await wire.closed() for wire in (silent, slow, second)] == [True, True, True]
        assert not waiting.done()
        door.release.set()
        assert await waiting == b"HTTP/1.1 204 No Content\r\n"


async def test_idle_connections_give_way_to_new_ones_and_those_that_work_do_not() -> None:
    """T-12."""
    async with serving(10) as door:
        held = await door.open()
        waiting = asyncio.create_task(held.ask(b"held"))
        await eventually(lambda: _true(door.entered))
        idle = [await door.open("127.0.0.2") for _ in range(30)]
        late = await door.open("127.0.0.3")
        assert await late.ask(b"") == b"HTTP/1.1 204 No Content\r\n"
        assert all([await wire.closed() for wire in idle[:20]])
        assert not waiting.done()
        door.release.set()
        assert await waiting == b"HTTP/1.1 204 No Content\r\n"


async def _true(value: object) -> object:
    return value


async def test_one_address_has_a_quarter_of_the_room_until_a_token_was_good() -> None:
    async with serving(16) as door:
        others = [await door.open("127.0.0.3") for _ in range(4)]
        proven = [await door.open("127.0.0.2") for _ in range(2)]
        assert [await wire.ask(b"proven") for wire in proven] == [DONE] * 2
        flood = [await door.open("127.0.0.2") for _ in range(40)]
        assert all([await wire.closed() for wire in flood[:36]])
        assert [await wire.ask(b"") for wire in (*others, proven[0])] == [DONE] * 5


async def test_strangers_leave_a_tenth_of_the_room_and_those_of_the_largest_crowd_give_way_first() -> None:
    """T-12: whoever has few connections keeps them; a good token and a probe find a place."""
    async with serving(20) as door:
        lonely = await door.open("127.0.0.9")
        crowd = [await door.open(f"127.0.0.{at}") for at in (2, 3, 4, 5) for _ in range(5)]
        await eventually(lambda: _true(sum(wire.is_open for wire in crowd) == 17))
        assert await (await door.open("127.0.0.6")).ask(b"proven?tenant=a") == DONE
        assert await lonely.ask(b"") == DONE
        assert sum(wire.is_open for wire in crowd) == 16


async def test_the_proven_leave_a_tenth_of_the_room_where_probes_are_answered() -> None:
    """T-12: whatever is full."""
    async with serving(4) as door:
        held = [await door.open(f"127.0.0.{at}") for at in (2, 3, 4)]
        waiting = [
            asyncio.create_task(wire.ask(b"proven?held=1&tenant=%d" % number)) for number, wire in enumerate(held)
        ]
        await eventually(lambda: _true(len(door.entered) == 3))
        late = await door.open("127.0.0.5")
        assert await late.ask(b"proven?tenant=late") == REFUSED
        assert await late.ask(b"") == DONE
        assert await (await door.open("127.0.0.6")).ask(b"") == DONE
        door.release.set()
        assert [await asked for asked in waiting] == [DONE] * 3


async def test_the_oldest_stranger_gives_way_if_the_gateway_works_for_all() -> None:
    async with serving(3) as door:
        waiting = [asyncio.create_task((await door.open(f"127.0.0.{at}")).ask(b"held")) for at in (2, 3)]
        await eventually(lambda: _true(len(door.entered) == 2))
        assert await (await door.open("127.0.0.4")).ask(b"") == DONE
        door.release.set()
        assert await waiting[1] == DONE
        assert await waiting[0] == b""


async def test_half_of_a_body_holds_no_place_without_a_token() -> None:
    """T-12: from as many addresses as it takes, each below its share."""
    async with serving(5) as door:
        slow = [await door.open(f"127.0.0.{at}") for at in (2, 3, 4, 5)]
        for wire in slow:
            wire.writer.write(HALF % b"")
        await eventually(lambda: _true(len(door.entered) == 4))
        assert await (await door.open("127.0.0.6")).ask(b"") == DONE
        assert await slow[0].closed()
        slow[3].writer.write(b"-body.")
        assert await slow[3].reader.readline() == DONE


async def test_half_of_a_body_with_a_good_token_keeps_its_place() -> None:
    async with serving(3) as door:
        slow = [await door.open(f"127.0.0.{at}") for at in (2, 3)]
        for wire, tenant in zip(slow, (b"a", b"b"), strict=True):
            wire.writer.write(HALF % (b"?tenant=" + tenant))
        await eventually(lambda: _true(len(door.entered) == 2))
        for at in (4, 5):
            assert await (await door.open(f"127.0.0.{at}")).ask(b"") == DONE
        slow[0].writer.write(b"-body.")
        assert await slow[0].reader.readline() == DONE


async def test_a_tenant_has_half_of_the_room_and_its_idle_connections_give_way_to_its_own() -> None:
    async with serving(8) as door:
        mine = [await door.open(f"127.0.0.{at}") for at in (2, 2, 3, 3)]
        assert [await wire.ask(b"proven?tenant=a") for wire in mine] == [DONE] * 4
        assert await (await door.open("127.0.0.4")).ask(b"proven?tenant=a") == DONE
        assert await mine[0].closed()
        others = [await door.open(f"127.0.0.{at}") for at in (5, 5, 6)]
        assert [await wire.ask(b"proven?tenant=b") for wire in others] == [DONE] * 3
        assert await mine[3].ask(b"") == DONE


async def test_a_tenant_whose_share_works_is_refused_and_callers_without_a_tenant_have_no_share() -> None:
    async with serving(4) as door:
        for tenant, answer in ((b"a", REFUSED), (b"", DONE)):
            door.entered.clear()
            held = [await door.open(f"127.0.0.{at}") for at in (2, 3)]
            waiting = [asyncio.create_task(wire.ask(b"proven?held=1&tenant=" + tenant)) for wire in held]
            await eventually(lambda: _true(len(door.entered) == 2))
            assert await (await door.open("127.0.0.4")).ask(b"proven?tenant=" + tenant) == answer
            door.release.set()
            assert [await asked for asked in waiting] == [DONE] * 2
            door.release.clear()
            for wire in held:
                wire.writer.close()


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("127.0.0.1", "address 127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "network 2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "network 2001:db8:1:2::/64"),
        ("", "a socket"),
    ],
)
def test_callers_are_told_apart_by_address_and_in_ipv6_by_network(host: str, owner: str) -> None:
    assert owner_by_address(host) == owner


@pytest.mark.parametrize(
    ("most", "files", "room"),
    [(0, 0, 0), (10, 0, 10), (0, 1_024, 1_024 - RESERVED_FILES), (10_000, 4_096, 3_840), (0, 100, 50)],
)
def test_the_room_is_what_setting_and_files_allow(most: int, files: int, room: int) -> None:
    assert count_room(most, files) == room


@pytest.mark.deep
def test_the_limit_of_files_is_raised_and_logged() -> None:
    """In a process of its own, as the limit is the process's."""
    program = """
import logging, resource
logging.basicConfig(level=logging.INFO)
hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 900)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
from perdure.gateway.connections import raise_file_limit
print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], raise_file_limit())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["900", "900", "900"]
    assert "the limit of open files is 900, raised from 200" in done.stderr
