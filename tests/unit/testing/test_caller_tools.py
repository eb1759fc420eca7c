"""Tools that the caller runs, in memory: each call has one result, whatever the caller sends, and when."""

from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, ToolDefinitionError, ask_user, caller_tool, tool
from perdure.contracts.input_requests import InputRequest
from perdure.testing import InMemoryRun, Said, answer, call, deny, result, run_in_memory, say
from tests.memory import Run

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "password": {"type": "string"}},
    "required": ["id"],
}
lookup = caller_tool("lookup", "Look a customer up.", SCHEMA, timeout=timedelta(hours=1))
LOOK = call(("lookup", {"id": 7}))
DONE = say("done")


@tool(runs="caller")
def count(what: str) -> int:
    """Count something."""
    raise NotImplementedError


@tool
def note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [lookup, count, note, ask_user]}
    return Agent(**{**fields, **settings})


def results(run: InMemoryRun) -> list[str]:
    """What the model read as results of its calls, with its last request."""
    return [str(message["content"]) for message in run.requests[-1].request.messages if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        (result("Ada"), "Ada"),
        (result({"name": "Ada", "age": 36}), '{"name": "Ada", "age": 36}'),
        (result(None), "null"),
        (result(error="no such customer"), "no such customer"),
        (deny("private", by="ada"), "lookup was denied by ada: private"),
    ],
)
async def test_the_value_that_the_caller_sends_is_the_result_that_the_model_reads(said: Said, reads: str) -> None:
    run = await run_in_memory(agent(), "go", [LOOK, DONE], people=[said])
    assert (run.result.output, len(results(run))) == ("done", 1)
    assert reads in results(run)[0]


async def test_the_request_has_all_that_the_caller_needs_to_run_the_call(run: Run) -> None:
    seen: list[InputRequest] = []

    def runs(request: InputRequest) -> Said:
        seen.append(request)
        return result("Ada", by="app")

    long = "x" * 5_000
    await run(agent(), call(("lookup", {"id": 7, "password": "hunter22", "text": long})), DONE, people=runs)
    (request,) = seen
    assert (request.needs, request.tool, len(request.digest)) == ("result", "lookup", 32)
    assert request.arguments == f'{{"id": 7, "password": "***", "text": "{long}"}}'
    assert request.expires_at is not None
    (asked,) = await run.events("user_input_required")
    (said,) = await run.events("user_input_received")
    assert (asked["needs"], asked["request_id"]) == ("result", said["request_id"])
    assert (said["decision"], said["by"], said["digest"]) == ("returned", "app", request.digest)


async def test_an_error_of_the_caller_is_an_error_result(run: Run) -> None:
    await run(agent(), LOOK, DONE, people=[result(error="the database is away")])
    (ended,) = await run.events("tool_end")
    assert (ended["error"]["code"], ended["error"]["message"]) == ("tool.execution_error", "the database is away")


async def test_parallel_calls_wait_side_by_side_after_the_workers_own(run: Run) -> None:
    asked: list[str] = []

    def runs(request: InputRequest) -> Said:
        asked.append(request.tool)
        return result(3, seconds=20.0) if request.tool == "count" else result("Ada", seconds=1.0)

    calls = call(("count", {"what": "x"}), ("lookup", {"id": 7}), ("note", {"text": "y"}))
    await run(agent(), calls, DONE, people=runs)
    assert (sorted(asked), run.last.seconds) == (["count", "lookup"], 20.0)
    assert [text for role, text in run.read() if role == "tool"] == ["3", "Ada", "noted y"]


async def test_a_result_that_does_not_come_in_time_is_an_error_and_a_question_waits_on(run: Run) -> None:
    def runs(request: InputRequest) -> Said | None:
        return None if request.tool == "lookup" else answer("blue", seconds=7_200.0)

    await run(agent(), call(("lookup", {"id": 7}), ("ask_user", {"question": "?"})), DONE, people=runs)
    late, kept = [text for role, text in run.read() if role == "tool"]
    assert ("sent no result in time" in late, kept, run.last.seconds) == (True, "blue", 7_200.0)
    decided = {event["tool"]: event["decision"] for event in await run.events("user_input_received")}
    assert decided == {"lookup": "expired", "ask_user": "answered"}


async def test_a_result_has_the_annotated_type_and_its_text_is_read_as_json() -> None:
    run = await run_in_memory(agent(), "go", [call(("count", {"what": "x"})), DONE], people=[result("12")])
    assert results(run) == ["12"]


async def test_arguments_that_miss_the_schema_are_refused_before_the_caller_is_asked() -> None:
    run = await run_in_memory(agent(), "go", [call(("lookup", {"id": "x"})), LOOK, DONE], people=[result("Ada")])
    wrong, right = results(run)
    assert ("do not fit the schema" in wrong, right) == (True, "Ada")


async def test_an_agent_that_runs_without_people_refuses_the_call() -> None:
    run = await run_in_memory(agent(interactive="refuse"), "go", [LOOK, DONE])
    assert "nobody can be asked to run this" in results(run)[0]


async def test_an_agent_that_stops_goes_on_in_the_turn_that_the_result_starts() -> None:
    first = await run_in_memory(agent(interactive="stop"), "go", [LOOK, DONE])
    (request,) = first.result.requests
    assert (first.result.stop_reason, request.needs) == ("waiting_for_input", "result")
    assert request.expires_at is not None
    then = await run_in_memory(agent(interactive="stop"), "", [LOOK, DONE], after=first, reply=result("Ada"))
    assert (then.result.output, results(then)) == ("done", ["Ada"])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "no spaces"}, "tool 'no spaces': name: "),
        ({"parameters": {"type": "array"}}, "write the schema of an object"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "int"}}}}, "this is no JSON schema"),
        ({"parameters": {"type": "object", "$ref": "https://else.where"}}, "leads nowhere"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"masked": ["token"]}, "masked names token, which no model sends"),
    ],
)
def test_a_description_that_is_none_is_refused_where_it_is_written(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        caller_tool(**{"name": "lookup", "description": "Look.", "parameters": SCHEMA, **fields})
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_caller_decides_itself_whether_it_runs_a_call() -> None:
    with pytest.raises(ToolDefinitionError, match="requires_approval"):
        count.with_(requires_approval=True)


def test_a_copy_of_a_described_tool_keeps_what_it_does_not_change() -> None:
    copied = lookup.with_(name="find")
    assert (copied.name, copied.declaration.parameters, copied.declaration.runs) == ("find", SCHEMA, "caller")
