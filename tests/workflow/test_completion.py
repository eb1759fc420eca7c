"""How a turn finishes: todos, finish and attempt_completion are carried out in the workflow, without an activity."""

import asyncio
import json
from typing import Any, cast

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, Budgets, ask_user, clear_todo, finish, stop, todo, tool
from perdure.contracts.values import JsonValue
from perdure.testing import Reply, Script, ScriptedProvider, answer, approve, call, say
from tests.house import WAIT_SECONDS, House
from tests.memory import Run
from tests.workflow.killing import AGENTS, result_of

pytestmark = pytest.mark.deep


@tool
def work(text: str = "it") -> str:
    """Do some work."""
    return f"did {text}"


def agent(completion: str | None = "attempt_completion", **settings: Any) -> Agent:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [work], "completion": completion}
    return Agent(**{**fields, **settings})


ADD = call(("todo", {"new_titles": ["look", "mend"]}))
ATTEMPT: tuple[str, JsonValue] = ("attempt_completion", {})


def read(run: Run) -> list[list[str]]:
    """What the model read as results with each request, of the answer before it."""
    seen: list[list[str]] = []
    for made in run.requests:
        messages = made.request.messages
        last = max((place for place, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        seen.append([str(message["content"]) for message in messages[last + 1 :] if message["role"] == "tool"])
    return seen


async def play(run: Run, tester: Agent, *replies: Reply) -> tuple[dict[str, Any], list[list[str]]]:
    result = await run(tester, *replies)
    return result, read(run)


def titles(result: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(item["title"], item["completed"]) for item in result["todos"]]


async def test_open_todos_come_back_and_the_work_goes_on_until_they_are_done(run: Run) -> None:
    """S-39: and the text beside the call that is let through is the result."""
    result, seen = await play(
        run,
        agent(),
        ADD,
        call(ATTEMPT, text="all done"),
        call(("todo", {"completed": [0, 1]})),
        call(ATTEMPT, text="really done"),
    )
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "really done", 4)
    assert json.loads(seen[2][0])["open_todos"] == [
        {"id": 0, "title": "look", "completed": False},
        {"id": 1, "title": "mend", "completed": False},
    ]
    assert titles(result) == [("look", True), ("mend", True)]


async def test_without_open_todos_and_without_text_one_more_answer_in_text_is_the_result(run: Run) -> None:
    """S-39: the model is asked once more, and not for a call."""
    result = await run(agent(), call(ATTEMPT), say("the result"))
    chosen = [cast("dict[str, JsonValue]", made.body).get("tool_choice") for made in run.requests]
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "the result", 2)
    assert chosen == [None, "none"]


async def test_other_calls_of_that_answer_are_answered_first(run: Run) -> None:
    """S-39: also one that a person answers, and the attempt is judged after all of them."""
    both = call(ATTEMPT, ("work", {}), ("todo", {"new_titles": ["look"]}), ("ask_user", {"question": "Well?"}))
    replies = (both, call(("todo", {"completed": [0]}), ATTEMPT, text="done"))
    result = await run(agent(tools=[work, ask_user]), *replies, people=[answer("yes")])
    _, second = read(run)
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    attempted, worked, listed, answered = second
    assert "open_todos" in attempted
    assert (worked, answered) == ("did it", "yes")
    assert json.loads(listed)["todos"] == [{"id": 0, "title": "look", "completed": False}]


async def test_a_text_without_a_call_completes_too(run: Run) -> None:
    """S-39: the implicit way, which asks for no todos."""
    result, _ = await play(run, agent(), ADD, say("enough"))
    assert (result["stop_reason"], result["output"]) == ("finished", "enough")
    assert titles(result) == [("look", False), ("mend", False)]


async def test_a_text_without_a_call_stalls_where_a_finish_tool_is_asked_for(run: Run) -> None:
    """S-33."""
    result, _ = await play(run, agent("finish_tool"), say("enough"))
    assert result["stop_reason"] == "stalled"


async def test_finish_ends_the_turn_with_its_summary_and_siblings_keep_their_results(run: Run) -> None:
    """S-32."""
    result, _ = await play(run, agent("finish_tool"), call(("finish", {"summary": "it is so"}), ("work", {})))
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "it is so", 1)
    assert [line["result"] for line in await run.events("tool_end")] == ["did it", "finished"]


async def test_any_agent_may_be_given_the_tools(run: Run) -> None:
    tester = agent(None, tools=[todo.with_(name="plan"), clear_todo, finish])
    result, seen = await play(
        run,
        tester,
        call(("plan", {"new_titles": ["a"]}), ("plan", {"new_titles": ["b"], "completed": [0]})),
        call(("clear_todo", {}), ("plan", {"new_titles": ["c"]})),
        call(("finish", {}), text="so it is"),
    )
    assert (result["stop_reason"], result["output"]) == ("finished", "so it is")
    assert [json.loads(content)["todos"] for content in seen[1]] == [
        [{"id": 0, "title": "a", "completed": False}],
        [{"id": 0, "title": "a", "completed": True}, {"id": 1, "title": "b", "completed": False}],
    ]
    assert titles(result) == [("c", False)]


async def test_no_activity_carries_them_out(house: House) -> None:
    async with ScriptedProvider(Script(replies=(ADD, say("done")))) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        history = await handle.fetch_history()
    names = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert names == ["open_turn", "generate", "generate", "commit_turn"]


BAD: dict[str, tuple[Any, str]] = {
    "wrong type": ({"new_titles": "look"}, "new_titles"),
    "empty title": ({"new_titles": [""]}, "new_titles.0"),
    "too long": ({"new_titles": ["x" * 501]}, "new_titles.0"),
    "no object": ("[1]", "no JSON object"),
    "broken": ("{", "no JSON object"),
    "unknown id": ({"completed": [3]}, "there is no todo 3"),
}


@pytest.mark.parametrize("name", BAD)
async def test_arguments_that_do_not_fit_come_back_to_the_model(run: Run, name: str) -> None:
    """S-22."""
    given, told = BAD[name]
    _, (_, (said,)) = await play(run, agent(), call(("todo", given)), say("done"))
    (end,) = await run.events("tool_end", "tool_error")
    assert end["error"]["code"] == "tool.invalid_input"
    assert told in said


async def test_todos_stand_in_the_event_log_and_begin_the_next_turn(run: Run) -> None:
    replies = (ADD, say("one"), call(("todo", {"completed": [0]})), say("two"))
    await run(agent(), *replies)
    result = await run(agent(), *replies, prompt="more")
    assert titles(result) == [("look", True), ("mend", False)]
    assert [(line["turn"], titles(dict(line))) for line in await run.events("todos_changed")] == [
        (1, [("look", False), ("mend", False)]),
        (2, [("look", True), ("mend", False)]),
    ]


async def test_a_change_of_todos_counts_as_a_patch_and_reading_them_does_not(run: Run) -> None:
    """S-70: N allows exactly N."""
    tester = agent(budgets=Budgets(patches=2))
    look: tuple[str, JsonValue] = ("todo", {})
    result, _ = await play(run, tester, call(look, *ADD.calls, look), ADD, call(look), ADD)
    assert (result["stop_reason"], result["reason_code"], result["exhausted_by"]) == (
        "budget_exhausted",
        "budget.patches_exhausted",
        "patches",
    )
    assert len(result["todos"]) == 4
    assert (result["spent"]["patches"], result["spent"]["tool_calls"]) == (2, 5)


async def test_a_rule_denies_them_and_a_person_approves_them_like_any_call(run: Run) -> None:
    policy = ApprovalPolicy(
        rules=(ApprovalRule(tool="clear_todo", decision="deny"), ApprovalRule(tool="finish", decision="ask"))
    )
    tester = agent("finish_tool", tools=[todo, clear_todo], approvals=policy)
    replies = (ADD, call(("clear_todo", {}), ("finish", {"summary": "so"})))
    result = await run(tester, *replies, people=[approve(by="ada")])
    assert (result["stop_reason"], result["output"], len(result["todos"])) == ("finished", "so", 2)
    ends = await run.events("tool_end", "tool_error")
    assert [(line["error"] or {}).get("code") for line in ends] == [None, "tool.denied", None]
    (received,) = await run.events("user_input_received")
    assert (received["decision"], received["by"]) == ("approved", "ada")


async def test_a_turn_that_stops_for_people_says_that_its_attempt_was_too_early(run: Run) -> None:
    tester = agent(tools=[ask_user], interactive="stop")
    replies = (call(ATTEMPT, ("ask_user", {"question": "Well?"})), call(ATTEMPT, text="done"))
    stopped = await run(tester, *replies)
    assert stopped["stop_reason"] == "waiting_for_input"
    result = await run(tester, *replies, prompt="", reply=answer("yes"))
    attempted, answered = read(run)[-1]
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    assert "call it again" in attempted
    assert answered == "yes"


async def test_killing_the_worker_at_a_step_boundary_changes_neither_todos_nor_what_is_spent(house: House) -> None:
    """S-80."""
    replies = (
        ADD,
        call(("todo", {"completed": [0]}), ATTEMPT),
        call(("todo", {"completed": [1]}), ATTEMPT, text="done"),
    )
    async with ScriptedProvider(Script(replies=replies)) as provider:
        house.use(provider)
        ends: list[dict[str, Any]] = []
        for write in (None, "begin_generation", "finish_generation"):
            house.session = f"{house.settings.task_queue}-{write}"
            first = None
            if write is not None:
                first = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER=write)
            handle = await house.start("planner")
            if first is not None:
                assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -9
            last = house.spawn_worker(AGENTS)
            await last.polling()
            result = await result_of(handle)
            changed = [line["todos"] for line in await house.events("todos_changed")]
            ends.append({**{name: result[name] for name in ("output", "todos", "spent", "steps")}, "changed": changed})
            last.kill()
    assert ends[0]["output"] == "done"
    assert titles(ends[0]) == [("look", True), ("mend", True)]
    assert len(ends[0]["changed"]) == 3
    assert ends[1] == ends[2] == ends[0]


async def test_stop_conditions_see_the_calls(run: Run) -> None:
    """S-34."""
    result, _ = await play(run, agent(stop_conditions=[stop.tool_use("todo")]), ADD, say("never said"))
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "tool_use(tool='todo')")
    assert titles(result) == [("look", False), ("mend", False)]
