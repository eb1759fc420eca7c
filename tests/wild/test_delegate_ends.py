"""Delegates that end by something other than a text: their caller reads what they worked out all the same.

Seen in public trackers of agent frameworks: a sub-agent that hands its report to a tool of its own, which ends it,
comes back as an empty text, and its caller goes on without the report.
"""

import json
from typing import Any

import pytest

from perdure import Agent, Delegate, Finish, ToolContext, finish, hook, spawn_agent, stop, tool
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, call, say
from tests.memory import Run


@tool
def submit(report: str = "") -> str:
    """Hand in the report."""
    return f"taken, {len(report)} characters"


@tool
def leave(context: ToolContext, report: str = "") -> str:
    """Hand in the report, and stop."""
    context.stop_turn("the report is there")
    return f"taken, {len(report)} characters"


@tool(catch=True)
def fail(report: str = "") -> str:
    """Fail."""
    raise ValueError(report)


@hook("agent_start")
def end_at_the_start(_: object) -> Finish:
    return Finish("enough")


@hook("generation_end")
def end_at_the_answer(_: object) -> Finish:
    return Finish("enough")


@hook("tool_end")
def end_at_the_step(_: object) -> Finish:
    return Finish("enough")


REPORT: dict[str, JsonValue] = {"report": "all is well"}
HANDED_IN = 'submit({"report": "all is well"}):\ntaken, 11 characters'

ENDS: dict[str, tuple[Reply, dict[str, Any], str]] = {
    "a text": (say("all is well"), {}, "all is well"),
    "its finish tool": (call(("submit", REPORT)), {"finish_tool": "submit"}, HANDED_IN),
    "its finish tool and a text": (
        call(("submit", REPORT), text="Here it is."),
        {"finish_tool": "submit"},
        f"Here it is.\n\n{HANDED_IN}",
    ),
    "its finish tool and another": (
        call(("submit", REPORT), ("look", {})),
        {"finish_tool": "submit", "tools": [submit, tool(name="look")(lambda: "seen")]},
        f"{HANDED_IN}\n\nlook({{}}):\nseen",
    ),
    "a condition on a tool": (
        call(("submit", REPORT)),
        {"stop_conditions": [stop.tool_use("submit", name="handed in")]},
        f"{HANDED_IN}\n\n[stopped by handed in]",
    ),
    "a condition on an error": (
        call(("fail", REPORT)),
        {"stop_conditions": [stop.tool_error(name="failed")], "tools": [fail]},
        'fail({"report": "all is well"}):\n{"error": {"code": "tool.execution_error", "type": "ValueError", '
        '"message": "all is well"}}\n\n[stopped by failed]',
    ),
    "a condition on its text": (
        say("all is well"),
        {"stop_conditions": [stop.output("well")]},
        "all is well",
    ),
    "stop_turn": (
        call(("leave", REPORT)),
        {"tools": [leave]},
        'leave({"report": "all is well"}):\ntaken, 11 characters\n\n[stopped by leave: the report is there]',
    ),
    "a hook that finishes, behind a text": (say("all is well"), {"hooks": [end_at_the_answer]}, "all is well"),
    "a hook that finishes before the calls run": (
        call(("submit", REPORT), text="Handing it in."),
        {"hooks": [end_at_the_answer]},
        "Handing it in.\n\n[stopped by end_at_the_answer: enough]",
    ),
    "a hook that finishes behind the calls": (
        call(("submit", REPORT)),
        {"hooks": [end_at_the_step]},
        f"{HANDED_IN}\n\n[stopped by end_at_the_step: enough]",
    ),
    "finish with a summary": (
        call(("finish", {"summary": "all is well"}), text="Done."),
        {"completion": "finish_tool", "tools": [finish]},
        "all is well",
    ),
    "finish without one": (
        call(("finish", {})),
        {"completion": "finish_tool", "tools": [finish]},
        "finish({}):\nfinished",
    ),
    "a hook that finishes before the first answer": (
        say("never asked"),
        {"hooks": [end_at_the_start]},
        "[stopped by end_at_the_start: enough]",
    ),
}


def helper(**settings: Any) -> Agent:
    return Agent(
        **{"name": "helper", "model": "openai/scripted", "instructions": "I help.", "tools": [submit], **settings}
    )


def lead(delegate: Agent, **settings: Any) -> Agent:
    return Agent(
        name="lead", model="openai/scripted", instructions="I lead.", delegates=[Delegate(delegate, **settings)]
    )


def playing(ends: Reply, *leads: Reply) -> Any:
    """Answers of the caller's model, and the one that the delegate's gives."""

    def answer(request: ChatRequest) -> Reply:
        return leads[request.index] if "I lead." in request.system else ends

    return answer


async def read_by_the_caller(run: Run, agent: Agent, ends: Reply, asked: Reply) -> str:
    result = await run(agent, script=playing(ends, asked, say("done")))
    assert (result["stop_reason"], result["output"]) == ("finished", "done"), result["error"]
    role, text = run.read()[-1]
    assert role == "tool"
    return text


@pytest.mark.parametrize("kind", ENDS)
async def test_the_caller_reads_what_was_worked_out(run: Run, kind: str) -> None:
    """S-62."""
    ends, settings, told = ENDS[kind]
    asked = call(("helper", {"query": "look"}))
    assert await read_by_the_caller(run, lead(helper(**settings)), ends, asked) == told


async def test_a_clone_and_what_works_in_the_background_are_read_likewise(run: Run) -> None:
    """S-64."""
    settings: dict[str, Any] = {"tools": [submit], "stop_conditions": [stop.tool_use("submit", name="handed in")]}
    clones = Agent(name="lead", model="openai/scripted", instructions="I lead.", tools=[spawn_agent, leave])
    leaves = call(("leave", REPORT))
    told = json.loads(await read_by_the_caller(run, clones, leaves, call(("spawn_agent", {"task": "look"}))))
    assert told["result"] == ENDS["stop_turn"][2]

    asked = call(("helper", {"query": "look", "run_in_background": True}))
    awaits = call(("await_delegate", {}))
    script = playing(ENDS["a condition on a tool"][0], asked, awaits, say("done"))
    await run(lead(helper(**settings), background=True), script=script, after=None)
    assert run.read()[-1] == ("tool", ENDS["a condition on a tool"][2])


async def test_one_that_has_no_steps_left_says_what_it_came_to(run: Run) -> None:
    """S-63."""
    told = json.loads(
        await read_by_the_caller(
            run,
            lead(helper(max_steps=1)),
            call(("submit", REPORT), text="So far:"),
            call(("helper", {"query": "look"})),
        )
    )
    assert told["error"]["type"] == "max_steps_reached"
    assert told["error"]["last_output"] == f"So far:\n\n{HANDED_IN}"


async def test_what_a_tool_masks_is_masked_for_the_caller(run: Run) -> None:
    """S-52."""

    @tool(name="submit", masked=("report",))
    def secret(report: str = "") -> str:
        """Hand in the report."""
        return f"taken: {report}"

    text = await read_by_the_caller(
        run,
        lead(helper(tools=[secret], finish_tool="submit")),
        call(("submit", REPORT)),
        call(("helper", {"query": "look"})),
    )
    assert text == 'submit({"report": "***"}):\ntaken: ***'
