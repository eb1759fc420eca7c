"""A model that calls again and again what nothing carries out: each answer is paid.

Seen in public trackers of agent frameworks: a model that made up a tool's name went on until the step limit.
"""

from typing import Any

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, todo, tool
from perdure.testing import Reply, call, say
from tests.memory import Run


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def look() -> str:
    """Look."""
    return "seen"


@tool(catch=True)
def stumble() -> str:
    """Stumble."""
    raise ValueError("no")


ATTEMPT: dict[str, Any] = {"completion": "attempt_completion"}


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": [pay, look], **settings})


REFUSED: dict[str, tuple[Reply, dict[str, Any], str]] = {
    "unknown": (call(("wrok", {})), {}, "tool.unknown_tool"),
    "bad arguments": (call(("pay", {"amount": "much"})), {}, "tool.invalid_input"),
    "nobody to ask": (call(("pay", {"amount": 3})), {"interactive": "refuse"}, "tool.denied"),
    "a todo that is not there": (call(("todo", {"completed": [9]})), {"tools": [todo]}, "tool.invalid_input"),
    "a rule": (
        call(("pay", {"amount": 3})),
        {"approvals": ApprovalPolicy(rules=(ApprovalRule(tool="pay", decision="deny"),))},
        "tool.denied",
    ),
    "a todo and an unknown one": (
        call(("wrok", {}), ("todo", {"completed": [9]})),
        {"tools": [todo]},
        "tool.invalid_input",
    ),
    "an attempt without text": (call(("attempt_completion", {})), ATTEMPT, "tool.invalid_input"),
    "an attempt and an unknown one": (call(("wrok", {}), ("attempt_completion", {})), ATTEMPT, "tool.invalid_input"),
    "an attempt and a failing tool": (
        call(("attempt_completion", {}), ("stumble", {})),
        {"tools": [stumble], **ATTEMPT},
        "tool.execution_error",
    ),
    "an attempt and a todo that is not there": (
        call(("attempt_completion", {}), ("todo", {"completed": [9]})),
        ATTEMPT,
        "tool.invalid_input",
    ),
    "several": (call(("wrok", {}), ("pay", {"amount": "much"})), {}, "tool.invalid_input"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_ten_answers_in_a_row_whose_calls_are_all_refused_end_the_turn(run: Run, kind: str) -> None:
    """S-19: as tools that fail do; the last error is named."""
    refused, settings, code = REFUSED[kind]
    result = await run(agent(**settings), *[refused] * 20, say("done"))
    assert (result["stop_reason"], result["reason_code"], result["steps"]) == ("error", code, 10)
    assert len(run.requests) == 10
    assert "10 tool errors in a row; the last one, of " in result["error"]


async def test_a_todo_beside_what_helps_does_not_count(run: Run) -> None:
    asked = call(("todo", {"completed": [9]}), ("look", {}))
    noted = call(("todo", {"completed": [9]}), ("todo", {"new_titles": ["look"]}))
    result = await run(agent(tools=[todo, look]), *[asked] * 12, *[noted] * 12, say("done"))
    assert (result["stop_reason"], result["steps"]) == ("finished", 25)


async def test_a_call_that_is_carried_out_begins_the_count_anew(run: Run) -> None:
    unknown, helped = call(("wrok", {})), call(("wrok", {}), ("look", {}))
    answers = [unknown] * 9 + [helped] + [unknown] * 9 + [say("done")]
    result = await run(agent(), *answers)
    assert (result["stop_reason"], result["steps"]) == ("finished", 20)


async def test_an_attempt_at_completion_while_todos_are_open_is_refused_too(run: Run) -> None:
    listed, attempt = call(("todo", {"new_titles": ["look"]})), call(("attempt_completion", {}), text="done")
    result = await run(agent(**ATTEMPT), listed, *[attempt] * 20)
    assert (result["stop_reason"], result["reason_code"], result["steps"]) == ("error", "tool.invalid_input", 11)
    assert result["error"].endswith(
        "of attempt_completion: attempt_completion did not complete the work: todos are open"
    )


async def test_what_a_todo_changes_begins_the_count_anew(run: Run) -> None:
    """A list of many todos, and an attempt after each of them."""
    attempt = call(("attempt_completion", {}), text="done")
    completed = [call(("todo", {"completed": [place]})) for place in range(12)]
    listed = call(("todo", {"new_titles": [f"todo {place}" for place in range(12)]}), ("attempt_completion", {}))
    answers = [listed, *(answer for one in completed for answer in (attempt, one)), attempt]
    result = await run(agent(**ATTEMPT), *answers)
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "done", len(answers))
