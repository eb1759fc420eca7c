"""Faults planted into the engine, the world, the inbox, the claims and the store, for the simulation to find."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pytest
from sqlalchemy import Connection

from perdure.contracts.generations import Generate
from perdure.contracts.turns import CommitTurn
from perdure.contracts.values import replace
from perdure.engine import delegates, limits, messages, turn
from perdure.engine.state import Mailbox, TurnState
from perdure.engine.turn import Story
from perdure.security import redaction
from perdure.store import Store, open_turn, steps, tool_calls
from perdure.store.records import Begun, Claim
from perdure.store.tool_calls import OpenCalls
from perdure.testing.simulated_faults import FAULTS, Fault
from perdure.workflows import visibility
from perdure.workflows.mail import Deadline
from perdure.workflows.world import TurnWorld

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Planted:
    """A fault of the product.

    Attributes:
        plant: Puts it there.
        case: The agent on which it shows.
        faults: The simulation's faults that it needs.
    """

    plant: Plant
    case: str
    faults: Sequence[Fault] = FAULTS


def instead(owner: object, name: str, function: object) -> Plant:
    """Put a function in place of another."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, function)

    return plant


def around(owner: object, name: str, change: Callable[..., Any]) -> Plant:
    """Put a function around another, which it gets as its first argument."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        before = getattr(owner, name)

        @wraps(before)
        def changed(*args: Any, **kwargs: Any) -> Any:
            return change(before, *args, **kwargs)

        patch.setattr(owner, name, changed)

    return plant


def around_transaction(function: Callable[..., Any], change: Callable[..., Any]) -> Plant:
    """Put a function around a transaction of the store."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        async def method(store: Store, *args: Any, **kwargs: Any) -> Any:
            work = wraps(function)(lambda connection: change(function, connection, *args, **kwargs))
            return await store.write(function.__name__, work)

        patch.setattr(Store, function.__name__, method)

    return plant


def claim_whoever_holds_it(claim: Callable[..., Claim], connection: Connection, **call: Any) -> Claim:
    came = claim(connection, **call)
    return came if came.held_by is None else claim(connection, **{**call, "lost": came.held_by})


def begin_without_looking(begin: Callable[..., Begun], connection: Connection, *given: Any) -> Begun:
    return replace(begin(connection, *given), answer=None)


def finish_whoever_holds_it(finish: Callable[..., bool], connection: Connection, **call: Any) -> bool:
    key = {"session": call["session"], "turn": call["turn"], "call_id": call["call_id"]}
    row = connection.execute(tool_calls._FIND, key).one_or_none()
    if row is None or call["message"] is None:
        return finish(connection, **call)
    connection.execute(tool_calls._CLAIM, {**key, "by": call["claimant"], "at": row.claimed_at})
    return finish(connection, **call)


def count_one_step_less(commit: Callable[..., CommitTurn], *given: Any) -> CommitTurn:
    action = commit(*given)
    return replace(action, steps=max(0, action.steps - 1))


def admit_everything(admit: Callable[..., Any], budgets: Any, spent: Any, calls: Any, granted: Any = None) -> Any:
    del granted
    return admit(type(budgets)(), spent, calls)


def take_without_a_second_look(story: Story, state: TurnState) -> None:
    story.state = state
    story._stop_if_asked()


def hold_only_for_people(hold: Callable[..., None], deadline: Deadline, reason: Any) -> None:
    if reason == "pause":
        deadline._holds.hold(reason, deadline._runtime.now)
        return
    hold(deadline, reason)


async def go_on_at_once(_story: Story) -> bool:
    return False


async def let_them_run(_story: Story, _ending: object) -> None:
    """The caller ends without its delegates."""


def generate_without_steering(generate: Callable[..., Generate], state: TurnState, mail: Mailbox) -> Generate:
    return generate(state, replace(mail, steered=()))


def in_any_order(next_batch: Callable[..., Any], state: TurnState) -> Any:
    batch, rest = next_batch(state)
    return tuple(random.sample(batch, len(batch))), rest


def _now_of_the_machine(_: TurnWorld) -> datetime:
    return datetime.now(UTC)


_summaries = itertools.count(1)


def number_summaries(summarise: Callable[..., str], *given: Any) -> str:
    return f"{summarise(*given)} {next(_summaries)}"


def next_turn_of_the_first(following: Callable[..., None], world: TurnWorld, queued: Any) -> None:
    following(world, queued[:1])


PLANTED = {
    "a message for later is forgotten": Planted(instead(Mailbox, "with_queued", lambda mail, _: mail), "tools"),
    "a message for later is forgotten when the turn ends": Planted(
        instead(TurnWorld, "_next_turn", lambda *_: None), "tools"
    ),
    "only the first message of the queue gets a turn": Planted(
        around(TurnWorld, "_next_turn", next_turn_of_the_first), "tools", ("queue",)
    ),
    "a steered message is read again": Planted(instead(Mailbox, "read", lambda mail, _: mail), "tools"),
    "a steered message is forgotten where the turn stops": Planted(
        instead(Mailbox, "with_all_queued", lambda mail: replace(mail, steered=())), "stops", ("steer",)
    ),
    "the model's end stands although a message was steered in": Planted(
        instead(Story, "_take", take_without_a_second_look), "tools", ("steer",)
    ),
    "the same message is taken twice": Planted(instead(messages, "find_turn_of", lambda *_: None), "tools"),
    "a rotation loses the mail": Planted(
        instead(Mailbox, "followed_by", lambda _, later: later), "tools", ("rotate", "queue", "steer")
    ),
    "a reply is forgotten": Planted(instead(Mailbox, "with_reply", lambda mail, *_: mail), "people"),
    "a stop is not looked at": Planted(instead(Story, "_stop_if_asked", lambda _: None), "tools"),
    "a pause is not looked at": Planted(instead(Story, "_wait_out_pause", go_on_at_once), "tools"),
    "the clock runs during a pause": Planted(around(Deadline, "hold", hold_only_for_people), "slow people", ("pause",)),
    "background delegates outlive their caller": Planted(instead(Story, "_end_background", let_them_run), "background"),
    "background delegates cost nothing": Planted(instead(delegates, "_charge", lambda state, _: state), "background"),
    "foreground delegates cost nothing": Planted(instead(delegates, "charge", lambda state, *_: state), "delegates"),
    "the result has a step too few": Planted(around(turn, "commit", count_one_step_less), "tools"),
    "no limit ends a turn": Planted(instead(limits, "limit_reached", lambda _: None), "few calls"),
    "every call is admitted": Planted(around(limits, "admit", admit_everything), "budgets"),
    "a call is made whoever holds it": Planted(
        around_transaction(tool_calls.claim_call, claim_whoever_holds_it), "tools"
    ),
    "a result counts whoever holds the call": Planted(
        around_transaction(tool_calls.finish_call, finish_whoever_holds_it), "tools"
    ),
    "a stored answer is not found by the next attempt": Planted(
        around_transaction(steps.begin_generation, begin_without_looking), "tools"
    ),
    "a turn that was opened is not found by the next attempt": Planted(
        instead(open_turn, "_read_begun", lambda *_: None), "tools"
    ),
    "calls that a stop interrupts get no result": Planted(
        instead(OpenCalls, "end_rest", lambda *_, **__: None), "tools"
    ),
    "secrets are shown": Planted(instead(redaction, "_known", lambda _: ()), "secrets"),
    "calls are made in any order": Planted(around(delegates, "next_batch", in_any_order), "tools"),
    "a run looks at the machine's clock": Planted(instead(TurnWorld, "now", property(_now_of_the_machine)), "tools"),
    "a run remembers the one before": Planted(around(visibility, "generation_summary", number_summaries), "people"),
}
"""By what is wrong."""
