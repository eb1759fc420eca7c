"""Requests of Bedrock's Converse, judged by botocore: its model of the service, and the signature of its client."""

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

from perdure.activities.models import bedrock, litellm_call, provider_door, providers
from perdure.activities.models.litellm_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from tests.unit.activities.raw_provider import read_request, reply, serving

Json = Any

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
KEYS = {"aws_access_key_id": "AKIASCRIPTED", "aws_secret_access_key": "scripted", "aws_region_name": "us-east-1"}
PAY = ToolDeclaration(
    name="pay",
    description="Pay.",
    reference="t:pay",
    parameters={"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
)
PIXEL = base64.b64encode(b"\x89PNG\r\n").decode()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of AWS is set, and no file of its configuration is read."""
    for name in (*bedrock.SETTINGS, *bedrock._REGIONS, *bedrock._FETCHED, bedrock._TOKEN, "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name.upper(), raising=False)


def calls(*amounts: int) -> Json:
    return [
        {"id": f"c{at}", "type": "function", "function": {"name": "pay", "arguments": json.dumps({"amount": amount})}}
        for at, amount in enumerate(amounts)
    ]


def result(number: int, content: Json = "paid") -> Json:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": content}


HI: Json = {"role": "user", "content": "Hi"}
THINKING: Json = [
    {"type": "thinking", "thinking": "One.", "signature": "sig-1"},
    {"type": "thinking", "thinking": "Two.", "signature": "sig-2"},
]

CONVERSATIONS: Mapping[str, Json] = {
    "a system prompt": [{"role": "system", "content": "Be brief."}, HI],
    "two calls": [
        HI,
        {"role": "assistant", "content": "I pay.", "tool_calls": calls(1, 2)},
        result(0),
        result(1, '{"paid": 2}'),
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": "Yes?"},
        HI,
    ],
    "thinking": [
        HI,
        {"role": "assistant", "content": None, "tool_calls": calls(1), "thinking_blocks": THINKING[:1]},
        result(0),
    ],
    "a picture in a result": [
        HI,
        {"role": "assistant", "content": None, "tool_calls": calls(1)},
        result(
            0,
            [
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        ),
    ],
    "a picture": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ],
        }
    ],
}

FORM: Json = {
    "type": "json_schema",
    "json_schema": {"name": "answer", "schema": {"type": "object", "additionalProperties": False}, "strict": True},
}

SETTINGS: Mapping[str, Mapping[str, Json]] = {
    "none": {},
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["x"], "max_tokens": 99},
    "any tool": {"tool_choice": "required"},
    "one tool": {"tool_choice": {"type": "function", "function": {"name": "pay"}}},
    "one call at a time": {"parallel_tool_calls": False},
    "a user": {"user": "u-1"},
    "an effort": {"reasoning_effort": "high", "max_tokens": 9_000},
    "no effort": {"reasoning_effort": "none", "max_tokens": 9_000},
    "a number of tokens": {"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 9_000},
    "a schema": {"response_format": FORM},
}


async def sent(conversation: Json, settings: Mapping[str, Json]) -> tuple[str, Json]:
    """The first line of the head, and the body that arrives."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await read_request(reader))
        message = {"role": "assistant", "content": [{"text": "hi"}]}
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        answer = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
        writer.write(reply(json.dumps(answer).encode(), "connection: close"))

    async with serving(serve) as address:
        params = {**settings, **KEYS, "aws_bedrock_runtime_endpoint": address}
        agent = AgentDefinition(
            name="t", model=f"bedrock/converse/{MODEL}", tools=(PAY,), tool_mode="api", generate_params=params
        )
        assert isinstance(await litellm_call.complete(agent, json.loads(json.dumps(conversation))), Answer)
    head, _, body = bodies[0].partition(b"\r\n\r\n")
    return head.decode().split("\r\n")[0], json.loads(body)


def with_bytes(value: Json) -> Json:
    """A body as botocore takes it, with bytes in place of base64."""
    if isinstance(value, list):
        return [with_bytes(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {name: base64.b64decode(part) if name == "bytes" else with_bytes(part) for name, part in value.items()}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_bedrock_is_sent_what_litellm_would_send(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the service's own model takes."""
    operation = botocore.session.get_session().get_service_model("bedrock-runtime").operation_model("Converse")
    for settings in SETTINGS.values():
        ours = await sent(CONVERSATIONS[name], settings)
        report = ParamValidator().validate({"modelId": MODEL, **with_bytes(ours[1])}, operation.input_shape)
        assert not report.has_errors(), report.generate_report()
        with monkeypatch.context() as environment:
            environment.setattr(providers, "PROVIDERS", {})
            path, theirs = await sent(CONVERSATIONS[name], settings)
        for message in theirs["messages"]:
            message["content"] = list(with_marks_behind(message["content"]))
        theirs.pop("additionalModelResponseFieldPaths", None)  # asks for a count of thinking that nobody reads
        if not theirs["inferenceConfig"]:
            del theirs["inferenceConfig"]
        assert ours == (path, theirs), settings


def with_marks_behind(blocks: list[Json]) -> Iterator[Json]:
    """The blocks of a message with a mark behind a result; litellm puts it into one that has a picture."""
    for block in blocks:
        inner = block.get("toolResult", {}).get("content", [])
        plain = [part for part in inner if "cachePoint" not in part]
        if len(plain) == len(inner):
            yield block
        else:
            yield {"toolResult": {**block["toolResult"], "content": plain}}
            yield {"cachePoint": {"type": "default"}}


def prepared(settings: Mapping[str, Json], *, streams: bool = False) -> provider_door.Request | None:
    arguments = {"model": f"bedrock/converse/{MODEL}", "messages": [HI], **settings}
    return provider_door.prepare(arguments, streams=streams)


@pytest.mark.parametrize("session", [None, "token"])
def test_a_request_has_the_signature_of_botocores_client(session: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-14: AWS refuses any other."""
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: datetime(2026, 11, 28, tzinfo=UTC))
    settings = {**KEYS, **({"aws_session_token": session} if session else {})}
    request = prepared(settings)
    assert request is not None
    client = botocore.session.get_session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        aws_access_key_id=KEYS["aws_access_key_id"],
        aws_secret_access_key=KEYS["aws_secret_access_key"],
        aws_session_token=session,
    )
    signed: list[Json] = []

    def keep(request: Json, **_: Json) -> Json:
        signed.append(request)
        return botocore.awsrequest.AWSResponse("", 200, {}, None)

    client.meta.events.register("before-send.bedrock-runtime.Converse", keep)
    with pytest.raises(Exception, match=r".*"):  # the client cannot read an answer without a body
        client.converse(modelId=MODEL, messages=[{"role": "user", "content": [{"text": "Hi"}]}])
    (theirs,) = signed
    assert request.url == theirs.url
    assert json.loads(request.body) == json.loads(theirs.body)
    headers = bedrock.sign(request.url, theirs.body, settings)
    assert headers is not None
    assert headers["Authorization"] == theirs.headers["Authorization"].decode()
    assert headers.get("X-Amz-Security-Token") == session


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (f"converse/{MODEL}", MODEL),
        (MODEL, MODEL),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("converse/amazon.nova-pro-v1:0", "amazon.nova-pro-v1:0"),
        ("converse/arn:aws:bedrock:us-east-1:1:inference-profile/x", ""),
        ("us-east-1/anthropic.claude-v2", ""),
        ("invoke/anthropic.claude-v2", ""),
        ("somebodys-own", ""),
    ],
)
def test_a_model_is_known_to_speak_converse(name: str, model: str) -> None:
    assert bedrock.model_of(name) == model


@pytest.mark.parametrize(
    ("variables", "settings", "is_direct"),
    [
        ({}, KEYS, True),
        ({name.upper(): value for name, value in KEYS.items()}, {}, True),
        ({"AWS_BEARER_TOKEN_BEDROCK": "t"}, {}, True),
        ({}, {}, False),
        ({"AWS_PROFILE": "own"}, {}, False),
        ({"AWS_PROFILE": "own"}, KEYS, True),
        ({"AWS_ROLE_ARN": "arn:x", "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s"}, {}, False),
        ({}, {**KEYS, "aws_role_name": "own"}, False),
        ({}, {**KEYS, "aws_profile_name": "own"}, False),
    ],
)
def test_a_key_that_has_to_be_fetched_is_left_to_litellm(
    variables: dict[str, str], settings: dict[str, str], is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetching it would hold every other job of the worker up."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (prepared(settings) is not None) is is_direct


def test_the_address_is_that_of_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: KEYS[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    request = prepared(keys, streams=True)
    assert request is not None
    place = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert request.url == f"{place}/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
