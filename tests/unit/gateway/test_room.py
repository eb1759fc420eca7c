"""The room of a gateway's connections: whatever comes, its numbers hold, and who gives way is who has shown least."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.gateway.room import KEPT, SHARE_OF_ADDRESS, SHARE_OF_TENANT, Room

MOST_HELD = 1_000


@dataclass(eq=False)
class Played:
    """A connection, which notes that it was dropped."""

    owner: str
    dropped: list["Played"] = field(default_factory=list)

    def drop(self) -> None:
        """Note it."""
        self.dropped.append(self)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "admit", "work", "rest", "hold", "prove", "leave"]),
        st.integers(0, 5),
        st.integers(0, 40),
    ),
    max_size=200,
)


@given(most=st.integers(0, 24), steps=STEPS)
def test_the_numbers_of_a_room_hold_whatever_comes(most: int, steps: list[tuple[str, int, int]]) -> None:
    """T-12: places, shares and bytes; nobody is dropped twice, and nobody that has left; nothing is left behind."""
    room, dropped = Room(most, most_held=MOST_HELD), list[Played]()
    here: list[Played] = []
    for step, owner, number in steps:
        before = len(dropped)
        if step == "admit":
            new = Played(f"address {owner}", dropped)
            stayed = room.admit(new)
            assert stayed == (new not in dropped)
            here.append(new)
        elif here:
            one = here[number % len(here)]
            if step == "work":
                room.work(one)
            elif step == "rest":
                room.rest(one)
            elif step == "hold":
                room.hold(one, number * 20)
            elif step == "prove":
                tenant = "" if owner == 5 else f"t{owner}"
                if not room.prove(one, tenant):
                    assert one.owner == f"tenant {tenant}"
                    assert not room.is_stranger(one)
            else:
                room.leave(one)
                here.remove(one)
        here = [one for one in here if one not in dropped[before:]]
        assert len(dropped) == len(set(dropped))
        strangers, proven = [one for one in here if room.is_stranger(one)], list(room._proven)
        assert room.open == len(here) == len(strangers) + len(proven)
        assert sum(room._held.values()) == room._bytes_held <= MOST_HELD
        assert set(room._held) <= set(strangers)
        assert {one.owner for one in here} == set(room._count)
        if most > 1:
            assert len(strangers) <= most - room.kept
            assert len(proven) <= most - room.kept
            assert room.open <= most
    for one in here:
        room.leave(one)
    left = (room._strangers, room._proven, room._idle_strangers, room._idle_proven, room._idle_of, room._count)
    assert not any((*left, room._held, room._bytes_held))


def test_the_shares_are_those_of_the_pages() -> None:
    """docs/limits.md names them."""
    assert (KEPT, SHARE_OF_TENANT, SHARE_OF_ADDRESS) == (10, 2, 4)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_proven_connection_gives_way_only_while_it_is_idle(is_idle: bool) -> None:
    room, dropped = Room(10), list[Played]()
    proven = [Played(f"address {number}", dropped) for number in range(9)]
    for number, one in enumerate(proven):
        room.admit(one)
        assert not room.prove(one, f"t{number}")
    if is_idle:
        room.rest(proven[4])
    late = Played("address late", dropped)
    assert room.admit(late)
    assert bool(room.prove(late, "late")) is not is_idle
    assert dropped == ([proven[4]] if is_idle else [])


def test_who_holds_most_of_the_bytes_for_longest_goes_and_who_reads_stays() -> None:
    room, dropped = Room(0, most_held=MOST_HELD), list[Played]()
    first, second, third = (Played(f"address {number}", dropped) for number in range(3))
    for one in (first, second, third):
        room.admit(one)
    room.hold(first, 400)
    room.hold(second, 400)
    room.hold(first, 0)  # it has read
    room.hold(first, 300)
    room.hold(third, 600)
    assert dropped == [second]
    assert not room.prove(first, "a")
    room.hold(third, 1_000)
    assert dropped == [second], "a good token takes nothing of what strangers have"
