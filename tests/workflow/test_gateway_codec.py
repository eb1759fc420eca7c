"""The codec routes of the gateway: who may have payloads decrypted, from which pages, and what is noted of it."""

import base64
import json
import logging
from collections.abc import AsyncIterator

import httpx
import pytest
import temporalio.client
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads

from perdure import Agent
from perdure.client.connect import make_converter
from perdure.security.keyring import Keyring
from perdure.settings import SettingsError, load_settings
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House
from tests.temporal_cli import temporal, workflow

KEY, OTHER = bytes(range(32)), bytes(range(100, 132))
KEYS = f"k1:{base64.b64encode(KEY).decode()}"
UI = "https://temporal.example.com"
LINES, TOKENS = token_lines(
    reader=("", "decrypt"), operator=("", "admin,read,run,approve"), other=("acme", "decrypt,read")
)


@pytest.fixture
async def keyed(house: House) -> House:
    """The house with keys."""
    house.temporal = await temporalio.client.Client.connect(
        house.server.address, data_converter=make_converter(Keyring.parse(KEYS))
    )
    return house


@pytest.fixture
async def door(keyed: House) -> AsyncIterator[Door]:
    async with gateway(keyed, gateway_tokens=LINES, codec_origins=(UI,)) as door:
        yield door


def as_json(*payloads: Payload) -> dict[str, object]:
    return MessageToDict(Payloads(payloads=payloads))


def plain(text: str) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=f'"{text}"'.encode())


async def sealed(text: str, keyring: Keyring | None = None) -> Payload:
    codec = make_converter(keyring or Keyring.parse(KEYS)).payload_codec
    assert codec is not None
    (payload,) = await codec.encode([plain(text)])
    return payload


def bearer(name: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}", **headers}


async def decode(http: httpx.AsyncClient, *payloads: Payload, **headers: str) -> httpx.Response:
    return await http.post("/codec/decode", json=as_json(*payloads), headers=headers)


async def test_a_token_with_the_scope_reads_what_is_encrypted_and_the_audit_log_says_so(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "perdure.audit"):
        answer = await decode(door.http, await sealed("the prompt"), plain("beside"), **bearer("reader"))
    assert answer.status_code == 200
    read = ParseDict(answer.json(), Payloads())
    assert list(read.payloads) == [plain("the prompt"), plain("beside")]
    (line,) = [record for record in caplog.records if record.name == "perdure.audit"]
    noted = vars(line)
    assert (noted["who"], noted["action"], noted["outcome"]) == ("reader", "decode_payloads", "done")
    assert (noted["payloads"], noted["keys"]) == (2, ["k1"])
    assert "the prompt" not in str(noted)


async def test_what_is_encoded_is_decoded_again(door: Door) -> None:
    answer = await door.http.post("/codec/encode", json=as_json(plain("words")), headers=bearer("reader"))
    (made,) = ParseDict(answer.json(), Payloads()).payloads
    assert (made.metadata["encoding"], made.metadata["encryption-key-id"]) == (b"binary/encrypted", b"k1")
    assert ParseDict((await decode(door.http, made, **bearer("reader"))).json(), Payloads()).payloads[0] == plain(
        "words"
    )


async def test_no_other_scope_decrypts_and_the_refusal_is_noted(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """T-06: Not even admin's: a payload does not say whose it is, and an admin is one tenant's."""
    payload = await sealed("the prompt")
    with caplog.at_level(logging.INFO, "perdure.audit"):
        refused = await decode(door.http, payload, **bearer("operator"))
        unknown = await decode(door.http, payload)
        wrong = await decode(door.http, payload, Authorization="Bearer pdr_nobody")
    assert (refused.status_code, unknown.status_code, wrong.status_code) == (403, 401, 401)
    assert refused.json()["detail"] == "the token 'operator' lacks the scope 'decrypt'; use one that has it"
    assert all("the prompt" not in answer.text for answer in (refused, unknown, wrong))
    noted = [vars(record) for record in caplog.records if record.name == "perdure.audit"]
    assert [(line["who"], line["outcome"]) for line in noted] == [("operator", "request.forbidden")]
    encode = await door.http.post("/codec/encode", json=as_json(plain("x")), headers=bearer("operator"))
    assert encode.status_code == 403


async def test_only_the_origin_of_the_settings_may_ask_from_a_page(door: Door) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-namespace"}
    allowed = await door.http.options("/codec/decode", headers={"Origin": UI, **asked})
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, UI)
    assert allowed.headers["access-control-allow-headers"] == "content-type,x-namespace,authorization"
    assert (allowed.headers["vary"], allowed.headers["access-control-allow-credentials"]) == ("Origin", "true")
    for origin in ("https://evil.example.com", f"{UI}.evil.example.com", UI.replace("https", "http"), "null"):
        refused = await door.http.options("/codec/decode", headers={"Origin": origin, **asked})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
        cookie = {"Cookie": f"perdure_token={TOKENS['reader']}", "Origin": origin}
        assert (await decode(door.http, await sealed("x"), **cookie)).status_code == 403
    answer = await decode(door.http, await sealed("x"), **bearer("reader", Origin=UI))
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, UI)
    cookie = {"Cookie": f"perdure_token={TOKENS['reader']}", "Origin": UI}
    assert (await decode(door.http, await sealed("x"), **cookie)).status_code == 200
    refused = await decode(door.http, await sealed("x"), **bearer("operator", Origin=UI))
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (403, UI)  # so that the UI says why
    elsewhere = await door.http.get("/v1/whoami", headers=bearer("operator", Origin=UI))
    assert "access-control-allow-origin" not in elsewhere.headers


async def test_what_cannot_be_decrypted_says_which_key_is_missing_and_is_counted(door: Door) -> None:
    foreign = await sealed("x", Keyring({"k9": OTHER}))
    answer = await decode(door.http, foreign, **bearer("reader"))
    assert (answer.status_code, answer.json()["code"]) == (503, "runtime.key_missing")
    assert "encrypted with the key 'k9', and this process has k1" in answer.json()["detail"]
    metrics = (await door.http.get("/metrics")).text
    assert 'perdure_codec_failures_total{key_id="k9"} 1.0' in metrics
    damaged = await sealed("x", Keyring({"k1": OTHER}))
    assert "does not open content" in (await decode(door.http, damaged, **bearer("reader"))).json()["detail"]


async def test_another_namespace_a_broken_body_and_a_gateway_without_keys_are_refused_with_the_fix(
    door: Door, house: House
) -> None:
    answer = await decode(door.http, plain("x"), **bearer("reader", **{"X-Namespace": "other"}))
    assert (answer.status_code, "not 'other'; ask the gateway of that one" in answer.json()["detail"]) == (422, True)
    assert (await decode(door.http, plain("x"), **bearer("reader", **{"X-Namespace": "default"}))).status_code == 200
    bodies: tuple[object, ...] = (
        {},
        {"payloads": [{"data": "?"}]},
        {"payloads": [{"metadata": {"encoding": "?"}}]},
        [],
    )
    for body in bodies:
        wrong = await door.http.post("/codec/decode", json=body, headers=bearer("reader"))
        assert wrong.status_code == 422
    house.temporal = await temporalio.client.Client.connect(house.server.address, data_converter=make_converter(None))
    async with gateway(house, gateway_tokens=LINES) as bare:
        answer = await decode(bare.http, plain("x"), **bearer("reader"))
        assert (answer.status_code, answer.json()["code"]) == (503, "runtime.key_missing")
        assert "set PERDURE_ENCRYPTION_KEYS where it runs" in answer.json()["detail"]


@pytest.mark.parametrize(
    "origin", ["*", "https://*.example.com", "temporal.example.com", "https://host/path", "https://"]
)
def test_an_origin_that_is_not_exact_is_refused_at_start(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    monkeypatch.setenv("PERDURE_CODEC_ORIGINS", f"{UI},{origin}")
    with pytest.raises(SettingsError, match="is no origin; write https://host or http://host:port"):
        load_settings()


@pytest.mark.deep
async def test_temporals_own_command_starts_and_reads_jobs_through_the_codec(
    door: Door, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """With the codec nothing of it is plain; and without, the answer is not readable."""
    codec = ("--codec-endpoint", f"{door.url}/codec", "--codec-auth", f"Bearer {TOKENS['reader']}")
    asked = json.dumps({"agent": "tester", "prompt": "MARK-prompt"})
    begin = ("start", "--type", "AgentTurn", "--task-queue", house.settings.task_queue, "--workflow-id", house.session)
    async with ScriptedProvider(Script(replies=(say("MARK-output"),))) as provider:
        house.use(provider)
        async with house.worker(Agent(name="tester", model="openai/scripted")):
            await workflow(*begin, "--input", asked, *codec)
            shown = await workflow("result", "--workflow-id", house.session, *codec)
    assert shown["result"]["output"] == "MARK-output"
    events = [event async for event in house.temporal.get_workflow_handle(house.session).fetch_history_events()]
    assert not any(b"MARK" in event.SerializeToString() for event in events)
    _, bare = await temporal("workflow", "result", "--workflow-id", house.session)
    assert "MARK" not in bare
    other = ("--codec-endpoint", f"{door.url}/codec", "--codec-auth", f"Bearer {TOKENS['operator']}")
    with caplog.at_level(logging.INFO, "perdure.audit"):  # the command asks again for a minute, unless it is told
        _, refused = await temporal(
            "workflow", "result", "--workflow-id", house.session, *other, "--command-timeout", "5s"
        )
    assert "MARK" not in refused
    noted = [vars(record) for record in caplog.records if record.name == "perdure.audit"]
    assert {(line["who"], line["action"], line["outcome"]) for line in noted} == {
        ("operator", "decode_payloads", "request.forbidden")
    }
