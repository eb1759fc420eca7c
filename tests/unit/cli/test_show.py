"""What a session did, for people and for programs."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.store import Store
from tests.unit.store.given import HELPER, SESSION, answer, claim, commit, finish, generate, opening, wish
from tests.unit.store.test_compaction import compact, summarise


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, ["show", *args], prog_name="perdure")


def shown(*args: str) -> dict[str, Any]:
    result = perdure(SESSION, "--json", *args)
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


@pytest.fixture(autouse=True)
def _two_turns(store_url: str) -> None:
    """One that has finished after two steps with a tool between them, and one that runs."""

    async def write() -> None:
        async with await Store.open(store_url, upgrade=True) as store:
            opened = await store.open_turn(opening("find it"), HELPER)
            first = await answer(store, generate(opened.tip), "I will search", calls=[wish()])
            await claim(store, "w1")
            await finish(store, "w1")
            last = await answer(store, generate(first.id, step=2, call_ids=["c1"]), "it is here")
            await store.commit_turn(commit(last.id))
            await store.open_turn(opening("and then?", request_id="r2"), HELPER)

    asyncio.run(write())


def contents(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages]


def test_each_turn_is_followed_by_its_messages_and_what_each_step_used() -> None:
    lines = perdure(SESSION).stdout.splitlines()
    places = [
        next(number for number, line in enumerate(lines) if line.startswith(part))
        for part in ("turn 1 · helper", "> find it", "I will search", "✓ search", "it is here", "turn 2", "> and then?")
    ]
    assert places == sorted(places)
    assert sum(line.startswith("step ") for line in lines) == 2
    assert "running" in lines[places[5]]


def test_one_turn_is_shown_without_the_others() -> None:
    lines = perdure(SESSION, "--turn", "2").stdout.splitlines()
    assert lines[0].startswith("turn 2 · helper")
    assert lines[1:] == ["> and then?"]
    assert contents(shown("--turn", "1")["messages"]) == ["find it", "I will search", "found", "it is here"]
    assert contents(shown("--turn", "2")["messages"]) == ["and then?"]


def test_json_has_turns_steps_and_messages() -> None:
    body = shown()
    assert set(body) == {"session", "turns", "steps", "messages", "requests", "waits_for", "tool_metrics"}
    assert [(turn["turn"], turn["result"] is None) for turn in body["turns"]] == [(1, False), (2, True)]
    assert [(step["turn"], step["step"]) for step in body["steps"]] == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert set(body["steps"][1]) == {"turn", "step", "finish_reason", "usage", "cost_usd", "messages", "summarised"}
    assert contents(body["messages"]) == ["find it", "I will search", "found", "it is here", "and then?"]


@pytest.mark.parametrize(
    ("args", "part"), [(["nobody"], "there is no session 'nobody'"), ([SESSION, "--turn", "9"], "has no turn 9")]
)
def test_what_is_not_there_is_one_line_and_exit_2(args: list[str], part: str) -> None:
    result = perdure(*args)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2
    assert part in line
    assert "perdure list" in line


def test_a_compaction_is_one_line_with_its_summary_and_repeats_no_message(store_url: str) -> None:
    """What it holds beside the summary stands above already; the same for programs."""

    async def write() -> None:
        async with await Store.open(store_url) as store:
            tip = (await store.session(SESSION)).tip or ""
            kept = await store.conversation(tip)
            await summarise(store, compact(tip, turn=2, step=1), *kept[-2:])

    asyncio.run(write())
    lines = perdure(SESSION).stdout.splitlines()
    assert lines[-2:] == ["compacted · 2 messages · 110 tokens · $0.01", "  the gist"]
    assert sum(line == "it is here" for line in lines) == 1
    body = shown()
    assert [step["summarised"] for step in body["steps"]][-1] == 2
    assert "the gist" not in contents(body["messages"])
    records = CliRunner().invoke(cli, ["export", SESSION, "--format", "jsonl"], prog_name="perdure").stdout
    assert records.count("it is here") == 1
