"""What becomes of a tool call that fails: told to the model or the end of the turn, as author and agent say."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter

from perdure import Agent, ask_user, tool
from perdure.agents.tool import Catch, Tool
from perdure.testing import Reply, call, say
from tests.memory import Run

DONE = say("done")


class DerivedError(KeyError):
    """A class that is caught by its base."""


def agent(*tools: Tool[..., Any], **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


async def played(run: Run, using: Agent, *answers: Reply) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The result of a turn, and the tool messages that the model read last."""
    result = await run(using, *answers)
    last = run.requests[-1].request.messages
    return result, [message for message in last if message["role"] == "tool"]


def error_in(message: Mapping[str, Any]) -> Mapping[str, Any]:
    body: Mapping[str, Any] = json.loads(message["content"])["error"]
    return body


def raising(kind: str, catch: Catch = None) -> Tool[..., Any]:
    """A tool that raises an exception of that class, the same object each time."""
    errors = {"KeyError": KeyError("lost"), "DerivedError": DerivedError("lost"), "ValueError": ValueError("lost")}

    @tool(catch=catch)
    def work() -> str:
        if kind == "JSONDecodeError":
            json.loads("{broken")
        if kind == "ValidationError":
            TypeAdapter(int).validate_python("no number")
        raise errors[kind]

    return work


@pytest.mark.parametrize(
    ("kind", "catch"),
    [
        ("JSONDecodeError", None),
        ("ValidationError", None),
        ("JSONDecodeError", [KeyError]),
        ("KeyError", [KeyError]),
        ("DerivedError", [KeyError]),
        ("ValueError", True),
    ],
)
async def test_a_caught_exception_is_told_to_the_model_every_time(run: Run, kind: str, catch: Catch) -> None:
    """S-21: the second time like the first."""
    ask = call(("work", {}))
    result, results = await played(run, agent(raising(kind, catch)), ask, ask, DONE)
    assert (result["stop_reason"], result["steps"]) == ("finished", 3)
    assert [(error_in(read)["type"], error_in(read)["code"]) for read in results] == [
        (kind, "tool.execution_error"),
        (kind, "tool.execution_error"),
    ]
    assert [line["error"]["type"] for line in await run.events("tool_end")] == [kind, kind]
    assert await run.events("tool_error") == []


@pytest.mark.parametrize(("kind", "catch"), [("ValueError", None), ("ValueError", [KeyError]), ("KeyError", False)])
async def test_an_exception_that_is_not_caught_ends_the_turn(run: Run, kind: str, catch: Catch) -> None:
    """S-20 S-21: a row titled with the tool's name, and stop reason error."""
    result, _ = await played(run, agent(raising(kind, catch)), call(("work", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.execution_error")
    (row,) = await run.events("tool_error")
    assert (row["error"]["title"], row["error"]["type"]) == ("work", kind)
    assert f"step 1, tool work: {kind}: " in result["error"]


@pytest.mark.parametrize("kind", ["JSONDecodeError", "ValidationError"])
async def test_catch_false_catches_not_even_the_default_classes(run: Run, kind: str) -> None:
    """S-21."""
    result, _ = await played(run, agent(raising(kind, False)), call(("work", {})), DONE)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.execution_error")


async def test_when_one_call_aborts_the_turn_its_siblings_keep_their_results_and_a_prompt_goes_on(
    run: Run,
) -> None:
    """S-20 S-24 S-56: the next prompt's model reads the call, its error and the finished results."""

    @tool
    def fine(n: int) -> str:
        return f"fine {n}"

    asked = call(("fine", {"n": 1}), ("work", {}), ("fine", {"n": 2}), text="trying")
    using = agent(raising("ValueError"), fine)
    assert (await run(using, asked, say("back again"), prompt="first"))["stop_reason"] == "error"
    result = await run(using, asked, say("back again"), prompt="second")
    *conversation, last = run.requests[-1].request.messages
    assert (result["stop_reason"], result["turn"], result["output"]) == ("finished", 2, "back again")
    assert (last["role"], last["content"]) == ("user", "second")
    user, assistant, *results = (dict[str, Any](message) for message in conversation)
    assert (user["content"], assistant["content"]) == ("first", "trying")
    assert [read["tool_call_id"] for read in results] == [made["id"] for made in assistant["tool_calls"]]
    assert [read["content"] for read in (results[0], results[2])] == ["fine 1", "fine 2"]
    assert error_in(results[1]) == {"code": "tool.execution_error", "type": "ValueError", "message": "lost"}


async def test_feed_back_tells_the_model_every_exception_and_goes_on(run: Run) -> None:
    """S-19: class name and text."""
    using = agent(raising("ValueError"), on_tool_error="feed_back")
    result, results = await played(run, using, call(("work", {})), DONE)
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    assert [error_in(read) for read in results] == [
        {"code": "tool.execution_error", "type": "ValueError", "message": "lost"}
    ]


async def test_feed_back_ends_the_turn_after_ten_errors_in_a_row(run: Run) -> None:
    """S-19: its bound."""
    using = agent(raising("ValueError"), on_tool_error="feed_back")
    result, _ = await played(run, using, *[call(("work", {}))] * 20)
    assert (result["stop_reason"], result["reason_code"], result["steps"]) == ("error", "tool.execution_error", 10)
    assert result["error"].startswith("10 tool errors in a row; the last one, of work: lost")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"n": 1', "the arguments are no JSON object"),
        ("[1]", "the arguments are no JSON object"),
        ('{"n": "many"}', "n: Input should be a valid integer"),
        ("{}", "n: Field required"),
        ('{"n": 1, "m": 2}', "m: Extra inputs are not permitted"),
    ],
)
@pytest.mark.parametrize("catch", [None, False])
async def test_arguments_that_do_not_fit_come_back_to_the_model(
    run: Run, arguments: str, said: str, catch: Catch
) -> None:
    """S-22: whatever the tool catches; the body never runs."""
    ran: list[int] = []

    @tool(catch=catch)
    def work(n: int) -> str:
        ran.append(n)
        return "worked"

    result, results = await played(run, agent(work), call(("work", arguments)), DONE)
    assert (result["stop_reason"], ran) == ("finished", [])
    (error,) = [error_in(read) for read in results]
    assert error["code"] == "tool.invalid_input"
    assert said in error["message"]


async def test_an_unknown_tool_comes_back_to_the_model_under_its_own_call_and_its_siblings_run(run: Run) -> None:
    """S-23: a tool message with the right call id."""

    @tool
    def work() -> str:
        return "worked"

    asked = call(("work", {}), ("wrok", {}))
    result = await run(agent(work), asked, DONE)
    _, assistant, first, second = (dict[str, Any](message) for message in run.requests[-1].request.messages)
    assert result["stop_reason"] == "finished"
    assert [made["id"] for made in assistant["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    said = "there is no tool named 'wrok'; the tools are: work"
    assert (first["content"], error_in(second)) == (
        "worked",
        {"code": "tool.unknown_tool", "type": "", "message": said},
    )
    (row,) = await run.events("tool_error")
    assert (row["tool"], row["error"]["code"], row["error"]["message"]) == ("wrok", "tool.unknown_tool", said)


async def test_an_unknown_tool_ends_the_turn_of_an_agent_that_says_so_and_the_next_reads_all_results(
    run: Run,
) -> None:
    """S-23: titled with the tool's name; siblings run and keep their results, and nothing else is begun."""

    @tool
    def work() -> str:
        return "worked"

    asked = call(("wrok", {}), ("work", {}), ("helper", {"query": "help"}), ("ask_user", {"question": "How?"}))
    helper = Agent(name="helper", model="openai/scripted")
    using = agent(work, ask_user, on_unknown_tool="abort", delegates=[helper])
    ended = await run(using, asked, DONE, agents=[helper], prompt="first")
    assert (ended["stop_reason"], ended["reason_code"], ended["steps"]) == ("error", "tool.unknown_tool", 1)
    assert ended["error"].startswith("step 1, tool wrok: there is no tool named 'wrok'; the tools are: work, ")
    assert ended["error"].endswith("; it ended the turn, because the agent's on_unknown_tool is 'abort'")
    assert (await run(using, asked, DONE, agents=[helper], prompt="second"))["stop_reason"] == "finished"
    _, _, *results, _ = run.requests[-1].request.messages
    unknown, *others = results
    assert error_in(unknown)["code"] == "tool.unknown_tool"
    assert [str(read["content"]).partition(":")[0] for read in others] == ["worked", *["Operation aborted"] * 2]
    (row,) = await run.events("tool_error")
    assert (row["tool"], row["error"]["title"], row["error"]["code"]) == ("wrok", "wrok", "tool.unknown_tool")
    (end,) = await run.events("agent_error")
    assert (end["error"]["title"], end["error"]["code"]) == ("wrok", "tool.unknown_tool")
    assert [len(run.requests), await run.events("user_input_required")] == [2, []]


async def test_of_many_tools_the_first_are_named(run: Run) -> None:
    """S-23: the result stays short."""
    many = [raising("ValueError").with_(name=f"tool_{number:03}_{'x' * 50}") for number in range(100)]
    result, (read,) = await played(run, agent(*many), call(("wrok", {})), DONE)
    assert result["stop_reason"] == "finished"
    message = error_in(read)["message"]
    assert message.startswith(f"there is no tool named 'wrok'; the tools are: {many[0].name}, {many[1].name}, ")
    assert re.search(r", and (\d\d) more$", message)
    assert len(message) < 1_200


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_tool_that_exits_the_process_ends_its_turn_and_not_the_worker(run: Run, blocking: bool) -> None:
    """S-25: sys.exit is an error of the tool like any other."""

    @tool(name="leave")
    def leave_sync() -> str:
        sys.exit(3)

    @tool(name="leave")
    async def leave_async() -> str:
        sys.exit(3)

    using = agent(leave_sync if blocking else leave_async)
    first, second = [await run(using, call(("leave", {})), DONE) for _ in range(2)]
    assert (first["stop_reason"], first["reason_code"]) == ("error", "tool.execution_error")
    assert "tried to end the process: SystemExit(3)" in first["error"]
    assert second["stop_reason"] == "finished"
