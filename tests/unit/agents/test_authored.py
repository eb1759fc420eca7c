"""What authors write beside an agent: a value that cannot be used is refused in one line, where it is made."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from perdure import (
    Agent,
    AgentDefinitionError,
    ApprovalPolicy,
    ApprovalRule,
    Budgets,
    HttpServerConfig,
    OAuthConfig,
    RetryPolicy,
    StdioServerConfig,
)
from perdure.contracts.agents import Compaction

SECRET = "sk-0123456789"
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    [
        (StdioServerConfig, {"name": "x", "command": ""}, "command: String should have at least 1 character"),
        (StdioServerConfig, {}, "name: Field required; and 1 more"),
        (StdioServerConfig, {"name": "a b", "command": "x"}, "name: String should match pattern "),
        (
            StdioServerConfig,
            {"name": "x", "command": "y", "pick": "z"},
            "pick: write a list of tool names, for example",
        ),
        (
            OAuthConfig,
            {"client_id": "us", "client_secret": "of our own"},
            "client_secret: client_secret may not be written out; write '${NAME}' and set NAME in the worker's",
        ),
        (OAuthConfig, {"client_secret": "${A}"}, "client_secret belongs to a client; give its client_id too"),
        (OAuthConfig, {"client_id": ""}, "client_id: String should have at least 1 character"),
        (
            OAuthConfig,
            {"client_id": "us", "client_metadata_url": "https://us.example/client.json"},
            "give client_id or client_metadata_url, not both",
        ),
        *(
            (OAuthConfig, {"client_metadata_url": url}, f"client_metadata_url: client_metadata_url {url!r} cannot be a")
            for url in ("http://us.example/c", "https://us.example", "https://us.example/", "https://a:b@c.example/d")
        ),
        (HttpServerConfig, {"name": "x", "url": "h"}, "url 'h' is none; write for example 'https://host/mcp'"),
        (
            ApprovalRule,
            {"tool": "x", "decision": "maybe"},
            "decision: Input should be 'allow', 'deny' or 'ask' (got 'maybe')",
        ),
        (
            ApprovalRule,
            {"tool": "x", "decision": "ask", "argument": {}},
            "argument: there is no such field; the fields are tool, arguments, decision",
        ),
        (ApprovalPolicy, {"expires": timedelta(0)}, "expires: Input should be greater than 0 seconds"),
        (RetryPolicy, {"max_retries": -1}, "max_retries: Input should be greater than or equal to 0 (got -1)"),
        (RetryPolicy, {"base": 2 * SECOND, "cap": SECOND}, "cap (0:00:01) is shorter than base (0:00:02); raise cap"),
        (Budgets, {"cost_usd": 0}, "cost_usd: Input should be greater than 0 (got 0)"),
        (Compaction, {"threshold": 75}, "threshold: Input should be less than or equal to 1 (got 75)"),
    ],
)
def test_a_mistake_is_one_line_with_the_class_the_field_and_the_cause(
    make: Callable[..., object], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=getattr(make, "__name__", "")) as refusal:
        make(**fields)
    said = str(refusal.value)
    assert said.startswith(f"{getattr(make, '__name__', '')}: {message}")
    assert "\n" not in said


def test_a_secret_of_a_client_is_not_repeated() -> None:
    """S-52: whoever wrote it out reads how to refer to it, and no log repeats it."""
    with pytest.raises(ValueError, match="client_secret") as refusal:
        OAuthConfig(client_id="us", client_secret=SECRET)
    assert SECRET not in str(refusal.value)
    fields: Any = {"name": "x", "url": "https://host/mcp", "oauth": {"client_id": "us", "client_secret": SECRET}}
    with pytest.raises(ValueError, match="client_secret") as refusal:
        HttpServerConfig(**fields)
    assert SECRET not in str(refusal.value)


def test_what_may_be_a_credential_is_not_repeated() -> None:
    """S-52: it stands in the wrong field, and would go to a log."""
    mistakes: list[dict[str, Any]] = [{"headers": f"Bearer {SECRET}"}, {"headers": {"Authorization": [SECRET]}}]
    for wrong in mistakes:
        with pytest.raises(ValueError, match="headers") as refusal:
            HttpServerConfig(name="x", url="https://host/mcp", **wrong)
        assert SECRET not in str(refusal.value)


def test_reading_is_pydantics_own_and_names_the_whole_way_to_the_field() -> None:
    """An older history may hold anything: who reads it tells a mistake in the data from one in code."""
    with pytest.raises(ValidationError) as refusal:
        RetryPolicy.model_validate({"max_retries": -1})
    assert refusal.value.errors()[0]["loc"] == ("max_retries",)
    with pytest.raises(AgentDefinitionError, match=r"agent 'a': retry\.max_retries: Input should be"):
        Agent(name="a", model="b/c", retry={"max_retries": -1})
