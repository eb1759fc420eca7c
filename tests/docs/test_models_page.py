"""The page on models has each provider that perdure calls itself, with what the table in the code says of it."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.activities.models import provider_requests, providers
from perdure.activities.models.providers import PROVIDERS, Provider
from tests.docs.sections import DOCS

PAGE = (DOCS / "models.md").read_text(encoding="utf-8")

SCHEMAS: Mapping[str, str] = {"yes": "yes", "strict": "fitted", "native": "fitted", "no": "in the prompt"}
"""Words of the page for who takes the schema of an answer."""

MODELS: Mapping[str, str] = {"bedrock": "converse/amazon.nova-pro-v1:0", "vertex_ai": "gemini-3-pro"}
"""Models of providers that do not take any name."""


def rows() -> dict[str, list[str]]:
    """The cells of each row, by its prefix."""
    found = re.findall(r"^\| (`[^|]+) \|(.*)\|$", PAGE, re.MULTILINE)
    cells = {names: [cell.strip() for cell in rest.split("|")] for names, rest in found}
    return {prefix: rest for names, rest in cells.items() for prefix in re.findall(r"`(\w+)`", names)}


def test_the_page_has_each_provider_once() -> None:
    assert sorted(rows()) == sorted(PROVIDERS)


@pytest.mark.parametrize("prefix", PROVIDERS)
def test_a_row_says_what_the_code_does(prefix: str) -> None:
    provider = PROVIDERS[prefix]
    speaks, key, address, schema = rows()[prefix]
    assert wire_of(prefix) in speaks
    assert variables_in(key) >= set(provider.keys[:1])
    assert set(provider.addresses[:1]) <= variables_in(address)
    assert (host_of(provider) in address) or not provider.address
    assert SCHEMAS[provider.schemas] in schema


def variables_in(cell: str) -> set[str]:
    return set(re.findall(r"`([A-Z][A-Z_]+)`", cell))


def host_of(provider: Provider) -> str:
    return provider.address.partition("//")[2].partition("/")[0]


def wire_of(prefix: str) -> str:
    """The wire of a plain call."""
    name = MODELS.get(prefix, "some-model")
    asked: dict[str, Any] = {"model": f"{prefix}/{name}", "messages": [], "api_key": "k"}
    if PROVIDERS[prefix] is not providers.BEDROCK:
        asked["api_base"] = "https://x.example"
    else:
        del asked["api_key"]
    request = provider_requests.prepare(asked, streams=True)
    assert request is not None
    return request.wire.name
