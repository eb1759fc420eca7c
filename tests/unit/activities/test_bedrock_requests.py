"""Requests of Bedrock's Converse, judged by botocore: its model of the service, and the signature of its client."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session  # type: ignore[import-untyped]
import pytest
from botocore.validate import ParamValidator  # type: ignore[import-untyped]

from perdure.activities.models import bedrock, model_call, provider_requests, providers
from perdure.activities.models.failures import NoReplyError, ProviderError
from perdure.activities.models.keys import MissingKeyError
from perdure.activities.models.model_call import Answer
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
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bedrock._source.cache_clear()


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
        assert isinstance(await model_call.complete(agent, json.loads(json.dumps(conversation))), Answer)
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


def prepared(settings: Mapping[str, Json], *, streams: bool = False) -> provider_requests.Request | None:
    arguments = {"model": f"bedrock/converse/{MODEL}", "messages": [HI], **settings}
    return provider_requests.prepare(arguments, streams=streams)


@pytest.mark.parametrize("session", [None, "token"])
async def test_a_request_has_the_signature_of_botocores_client(
    session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert json.loads(json.dumps(request.body)) == json.loads(theirs.body)
    headers = await bedrock.sign(request.url, theirs.body, settings)
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


FILE = "[own]\naws_access_key_id = AKIAOWN\naws_secret_access_key = s\n"
IN_VARIABLES = {"AWS_ACCESS_KEY_ID": "AKIAOTHER", "AWS_SECRET_ACCESS_KEY": "s"}
ROLE = "arn:aws:iam::123456789012:role/own"
TAKEN = {"AccessKeyId": "AKIAOWN", "SecretAccessKey": "s", "SessionToken": "t", "Token": "t"}
UNTIL = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
STS = (
    "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>AKIAOWN</AccessKeyId>"
    "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    f"<Expiration>{UNTIL}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
REFUSED = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not yours</Message></Error></ErrorResponse>"


async def signed(
    variables: Mapping[str, str], settings: Json, said: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, int]:
    """The key that a call is signed with, the second time, and the requests that it took to have it."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await read_request(reader))
        body = said.encode()
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)

    async with serving(serve) as address:
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("ADDRESS", address.removesuffix("/v1")))
        await bedrock.sign("https://bedrock.example/model/x/converse", b"{}", settings)
        headers = await bedrock.sign("https://bedrock.example/model/x/converse", b"{}", settings)
    return headers["Authorization"].partition("Credential=")[2].partition("/")[0], len(asked)


@pytest.mark.parametrize(
    ("variables", "settings", "said", "requests"),
    [
        (IN_VARIABLES, KEYS, "", 0),
        ({"AWS_ACCESS_KEY_ID": "AKIAOWN", "AWS_SECRET_ACCESS_KEY": "s"}, {}, "", 0),
        ({"AWS_PROFILE": "own"}, {}, "", 0),
        (IN_VARIABLES, {"aws_profile_name": "own"}, "", 0),
        (
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "ADDRESS/keys"},
            {},
            json.dumps({**TAKEN, "Expiration": UNTIL}),
            1,
        ),
        ({**IN_VARIABLES, "AWS_ENDPOINT_URL_STS": "ADDRESS"}, {"aws_role_name": ROLE}, STS, 1),
        (
            {"AWS_ENDPOINT_URL_STS": "ADDRESS"},
            {"aws_profile_name": "own", "aws_role_name": ROLE, "aws_external_id": "an id"},
            STS,
            1,
        ),
        ({"AWS_ENDPOINT_URL_STS": "ADDRESS"}, {**KEYS, "aws_role_name": ROLE}, STS, 1),
    ],
    ids=[
        "settings",
        "variables",
        "profile",
        "named profile",
        "container",
        "role",
        "role of a profile",
        "role of a key",
    ],
)
async def test_keys_are_those_that_the_settings_or_the_environment_name(
    variables: dict[str, str],
    settings: dict[str, str],
    said: str,
    requests: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """S-14: keys that expire are fetched once, on a thread."""
    (tmp_path / "credentials").write_text(FILE)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    used, asked = await signed(variables, settings, said, "200 OK", monkeypatch)
    assert (used, asked) == (KEYS["aws_access_key_id"] if settings is KEYS else "AKIAOWN", requests)


@pytest.mark.parametrize(
    ("variables", "settings", "kind", "words"),
    [
        ({}, {}, MissingKeyError, "Unable to locate credentials"),
        ({"AWS_PROFILE": "gone"}, {}, MissingKeyError, "gone"),
        ({}, {"aws_profile_name": "gone"}, MissingKeyError, "gone"),
        (
            {**IN_VARIABLES, "AWS_ENDPOINT_URL_STS": "ADDRESS"},
            {"aws_role_name": ROLE},
            ProviderError,
            "not yours",
        ),
        (
            {**IN_VARIABLES, "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"},
            {"aws_role_name": ROLE},
            NoReplyError,
            "no credentials",
        ),
    ],
    ids=["none", "profile", "named profile", "a role that is refused", "nobody there"],
)
async def test_keys_that_cannot_be_had_are_told(
    variables: dict[str, str],
    settings: dict[str, str],
    kind: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-14: a missing key and a refused role are final, an outage is not."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(kind, match=words):
        await signed(variables, settings, REFUSED, "403 Forbidden", monkeypatch)


def test_the_address_is_that_of_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: KEYS[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    request = prepared(keys, streams=True)
    assert request is not None
    place = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    assert request.url == f"{place}/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
