"""Every tool mode on the real server, over both wires: the same conversation, whatever the model is told and writes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest

from perdure import Agent, tool
from perdure.activities.models import model_call
from perdure.activities.models.limits import ToolLimits
from perdure.contracts.agents import AgentDefinition, ToolMode
from perdure.contracts.messages import AssistantMessage, ToolMessage
from perdure.testing import Reply, Script, ScriptedProvider, call_in_text, faults, say
from tests.house import House
from tests.memory import Run
from tests.workflow.recording import recordings, replaying

ALL: list[Any] = [*get_args(ToolMode)]
IN_TEXT = [mode for mode in ALL if mode not in {"auto", "api"}]
WIRES = ["openai/scripted", "anthropic/scripted"]
DONE = say("done")
CALLS: tuple[Any, ...] = (("add", {"first": 1, "second": -2}), ("look_up", {"word": 'a < b & "c"\n`d`'}))


@tool
def add(first: int, second: int = 0) -> int:
    """Add two numbers."""
    return first + second


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a noun"


def agent(**settings: Any) -> Agent:
    fields = {"name": "tester", "model": "openai/scripted", "instructions": "Be brief.", "tools": [add, look_up]}
    return Agent(**{**fields, **settings})


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_call, "TOOL_LIMITS", ToolLimits())


@asynccontextmanager
async def at_work(house: House, using: Agent, *answers: Reply, **limits: Any) -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(Script(replies=answers), **limits) as provider, house.worker(using):
        house.use(provider)
        yield provider


async def told(of: House | Run) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    """Role, text and calls of each message in the store."""
    messages = await of.store.transcript(of.session)
    return [
        (
            message.role,
            message.content,
            [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
            if isinstance(message, AssistantMessage)
            else [],
        )
        for message in messages
    ]


EXPECTED = [
    ("user", "go", []),
    ("assistant", "Let me see.", list(CALLS)),
    ("tool", "-1", []),
    ("tool", 'a < b & "c"\n`d`: a noun', []),
    ("assistant", "done", []),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("mode", ALL)
async def test_a_turn_with_two_calls_is_the_same_in_every_mode_on_both_wires(run: Run, mode: Any, wire: str) -> None:
    """S-27"""
    asks = call_in_text(mode, *CALLS, text="Let me see.")
    result = await run(agent(tool_mode=mode, model=wire), asks, DONE)
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "done", 2)
    assert await told(run) == EXPECTED
    assert [end["finish_reason"] for end in await run.events("generation_end")] == ["tool_calls", "stop"]
    first, second = (made.request for made in run.requests)
    assert (len(first.tools), len(second.tools)) == ((0, 0) if mode in IN_TEXT else (2, 2))
    assert first.system == second.system
    assert ("# Tools" in first.system, '"look_up"' in first.system) == (mode in IN_TEXT, mode in IN_TEXT)
    if mode in IN_TEXT:
        assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "user"]
        assert second.messages[2]["content"] == asks.text
        assert str(second.messages[3]["content"]).count("<tool-result") == 2
        assert all("tool_calls" not in message for message in second.messages)


async def test_the_mode_may_change_from_turn_to_turn(run: Run) -> None:
    """S-27: each turn reads the conversation in its own form, and the store has one form for all of them."""
    for number, mode in enumerate([*ALL, "api"]):
        asks = call_in_text(mode, ("add", {"first": number}))
        # What the session has answered before counts, so the answers stand at its end.
        answers = [DONE] * (2 * number) + [asks, DONE]
        assert (await run(agent(tool_mode=mode), *answers))["stop_reason"] == "finished"
        last = run.requests[-1].request
        assert any(message["role"] == "tool" for message in last.messages) is (mode not in IN_TEXT)
        assert sum(str(message).count("<tool-result id=") for message in last.messages[1:]) == (
            number + 1 if mode in IN_TEXT else 0
        )
    results = [message for message in await run.store.transcript(run.session) if isinstance(message, ToolMessage)]
    assert [message.content for message in results] == [str(number) for number in range(len(ALL) + 1)]


@pytest.mark.parametrize("mode", IN_TEXT)
async def test_a_broken_call_is_told_to_the_model_and_the_turn_goes_on(run: Run, mode: Any) -> None:
    """S-22 S-27"""
    whole = call_in_text(mode, ("add", {"first": 1})).text or ""
    broken = whole.replace("1", "{one", 1) if mode != "xml" else whole.replace("</parameter>", "")
    result = await run(agent(tool_mode=mode), say(broken), DONE)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    (result_message,) = (m for m in await run.store.transcript(run.session) if isinstance(m, ToolMessage))
    assert result_message.error is not None
    assert (result_message.name, result_message.error.code) == ("add", "tool.invalid_input")
    assert "tool.invalid_input" in str(run.requests[1].request.messages[-1]["content"])


async def test_an_unknown_tool_is_told_to_the_model(run: Run) -> None:
    asks = call_in_text("json", ("serch", {"q": "x"}))
    assert (await run(agent(tool_mode="json"), asks, DONE))["stop_reason"] == "finished"
    assert "there is no tool named 'serch'" in str(run.requests[1].request.messages[-1]["content"])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_provider_that_refuses_so_many_tools_is_asked_again_once_with_the_tools_in_text(
    run: Run, wire: str
) -> None:
    """S-27 R10: within the same attempt; the worker remembers it, so the later requests are made that way at once."""
    asks = call_in_text("json-in-xml", *CALLS, text="Let me see.")
    using = agent(model=wire)
    result = await run(using, asks, DONE, DONE, max_tools=1)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert await told(run) == EXPECTED
    assert (await run(using, asks, DONE, DONE, max_tools=1))["stop_reason"] == "finished"
    assert [made.fault for made in run.requests] == ["refused", None, None, None]
    assert [len(made.request.tools) for made in run.requests] == [2, 0, 0, 0]
    assert all(made.request.system.startswith("Be brief.\n\n# Tools") for made in run.requests[1:])
    assert await run.events("generation_retry", "generation_error") == []


async def test_what_is_remembered_holds_for_that_many_tools_only(run: Run) -> None:
    await run(agent(), DONE, DONE, max_tools=1)
    await run(agent(tools=[add]), DONE, max_tools=1, after=None)
    assert [(made.fault, len(made.request.tools)) for made in run.requests] == [("refused", 2), (None, 0), (None, 1)]


async def test_an_agent_that_wants_its_providers_calls_ends_with_the_refusal(run: Run) -> None:
    result = await run(agent(tool_mode="api"), DONE, max_tools=1)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.too_many_tools")
    assert len(run.requests) == 1
    assert "tool_mode" in result["error"]


async def test_another_refusal_of_the_request_is_not_asked_again(run: Run) -> None:
    assert (await run(agent(), DONE.after(faults.error(400, "tools are not for you"))))[
        "reason_code"
    ] == "llm.request_error"
    assert len(run.requests) == 1


async def test_a_second_refusal_ends_the_turn(run: Run) -> None:
    """S-27 R10: once, whatever the provider says then."""
    assert (await run(agent(), DONE, always=faults.too_many_tools()))["reason_code"] == "llm.too_many_tools"
    assert len(run.requests) == 2


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("openai/gpt-4o-mini", "api"),
        ("anthropic/claude-sonnet-4-5", "api"),
        ("openai/nobody-knows", "api"),
        ("openai/gpt-5-chat", "json-in-xml"),
        ("ollama/llama2", "json-in-xml"),
    ],
)
def test_auto_goes_by_what_is_known_of_the_model(name: str, mode: str) -> None:
    """S-27"""
    definition = agent(model=name).definition
    assert model_call.mode_of(definition) == mode
    assert model_call.mode_of(definition.model_copy(update={"tool_mode": "xml"})) == "xml"
    assert ("# Tools" in str(model_call.system_prompt(definition))) is (mode != "api")


async def test_a_model_that_writes_its_calls_is_not_held_to_the_schema_of_its_last_answer(run: Run) -> None:
    """The provider would let it write nothing else; the schema stands in the prompt, behind the tools."""
    using = agent(model="openai/gpt-4o-mini", tool_mode="json", output_schema={"type": "object", "required": ["sum"]})
    asks = call_in_text("json", ("add", {"first": 1}))
    assert (await run(using, asks, say('{"sum": 1}')))["value"] == {"sum": 1}
    assert all(made.request.response_format is None for made in run.requests)
    assert "# Tools" in run.requests[0].request.system.partition("JSON schema:\n{")[0]


def test_a_definition_of_an_earlier_release_has_the_mode_auto() -> None:
    stored = agent().definition.model_dump(mode="json", exclude={"tool_mode"})
    assert AgentDefinition.model_validate(stored).tool_mode == "auto"


async def test_a_recording_is_replayed_in_its_own_mode_only(house: House) -> None:
    """S-73: the request that is looked up has the mode's prompt in it."""
    asks = call_in_text("xml", *CALLS)
    recordings(house, "record")
    async with at_work(house, agent(tool_mode="xml"), asks, DONE):
        first = await house.run()
    async with replaying(house, agent(tool_mode="xml")) as again:
        second = await again.run()
        assert await told(again) == await told(house)
    assert {**second, "session": ""} == {**first, "session": ""}


async def test_a_recording_of_one_mode_is_no_answer_in_another(house: House) -> None:
    recordings(house, "record")
    async with at_work(house, agent(tool_mode="xml"), DONE):
        await house.run()
    async with replaying(house, agent(tool_mode="json")) as again:
        result = await again.run()
    assert result["reason_code"] == "llm.fixture_missing"
    assert "tool_mode" in result["error"]


async def test_a_conversation_in_text_is_summarised_like_any_other(run: Run) -> None:
    """The model that writes the summary is told of no tools."""
    asks = call_in_text("pythonic", ("add", {"first": 1}))
    answers = (asks, asks, asks, say("<summary>Added.</summary>"), DONE)

    def answer(request: Any) -> Reply:
        if "You summarise" in request.system:
            return answers[3]
        return DONE if "Summary of" in str(request.messages) else asks

    using = agent(tool_mode="pythonic", compaction={"window": 1_000, "threshold": 0.5, "keep": 2})
    result = await run(using, script=answer)
    assert result["stop_reason"] == "finished"
    (summary,) = (made.request for made in run.requests if "You summarise" in made.request.system)
    assert "# Tools" not in summary.system
