"""What a person sees of checkpoints, forks and rewinds."""

import asyncio
import json

import pytest

from perdure.cli.render import lines
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import AgentStart, Envelope
from perdure.contracts.turns import StopReason
from perdure.store import Store
from tests.unit.cli.invoked import assert_one_line, perdure
from tests.unit.store.given import HELPER, SESSION, STARTED, answer, commit, generate, opening, wish
from tests.unit.store.test_fork import FORK, fork, rewind

LIMITED = ErrorDetail(code=ReasonCode.LLM_RATE_LIMITED, title="generation", message="too fast")


@pytest.fixture(autouse=True)
def _a_turn_a_rewind_and_a_fork(store_url: str) -> None:
    """A turn that failed, one that went back to before it, and a fork of the first."""

    async def write() -> None:
        async with await Store.open(store_url, upgrade=True) as store:
            opened = await store.open_turn(opening("find it"), HELPER, context_window=1_000)
            first = await answer(store, generate(opened.tip), "I will search", [wish()])
            await store.commit_turn(commit(first.id, stop_reason=StopReason.ERROR, error=LIMITED, call_ids=["c1"]))
            await rewind(store, 0, prompt="anew")
            await fork(store, 1, turn=1)

    asyncio.run(write())


def test_each_checkpoint_is_a_line() -> None:
    assert perdure("show", SESSION, "--checkpoints").stdout.splitlines() == [
        "turn 1 · step 0 · init · 1 message · 0 tokens · 0.0% of the context",
        "turn 1 · step 1 · stoppedByError (llm.rate_limited) · 2 messages · 15 tokens · 1.5% of the context",
        "turn 2 · step 0 · init · 1 message · 0 tokens",
    ]


def test_the_checkpoints_of_one_turn_are_one_object_of_json() -> None:
    body = json.loads(perdure("show", SESSION, "--checkpoints", "--turn", "1", "--json").stdout)

    assert [
        (checkpoint["session"], checkpoint["turn"], checkpoint["step"], checkpoint["status"])
        for checkpoint in body["checkpoints"]
    ] == [
        (SESSION, 1, 0, "init"),
        (SESSION, 1, 1, "stoppedByError"),
    ]
    assert body["checkpoints"][1]["error"]["code"] == "llm.rate_limited"


def test_a_turn_that_a_rewind_left_behind_says_so() -> None:
    shown = perdure("show", SESSION).stdout.splitlines()

    assert shown[0].startswith("turn 1 · helper")
    assert shown[0].endswith(" · left behind by a rewind")
    assert shown[2:] == ["> anew"]


def test_a_fork_says_where_it_came_from() -> None:
    shown = perdure("show", FORK).stdout.splitlines()

    assert shown[0] == f"forked from {SESSION}, turn 1, step 1"
    assert shown[-1] == "> go on"


def test_the_start_of_a_turn_says_where_it_goes_on() -> None:
    start = AgentStart(
        agent="a", model="m", prompt="", definition="d", resumed_from=ResumeFrom(session="s", turn=2, step=5)
    )
    (line,) = lines(Envelope(seq=1, session="f", turn=1, step=0, at=STARTED, event=start))
    assert line.text == "▶ f turn 1 · a · m · from s, turn 2, step 5"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", SESSION, "--checkpoints", "--turn", "9"), "has no turn 9"),
        (("show", "nobody", "--checkpoints"), "no session 'nobody'"),
        (("fork", SESSION, "--at", "-1"), "--at"),
        (("resume", SESSION, "--turn", "x"), "--turn"),
        (("fork", SESSION, "--detach", "--type", "agent_end"), "--type"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert_one_line(perdure(*arguments), 2, said)
