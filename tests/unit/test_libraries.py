"""Libraries are compared with what perdure was written for before a worker starts: a mismatch is one sentence."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.libraries import (
    NAMES,
    LibraryMismatchError,
    Name,
    check_libraries,
    describe_unknown_provider,
    find_providers,
)

AGENTS = Path(__file__).parents[2] / "examples" / "demo" / "agent.py"

RENAMED = {
    "aiohttp.client_proto.ResponseHandler.is_connected": (
        "from aiohttp.client_proto import ResponseHandler; del ResponseHandler.is_connected"
    ),
    "temporalio.bridge.proto.ActivityHeartbeat": "from temporalio.bridge import proto; del proto.ActivityHeartbeat",
}

WITH_A_RENAMED_NAME = """
import sys
{renamed}
from perdure.worker.__main__ import main
sys.argv = ["worker", "--agents", sys.argv[1]]
main()
"""

WITH_A_RENAMED_PROTOCOL = """
from uvicorn.protocols.http import h11_impl
del h11_impl.H11Protocol.handle_events
from perdure.cli import main
main()
"""


def test_the_libraries_of_this_installation_are_as_expected() -> None:
    check_libraries()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: f"{name.module}.{name.path}")
def test_a_renamed_name_is_one_sentence_with_the_releases_that_fit(name: Name) -> None:
    renamed = replace(name, path=f"{name.path}_of_old")
    with pytest.raises(LibraryMismatchError) as raised:
        check_libraries((renamed,))
    text = str(raised.value)
    assert text.count("\n") == 0
    assert f"has no {renamed.module}.{renamed.path}" in text
    assert renamed.library in text.partition("; install ")[2]


def test_a_parameter_that_is_gone_is_named() -> None:
    changed = Name("httpx", "httpx", "AsyncClient.send", ("request", "redirects"))
    with pytest.raises(LibraryMismatchError, match=r"takes no redirects in httpx.AsyncClient.send"):
        check_libraries((changed,))


class Moved:
    """A class of a library that has changed."""

    def __init__(self) -> None:
        self.kept = 1

    def wants_more(self, request: object, tenant: object) -> None:
        """It had no ``tenant``."""

    def waits(self, request: object) -> None:
        """It was a coroutine."""

    async def still_waits(self, request: object, *, tenant: object = None) -> None:
        """What is new has a default."""


@pytest.mark.parametrize(
    ("path", "use", "problem"),
    [
        ("wants_more", {"parameters": ("request",)}, "wants tenant in {}"),
        ("waits", {"parameters": ("request",), "awaited": True}, "has a {} that cannot be awaited"),
        ("still_waits", {"parameters": ("request",), "awaited": True}, ""),
        ("", {"sets": ("kept", "gone")}, "has no {}.gone"),
        ("", {"sets": ("kept",)}, ""),
    ],
)
def test_a_change_that_a_call_would_meet_is_named(path: str, use: dict[str, Any], problem: str) -> None:
    """A further argument without a default, a coroutine that is none any more, an attribute of another name."""
    name = Name("pytest", __name__, f"Moved.{path}".rstrip("."), **use)
    assert name.problem() == problem.format(f"{__name__}.Moved.{path}".rstrip("."))


@pytest.mark.deep
@pytest.mark.parametrize("name", RENAMED)
def test_a_worker_that_cannot_work_ends_with_2(name: str) -> None:
    """Planted: a connection that does not say whether it is open, and a name that a module could import."""
    ran = subprocess.run(
        [sys.executable, "-c", WITH_A_RENAMED_NAME.format(renamed=RENAMED[name]), str(AGENTS)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.count(f"has no {name}") == 1
    assert "Traceback" not in ran.stderr


@pytest.mark.deep
def test_a_gateway_that_could_not_bound_its_connections_ends_with_2() -> None:
    """Planted: uvicorn without what the gateway's connections go on from."""
    command = [sys.executable, "-c", WITH_A_RENAMED_PROTOCOL, "gateway", "--address", "127.0.0.1:0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "has no uvicorn.protocols.http.h11_impl.H11Protocol.handle_events" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_providers_are_those_of_the_installed_litellm() -> None:
    from litellm.types.utils import LlmProviders  # noqa: PLC0415 - takes seconds

    assert find_providers() == {provider.value for provider in LlmProviders}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("opnai/gpt-5-mini", "litellm has no provider 'opnai'; did you mean 'openai'?"),
        ("antropic/x", "litellm has no provider 'antropic'; did you mean 'anthropic'?"),
        ("qqqqqq/x", "litellm has no provider 'qqqqqq'"),
        ("openai/gpt-5-mini", ""),
        ("azure_ai/x", ""),
    ],
)
def test_a_provider_that_does_not_exist_is_told_with_the_nearest_name(model: str, said: str) -> None:
    assert describe_unknown_provider(model) == said


def test_a_provider_of_ones_own_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import litellm  # noqa: PLC0415 - takes seconds

    monkeypatch.setattr(litellm, "custom_provider_map", [{"provider": "opnai", "custom_handler": None}])
    assert describe_unknown_provider("opnai/x") == ""
