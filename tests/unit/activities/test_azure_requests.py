"""Requests of models on Azure, judged by what litellm sends."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.activities.models import azure, model_call, provider_requests, providers
from perdure.activities.models.keys import MissingKeyError, require_key
from perdure.activities.models.model_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from tests.unit.activities.raw_provider import read_request, reply, serving
from tests.wires.corpus import completion

Json = Any

RESOURCE = "https://own.openai.azure.com"
HI: Json = {"role": "user", "content": "Hi"}
LOOK = ToolDeclaration(
    name="look", description="Look.", reference="t:look", parameters={"type": "object", "properties": {}}
)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of Azure is set."""
    for name in (*providers.AZURE.keys, *providers.AZURE.addresses, *providers.AZURE.tokens, "AZURE_API_VERSION"):
        monkeypatch.delenv(name, raising=False)


async def sent(model: str, settings: Mapping[str, Json]) -> tuple[list[str], Json]:
    """The head's first line and its key, and the body that arrives."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        writer.write(reply(json.dumps(completion({"content": "hi"})).encode(), "connection: close"))

    async with serving(serve) as address:
        params = {**settings, "api_base": address + settings.get("api_base", "")}
        agent = AgentDefinition(name="t", model=model, tools=(LOOK,), tool_mode="api", generate_params=params)
        assert isinstance(await model_call.complete(agent, [HI]), Answer)
    head, _, body = requests[0].partition(b"\r\n\r\n")
    lines = [line.strip() for line in head.decode().lower().splitlines()]
    return [line for line in lines if line.startswith(("post", "api-key", "authorization"))], json.loads(body)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("azure/mine", {"api_key": "sk-scripted-0123456789"}),
        ("azure/mine", {"api_key": "sk-scripted-0123456789", "api_version": "2024-10-21", "temperature": 0}),
        ("azure/mine", {"azure_ad_token": "a-token-0123456789"}),
        ("azure/mine", {"api_key": "sk-scripted-0123456789", "tool_choice": "required", "max_tokens": 9}),
    ],
)
async def test_azure_is_sent_what_litellm_would_send(
    model: str, settings: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await sent(model, settings)
    monkeypatch.setattr(providers, "PROVIDERS", {})
    theirs = await sent(model, settings)
    assert (sorted(ours[0]), ours[1]) == (sorted(theirs[0]), theirs[1])


@pytest.mark.parametrize(
    ("address", "settings", "path", "url"),
    [
        ("", {}, "chat/completions", f"/openai/deployments/mine/chat/completions?api-version={azure.VERSION}"),
        ("/", {"api_version": "v1"}, "chat/completions", "/openai/v1/chat/completions"),
        (
            "/openai",
            {"api_version": "x"},
            "chat/completions",
            "/openai/deployments/mine/chat/completions?api-version=x",
        ),
        ("/openai/v1/", {"api_version": "x"}, "responses", "/openai/v1/responses"),
        ("/openai/v1/chat/completions", {}, "chat/completions", "/openai/v1/chat/completions"),
        ("", {}, "responses", "/openai/v1/responses"),
        (
            "/openai/deployments/other/chat/completions?api-version=2024-10-21",
            {"api_version": "x"},
            "chat/completions",
            "/openai/deployments/other/chat/completions?api-version=2024-10-21",
        ),
    ],
)
def test_an_address_may_be_the_resources_or_any_part_of_the_url(
    address: str, settings: dict[str, str], path: str, url: str
) -> None:
    assert azure.url_of(RESOURCE + address, "mine", settings, path) == RESOURCE + url


@pytest.mark.parametrize(
    ("name", "path", "model"),
    [
        ("mine", "chat/completions", "mine"),
        ("o_series/mine", "chat/completions", "mine"),
        ("gpt-5.4", "responses", "gpt-5.4"),
        ("responses/mine", "responses", "mine"),
    ],
)
def test_a_deployment_is_asked_where_its_model_takes_tools(name: str, path: str, model: str) -> None:
    asked = {"model": f"azure/{name}", "messages": [HI], "tools": [{"type": "function", "function": {"name": "f"}}]}
    request = provider_requests.prepare({**asked, "api_base": RESOURCE, "api_key": "k"}, streams=True)
    assert request is not None
    assert request.url.partition("?")[0].endswith(path)
    assert json.loads(json.dumps(request.body))["model"] == model


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, "AZURE_API_BASE and AZURE_API_KEY"),
        ({"AZURE_API_BASE": RESOURCE}, "AZURE_API_KEY"),
        ({"AZURE_API_KEY": "k"}, "AZURE_API_BASE"),
        ({"AZURE_API_BASE": RESOURCE, "AZURE_OPENAI_API_KEY": "k"}, ""),
        ({"AZURE_API_BASE": RESOURCE, "IDENTITY_ENDPOINT": "http://x"}, ""),
    ],
)
def test_variables_that_are_missing_are_named(
    variables: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    agent = AgentDefinition(name="a", model="azure/mine")
    if not missing:
        require_key(agent)
        return
    with pytest.raises(MissingKeyError) as raised:
        require_key(agent)
    assert str(raised.value) == missing


def test_a_token_that_has_to_be_fetched_is_left_to_litellm() -> None:
    """Of a managed identity, for which it has Microsoft's library."""
    assert (
        provider_requests.prepare({"model": "azure/mine", "messages": [HI], "api_base": RESOURCE}, streams=False)
        is None
    )
