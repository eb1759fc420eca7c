"""Requests of the Responses door: what each field comes to, and what is refused before anything is done."""

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.client import RequestRefusedError
from perdure.gateway.doors import open_doors
from perdure.gateway.doors.responses.conversations import begin
from perdure.gateway.doors.responses.errors import write_error
from perdure.gateway.doors.responses.replies import check_said
from perdure.gateway.doors.responses.requests import Asked, ResponseBody, Said, read_request
from perdure.gateway.doors.responses.words import OPENAI_WORDS
from perdure.gateway.problems import Problem, ProblemError
from perdure.settings import Settings

OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "7"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def read(**body: Any) -> Asked:
    return read_request(ResponseBody(**{"model": "tester", "input": "go", **body}))


def begun(**body: Any) -> tuple[Any, list[Any]]:
    """The prompt and the history of the session that a request begins."""
    asked = read(**body)
    return begin(asked.entries, asked.system, OPENAI_WORDS)


def test_instructions_stand_before_the_prompt_and_messages_before_it_are_the_history() -> None:
    assert begun(instructions="Be short.") == ("Be short.\n\ngo", [])
    prompt, history = begun(
        input=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "one"},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "two"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "7"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ]
    )
    assert prompt == "Be kind.\n\nthree"
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert history == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]


def test_calls_that_perdure_has_run_are_history_with_what_came_of_them() -> None:
    """S-83: an agent must know what was done, or does it again."""
    failed = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "tool.failed: broke"}]}
    ended: Any = {"type": "mcp_call", "name": "pay", "arguments": "{}"}
    decisions = [
        {"type": "mcp_approval_response", "approval_request_id": f"mcpr_c{n}", "approve": n == 2, "reason": "dear"}
        for n in (2, 3)
    ]
    asked = begun(
        input=[
            {"role": "user", "content": "one"},
            {"type": "mcp_list_tools", "id": "l", "server_label": "perdure", "tools": []},
            {"type": "mcp_call", "id": "mcp_1", "name": "look", "arguments": '{"a": 1}', "output": "7"},
            {"type": "mcp_approval_request", "id": "mcpr_c2", "name": "pay", "arguments": "{}"},
            {"type": "mcp_approval_request", "id": "mcpr_c3", "name": "pay", "arguments": "{}"},
            *decisions,
            {**ended, "id": "mcp_2", "error": failed, "approval_request_id": "mcpr_c2"},
            {"role": "user", "content": "two"},
        ]
    )

    def called(name: str, tool: str, arguments: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}

    assert asked == (
        "two",
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "", "tool_calls": [called("mcp_1", "look", '{"a": 1}')]},
            {"role": "tool", "tool_call_id": "mcp_1", "content": "7"},
            {"role": "assistant", "content": "", "tool_calls": [called("c3", "pay", "{}")]},
            {"role": "tool", "tool_call_id": "c3", "content": "the call was denied: dear"},
            {"role": "assistant", "content": "", "tool_calls": [called("mcp_2", "pay", "{}")]},
            {"role": "tool", "tool_call_id": "mcp_2", "content": "tool.failed: broke"},
        ],
    )


REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "pay", "arguments": "{}"}
DECISION = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}


@pytest.mark.parametrize(("items", "at"), [([REQUEST], 1), ([REQUEST, DECISION], 1), ([DECISION], 1)])
def test_a_request_without_what_came_of_it_begins_no_session(items: list[Any], at: int) -> None:
    """S-83: the sentence names what to send; a history without it would have the call made again."""
    one, two = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    with pytest.raises(RequestRefusedError, match=rf"^input\[{at}\]: .*previous_response_id"):
        begun(input=[one, *items, two])


def test_images_and_files_are_parts_of_the_prompt() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    file = {"type": "input_file", "file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}
    prompt, _ = begun(input=[{"role": "user", "content": [{"type": "input_text", "text": "look"}, image, file]}])
    assert [part["type"] for part in prompt] == ["text", "image_url", "file"]


def test_limits_metadata_and_tools_are_those_of_the_turn() -> None:
    asked = read(metadata={"team": "a"}, max_tool_calls=3, tools=[{**LOOK, "strict": True}])
    assert (asked.context, asked.budgets and asked.budgets.tool_calls) == ({"team": "a"}, 3)
    assert asked.tools == [{"name": "look", "description": "", "parameters": LOOK["parameters"]}]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [LOOK] * 500}, "tools"),
        ({"tools": [LOOK, LOOK]}, "tools"),
        ({"tools": [{**LOOK, "parameters": {"type": "array"}}]}, "tools"),
        ({"tools": [{**LOOK, "name": "has space"}]}, "tools"),
        ({"tools": [{**LOOK, "name": None}]}, "tools"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/a.png"}]}]},
            "input[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [7]}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"type": ["x"]}]}, "input[0]"),
        ({"input": [{"role": ["x"], "content": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": {}}]}, "input[0]"),
        ({"input": [OUTPUT]}, "input"),
        ({"input": [DECISION]}, "input"),
        ({"input": [{**OUTPUT, "call_id": ""}], "previous_response_id": "resp_x"}, "input[0]"),
        ({"input": [{**OUTPUT, "output": 7}], "previous_response_id": "resp_x"}, "input[0].output"),
        (
            {
                "input": [{"type": "mcp_approval_response", "approval_request_id": "m", "approve": "yes"}],
                "conversation": "c",
            },
            "input[0]",
        ),
        ({"conversation": "c", "previous_response_id": "resp_x"}, "conversation"),
        ({"conversation": {"id": "a b"}}, "conversation"),
        ({"conversation": {}}, "conversation"),
        ({"input": "x" * 200_000}, "prompt"),
    ],
)
def test_what_would_be_another_answer_is_refused_with_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises((RequestRefusedError, ProblemError)) as refused:
        begun(**body)
    said = refused.value.detail if isinstance(refused.value, ProblemError) else str(refused.value)
    assert said.partition(":")[0].startswith(field)


@pytest.mark.parametrize("body", [{"metadata": {"a": 7}}, {"metadata": {str(n): "x" for n in range(17)}}, {"n": 2}])
def test_a_body_that_does_not_fit_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(**body)


def test_requests_are_replied_to_in_their_kind_and_once() -> None:
    requests: Any = {"a": "result", "b": "approval", "c": "answer"}
    result, approval, answer = (
        Said(call_id="a", output="x"),
        Said(call_id="b", approve=True),
        Said(call_id="c", output=""),
    )
    check_said(requests, [result, approval, answer])
    check_said(requests, [result])
    for said, words in (
        ([result, result, approval, answer], "'a' is there twice"),
        ([Said(call_id="d", output="x")], "asks for no 'd'"),
        ([Said(call_id="b", output="x")], "needs an mcp_approval_response"),
        ([Said(call_id="a", approve=True)], "needs a function_call_output"),
    ):
        with pytest.raises(RequestRefusedError, match=words):
            check_said(requests, said)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (422, "request.invalid", (400, "invalid_request_error", "tools")),
        (422, "request.unknown_agent", (404, "invalid_request_error", None)),
        (401, "request.unauthenticated", (401, "authentication_error", None)),
        (403, "request.forbidden", (403, "permission_error", None)),
        (429, "request.rate_limited", (429, "rate_limit_error", None)),
        (503, "runtime.no_worker", (503, "server_error", None)),
    ],
)
def test_a_problem_has_openais_form(status: int, code: str, expected: tuple[int, str, str | None]) -> None:
    problem = Problem(type="", title="", status=status, code=code, detail="tools: are too many")
    answered = write_error(problem, {"Retry-After": "5"})
    error = json.loads(bytes(answered.body))["error"]
    assert (answered.status_code, error["type"], error["param"], error["code"]) == (*expected, code)
    assert answered.headers["retry-after"] == "5"


@pytest.mark.deep
def test_a_door_is_known_by_name_and_imported_only_if_it_is_named() -> None:
    with pytest.raises(
        ValidationError, match="there is no door 'a2b'; the doors are a2a, agui, chat, responses, nexus"
    ):
        Settings(doors="responses,a2b")  # type: ignore[arg-type]
    assert Settings(doors=" responses, ").doors == ("responses",)  # type: ignore[arg-type]
    assert open_doors(["nexus"]) == ()  # a worker's
    program = (
        "import sys, perdure.gateway.app as app; app.open_doors([]);"
        "assert not [name for name in sys.modules if name.startswith('perdure.gateway.doors.')];"
        "app.open_doors(['responses']); assert 'openai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
