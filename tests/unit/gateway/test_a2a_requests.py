"""S-83: messages of the A2A door, read as what perdure is to do, and refusals in the protocol's two forms."""

import json
from typing import Any

import pytest

from perdure.client import RequestRefusedError
from perdure.contracts.a2a import TaskState
from perdure.contracts.input_requests import InputRequest
from perdure.gateway.doors.a2a.errors import A2AError, Reason, write_rest, write_rpc
from perdure.gateway.doors.a2a.requests import (
    GetTask,
    ListTasks,
    Message,
    SendMessage,
    read_params,
    read_prompt,
    read_replies,
    reply_with_text,
)
from perdure.gateway.problems import ProblemCode, ProblemError


def message(*parts: Any, **fields: Any) -> Message:
    return read_params(Message, {"messageId": "m", "role": "ROLE_USER", "parts": [*parts], **fields})


def test_a_message_is_read_with_either_form_of_its_names_and_without_what_is_unset() -> None:
    given = {"message_id": "m", "role": "ROLE_USER", "parts": [{"text": "hi", "media_type": None}], "context_id": "c"}
    read = read_params(SendMessage, {"message": given, "configuration": None, "metadata": {"a": 1}, "newer": 1})
    assert (read.message.message_id, read.message.context_id, read.message.task_id) == ("m", "c", "")
    assert (read.configuration.history_length, read.configuration.return_immediately) == (None, False)
    assert message({"text": "x"}, contextId="", taskId="").context_id is None
    assert read_params(ListTasks, {"status": "TASK_STATE_WORKING", "pageSize": "7"}).state is TaskState.WORKING
    assert read_params(ListTasks, {"status": "TASK_STATE_UNSPECIFIED"}).state is None


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (SendMessage, {}, "message: is needed"),
        (SendMessage, [], "is no object"),
        (SendMessage, {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}, "message.parts"),
        (
            SendMessage,
            {"message": {"messageId": "", "role": "ROLE_USER", "parts": [{"text": "x"}]}},
            "message.messageId",
        ),
        (SendMessage, {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}}, "message.role"),
        (SendMessage, {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{}]}}, "exactly one"),
        (
            SendMessage,
            {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x", "url": "y"}]}},
            "exactly",
        ),
        (SendMessage, {"message": {"messageId": "m", "role": "ROLE_USER", "parts": ["x"]}}, "message.parts.0"),
        (GetTask, {"id": ""}, "id: is empty"),
        (GetTask, {"id": "x", "historyLength": -1}, "historyLength"),
        (ListTasks, {"pageSize": 0}, "pageSize"),
        (ListTasks, {"pageSize": 101}, "pageSize"),
        (ListTasks, {"status": "WORKING"}, "status"),
        (ListTasks, {"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
        (ListTasks, {"contextId": "a b"}, "contextId"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(model: Any, given: Any, said: str) -> None:
    with pytest.raises(ProblemError, match=said) as refused:
        read_params(model, given)
    assert (refused.value.status, refused.value.code) == (422, "request.invalid")


def test_a_prompt_is_texts_and_files() -> None:
    assert read_prompt(message({"text": "one"}, {"data": {"n": 1}})) == 'one\n\n{"n": 1}'
    read: Any = read_prompt(
        message(
            {"text": "see"},
            {"raw": "aGk", "mediaType": "image/png"},
            {"raw": "aGk=", "mediaType": "application/pdf", "filename": "a.pdf"},
        )
    )
    assert read == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"url": "https://example.com/a.png"},
        {"raw": "aGk=", "mediaType": "application/x-unknown"},
        {"raw": "aGk="},
        {"text": "x", "mediaType": "image/png"},
    ],
)
def test_a_part_that_no_agent_reads_is_refused_by_its_type(part: Any) -> None:
    with pytest.raises(A2AError) as refused:
        read_prompt(message(part))
    assert refused.value.reason is Reason.CONTENT_TYPE_NOT_SUPPORTED


def test_a_prompt_that_says_nothing_or_cannot_be_read_is_refused() -> None:
    for part in ({"text": ""}, {"text": " "}, {"raw": "@@@", "mediaType": "image/png"}):
        with pytest.raises(RequestRefusedError, match=r"message\.parts"):
            read_prompt(message(part))
    with pytest.raises(ProblemError, match="the limit is 131,072") as refused:
        read_prompt(message({"text": "x" * 1_000_000}))
    assert refused.value.code == "request.too_large"


def test_replies_name_their_requests() -> None:
    first, second, third = read_replies(
        message(
            {"data": {"request": "c1", "approve": True, "digest": "d"}},
            {"data": {"request": "c2", "answer": {"any": 1}}},
            {"data": {"request": "c3", "result": "text"}},
        )
    )
    assert (first.needs, first.approve, first.digest) == ("approval", True, "d")
    assert (second.needs, second.value, third.needs) == ("answer", {"any": 1}, "result")
    assert read_replies(message({"text": "x"}, {"data": {"a": 1}})) == []


@pytest.mark.parametrize(
    "parts",
    [
        [{"data": {"request": "c", "approve": "yes"}}],
        [{"data": {"request": "c"}}],
        [{"data": {"request": "c", "approve": True, "answer": "x"}}],
        [{"data": {"request": "c", "approve": False, "reason": 1}}],
        [{"data": {"request": "c", "answer": 1}}, {"data": {"request": "c", "answer": 2}}],
        [{"data": {"request": "c", "answer": 1}}, {"text": "and"}],
    ],
)
def test_a_reply_that_is_not_clear_is_refused(parts: Any) -> None:
    with pytest.raises(RequestRefusedError, match=r"message\.parts"):
        read_replies(message(*parts))


def test_a_text_answers_the_one_question_and_never_approves() -> None:
    question = InputRequest(request_id="c1", needs="answer", tool="ask_user", question="Which?")
    approval = InputRequest(request_id="c2", needs="approval", tool="pay")
    reply = reply_with_text(message({"text": "blue"}), [question])
    assert (reply.request, reply.needs, reply.value) == ("c1", "answer", "blue")
    for asked in ([approval], [question, approval], []):
        with pytest.raises(RequestRefusedError, match="send a part"):
            reply_with_text(message({"text": "yes"}), asked)


@pytest.mark.parametrize(
    ("error", "code", "status", "word", "reason"),
    [
        (A2AError(Reason.TASK_NOT_FOUND, "x"), -32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
        (A2AError(Reason.TASK_NOT_CANCELABLE, "x"), -32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
        (A2AError(Reason.VERSION_NOT_SUPPORTED, "x"), -32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
        (ProblemError(422, "request.invalid", "a.b: is empty"), -32602, 400, "INVALID_ARGUMENT", "REQUEST_INVALID"),
        (ProblemError(400, ProblemCode.BAD_JSON, "x"), -32700, 400, "INVALID_ARGUMENT", "REQUEST_BAD_JSON"),
        (ProblemError(403, ProblemCode.FORBIDDEN, "x"), -32000, 403, "PERMISSION_DENIED", "REQUEST_FORBIDDEN"),
        (ProblemError(409, ProblemCode.CONFLICT, "x"), -32000, 409, "ABORTED", "REQUEST_CONFLICT"),
        (ProblemError(503, ProblemCode.NO_WORKER, "x"), -32603, 503, "UNAVAILABLE", "RUNTIME_NO_WORKER"),
    ],
)
def test_a_refusal_has_the_form_of_its_binding(
    error: ProblemError, code: int, status: int, word: str, reason: str
) -> None:
    rest = write_rest(error)
    body: Any = json.loads(bytes(rest.body))["error"]
    assert (rest.status_code, rest.media_type) == (status, "application/a2a+json")
    assert (body["code"], body["status"], body["message"]) == (status, word, error.detail)
    info = body["details"][0]
    assert (info["@type"], info["reason"]) == ("type.googleapis.com/google.rpc.ErrorInfo", reason)
    assert info["domain"] == ("a2a-protocol.org" if isinstance(error, A2AError) else "perdure")
    assert info["metadata"] == {"code": str(error.code)}
    assert (len(body["details"]) == 2) == (": " in error.detail)
    rpc = write_rpc(error, 7)
    answer: Any = json.loads(bytes(rpc.body))
    assert (rpc.status_code == 200) == (status not in {401, 403, 429, 500, 503})
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", 7, code)
    assert answer["error"]["data"] == body["details"]
