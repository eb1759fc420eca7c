"""Requests of Vertex AI: addresses as Google documents them, and tokens by google-auth from a server of ours."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from perdure.activities.models import provider_requests, vertex
from perdure.activities.models.failures import NoReplyError
from perdure.activities.models.keys import MissingKeyError
from tests.unit.activities.raw_provider import read_request, reply, serving

Json = Any

HI: Json = {"role": "user", "content": "Hi"}
PLACE = {"vertex_project": "mine", "vertex_location": "europe-west4"}
GIVEN = json.dumps({"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"})


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of Google's is set, and no folder of its tools is there."""
    names = ("VERTEXAI_PROJECT", "VERTEXAI_LOCATION", "VERTEX_LOCATION", "VERTEXAI_CREDENTIALS")
    for name in (*names, "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    vertex._credentials.cache_clear()


def prepared(model: str, *, streams: bool = False, **settings: Json) -> provider_requests.Request | None:
    return provider_requests.prepare({"model": f"vertex_ai/{model}", "messages": [HI], **settings}, streams=streams)


@pytest.mark.parametrize(
    ("model", "settings", "streams", "url"),
    [
        (
            "gemini-3-pro",
            PLACE,
            False,
            "https://europe-west4-aiplatform.googleapis.com/v1beta1/projects/mine/locations/europe-west4"
            "/publishers/google/models/gemini-3-pro:generateContent",
        ),
        (
            "gemini-3-pro",
            {**PLACE, "vertex_location": "global"},
            True,
            "https://aiplatform.googleapis.com/v1beta1/projects/mine/locations/global"
            "/publishers/google/models/gemini-3-pro:streamGenerateContent?alt=sse",
        ),
        (
            "claude-sonnet-4-5@20250929",
            {**PLACE, "vertex_location": "eu"},
            True,
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/mine/locations/eu"
            "/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict",
        ),
        ("gemini-3-pro", {"api_base": "https://own.example/x/"}, False, "https://own.example/x:generateContent"),
    ],
)
def test_a_model_is_asked_at_its_place(model: str, settings: Json, streams: bool, url: str) -> None:
    request = prepared(model, streams=streams, **settings)
    assert request is not None
    assert request.url == url


def test_gemini_and_claude_speak_as_they_do_at_home() -> None:
    of_gemini, of_claude = prepared("gemini-3-pro", max_tokens=9), prepared("claude-x", max_tokens=9, streams=True)
    assert of_gemini is not None
    assert of_gemini.body == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "generationConfig": {"maxOutputTokens": 9},
    }
    assert of_claude is not None
    assert of_claude.body == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "max_tokens": 9,
        "stream": True,
        "anthropic_version": "vertex-2023-10-16",
    }
    assert prepared("meta/llama-4") is None  # litellm knows the others


KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@asynccontextmanager
async def credentials(said: str, status: int = 200) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The text of a service account's key, whose tokens come from here, and the requests for one."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await read_request(reader))
        writer.write(reply(said.encode(), "connection: close", status=status))

    async with serving(serve) as address:
        told = {
            "type": "service_account",
            "project_id": "of-the-key",
            "private_key_id": "1",
            "private_key": KEY.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
            "client_email": "perdure@example.iam.gserviceaccount.com",
            "token_uri": f"{address}/token",
        }
        yield json.dumps(told), asked


@pytest.mark.parametrize("way", ["text", "object", "file", "variable", "file of Google's variable"])
async def test_a_token_is_fetched_once_and_the_project_is_that_of_its_key(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S-14."""
    async with credentials(GIVEN) as (text, asked):
        (tmp_path / "key.json").write_text(text)
        settings: Mapping[str, Json] = {
            "text": {"vertex_credentials": text},
            "object": {"vertex_credentials": json.loads(text)},
            "file": {"vertex_credentials": str(tmp_path / "key.json")},
        }.get(way, {})
        if way == "variable":
            monkeypatch.setenv("VERTEXAI_CREDENTIALS", text)
        if way == "file of Google's variable":
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        request = prepared("gemini-3-pro", **settings)
        assert request is not None
        for _ in range(2):
            signed = await request.signed(b"{}")
            assert "/projects/of-the-key/" in signed.url
            assert signed.headers["authorization"] == "Bearer a-token"
        assert len(asked) == 1
        own = prepared("gemini-3-pro", **settings, vertex_project="mine")
        assert own is not None
        assert "/projects/mine/" in (await own.signed(b"{}")).url


@pytest.mark.parametrize(
    ("said", "status", "kind", "words"),
    [
        (json.dumps({"error": "invalid_grant", "error_description": "gone"}), 400, MissingKeyError, "gone"),
        ("busy", 503, NoReplyError, "no token"),
    ],
)
async def test_a_token_that_is_refused_is_final_and_an_outage_is_not(
    said: str, status: int, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-14."""
    monkeypatch.setattr("google.auth._exponential_backoff._DEFAULT_INITIAL_INTERVAL_SECONDS", 0.0)
    async with credentials(said, status) as (text, _):
        with pytest.raises(kind, match=words):
            await vertex.sign("https://x", {"vertex_credentials": text})


async def test_without_credentials_the_sentence_says_so() -> None:
    with pytest.raises(MissingKeyError, match="default credentials"):
        await vertex.sign("https://x", {})


@pytest.mark.parametrize("told", ["{", "[]", '{"type": "other"}', '{"type": "service_account"}', "/no/such/file"])
async def test_credentials_that_cannot_be_read_are_told(told: str) -> None:
    with pytest.raises(MissingKeyError, match="that can be read"):
        await vertex.sign("https://x", {"vertex_credentials": told})
