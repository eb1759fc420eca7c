"""Transcripts for other programs, from a store that a worker has written to."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.client import read
from perdure.client.export import added_messages_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import GenerationContent, NewEvent
from perdure.contracts.messages import AssistantMessage, ToolCall, UserMessage
from perdure.contracts.tools import MaskedCall, ToolDeclaration
from perdure.contracts.turns import StopReason
from perdure.store import LedgerCall, StepRecord, Store
from tests.unit.store.given import SESSION, answer, claim, commit, finish, generate, opening

SECRET = "hunter2-hunter2"
SHOWN = '{"password": "***"}'
SEARCH = ToolDeclaration(name="search", description="finds", parameters={"type": "object"}, reference="m:search")
FIRST = AgentDefinition(name="helper", model="test/model", instructions="Be brief.", tools=(SEARCH,))
SECOND = FIRST.model_copy(update={"instructions": "Be long.", "tools": ()})


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="perdure")


def exported(form: str, *args: str) -> list[Any]:
    result = perdure("export", SESSION, "--format", form, *args)
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def first_turn(store: Store) -> None:
    """A turn with one call, whose argument is masked everywhere but in the ledger."""
    opened = await store.open_turn(opening("find it"), FIRST)
    request = generate(opened.tip)
    await store.begin_generation(request, [])
    step = StepRecord(
        id=request.step_id(),
        session=SESSION,
        turn=1,
        step=1,
        parent=opened.tip,
        messages=(AssistantMessage(tool_calls=(ToolCall(id="c1", name="search", arguments=SHOWN),)),),
    )
    ledger = LedgerCall(call_id="c1", tool="search", arguments=json.dumps({"password": SECRET}), masked=True)
    content = GenerationContent(content="", tool_calls=(MaskedCall(call_id="c1", tool="search", arguments=SHOWN),))
    await store.finish_generation(step, [ledger], [NewEvent(key="content", turn=1, step=1, event=content)])
    assert SECRET in (await claim(store, "w1")).arguments
    await finish(store, "w1")
    last = await answer(store, generate(step.id, step=2, call_ids=["c1"]), "it is here")
    await store.commit_turn(commit(last.id))


@pytest.fixture(autouse=True)
def _two_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has finished and one, of a changed agent, that still runs."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("PERDURE_STORE_URL", url)

    async def write() -> None:
        async with await Store.open(url, upgrade=True) as store:
            await first_turn(store)
            await store.open_turn(opening("and then?", request_id="r2"), SECOND)

    asyncio.run(write())


def roles(messages: list[Any]) -> list[str]:
    return [message["role"] for message in messages]


def test_openai_is_one_array_that_begins_with_the_last_turns_system_prompt() -> None:
    (messages,) = exported("openai")
    assert roles(messages) == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert messages[0]["content"] == "Be long."
    assert messages[2]["tool_calls"][0]["function"] == {"name": "search", "arguments": SHOWN}
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "found"}


def test_openai_of_a_turn_ends_where_the_turn_did_and_has_its_system_prompt() -> None:
    (messages,) = exported("openai", "--turn", "1")
    assert roles(messages) == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[0]["content"] == "Be brief."


def test_jsonl_is_a_record_a_turn_with_its_own_messages_tools_and_end() -> None:
    first, second = exported("jsonl")
    assert roles(first["messages"]) == ["system", "user", "assistant", "tool", "assistant"]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search"]
    about = first["metadata"]
    assert {name: about[name] for name in ("session", "turn", "agent", "model", "stop_reason", "cost_usd")} == {
        "session": SESSION,
        "turn": 1,
        "agent": "helper",
        "model": "test/model",
        "stop_reason": StopReason.FINISHED,
        "cost_usd": "0.10",
    }
    assert [message["content"] for message in second["messages"]] == ["Be long.", "and then?"]
    assert second["tools"] == []
    assert second["metadata"]["stop_reason"] is None
    assert list(second["metadata"]) == list(about)


def test_jsonl_of_one_turn_is_one_line() -> None:
    (only,) = exported("jsonl", "--turn", "2")
    assert only["metadata"]["turn"] == 2


def test_chat_is_one_row_with_only_who_said_what() -> None:
    """S-55."""
    (row,) = exported("chat")
    assert [(message["role"], message["content"]) for message in row["conversation"]] == [
        ("system", "Be long."),
        ("user", "find it"),
        ("assistant", ""),
        ("tool", "found"),
        ("assistant", "it is here"),
        ("user", "and then?"),
    ]
    assert (row["session"], row["agent"], row["stop_reason"]) == (SESSION, "helper", None)


def test_turns_are_a_row_for_each_answer_with_what_came_before_it() -> None:
    """S-55."""
    first, second = exported("turns", "--turn", "1")
    assert (first["system"], roles(first["history"]), first["response"]) == ("Be brief.", ["user"], "")
    assert first["tool_calls"][0]["function"]["name"] == "search"
    assert (roles(second["history"]), second["response"]) == (["user", "assistant", "tool"], "it is here")
    assert second["stop_reason"] == "finished"


def test_events_are_the_whole_log_also_when_it_has_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE", 2)
    events = exported("events")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events] == [
        "agent_start",
        "generation_content",
        "tool_start",
        "tool_end",
        "agent_end",
        "agent_start",
    ]
    assert [event["type"] for event in exported("events", "--turn", "2")] == ["agent_start"]


@pytest.mark.parametrize(
    ("names", "types"),
    [
        (["AgentStart"], ["agent_start", "agent_start"]),
        (["tool_start", "agent_end"], ["tool_start", "agent_end"]),
        (["errorRun"], []),
    ],
)
def test_events_can_be_chosen_by_type(names: list[str], types: list[str]) -> None:
    """S-50."""
    options = [word for name in names for word in ("--type", name)]
    assert [event["type"] for event in exported("events", *options)] == types


def test_steps_that_the_conversation_does_not_reach_are_not_of_it() -> None:
    def step(name: str, parent: str | None) -> StepRecord:
        content = UserMessage(content=name)
        return StepRecord(id=name, session=SESSION, turn=1, step=0, parent=parent, messages=(content,))

    steps = {record.id: record for record in (step("a", None), step("lost", "a"), step("b", "a"))}
    assert added_messages_of(steps, 1, "b") == [UserMessage(content="a"), UserMessage(content="b")]
    assert added_messages_of(steps, 2, "b") == added_messages_of(steps, 1, None) == []


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["export", SESSION], "--format"),
        (["export", SESSION, "--format", "csv"], "'csv' is not one of 'openai', 'jsonl', 'chat', 'turns', 'events'"),
        (["export", SESSION, "--format", "openai", "--turn", "0"], "--turn"),
        (["export", SESSION, "--format", "openai", "--turn", "3"], "has no turn 3"),
        (["export", SESSION, "--format", "jsonl", "--type", "agent_end"], "--format jsonl prints no events"),
        (["export", SESSION, "--format", "events", "--type", "agent_eror"], "did you mean 'agent_error'?"),
        (["export", SESSION, "--format", "events", "--turn", "3"], "has no turn 3"),
        (["export", "nobody", "--format", "openai"], "no session 'nobody'; 'perdure list'"),
        (["export", "nobody", "--format", "events"], "no session 'nobody'; 'perdure list'"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_2(args: list[str], part: str) -> None:
    result = perdure(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert part in line
