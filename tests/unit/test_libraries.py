"""Libraries are compared with what perdure was written for before a worker starts: a mismatch is one sentence."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from perdure.activities.heartbeat import LostAttempts
from perdure.libraries import (
    NAMES,
    LibraryMismatchError,
    Name,
    check_libraries,
    check_sdk,
    describe_unknown_provider,
    find_providers,
    find_untested,
    names_used_here,
    release_of,
)
from perdure.worker.__main__ import warn_of_untested

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

    declared: int

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
        ("", {"sets": ("kept", "declared")}, ""),
    ],
)
def test_a_change_that_a_call_would_meet_is_named(path: str, use: dict[str, Any], problem: str) -> None:
    """A further argument without a default, a coroutine that is none any more, an attribute of another name."""
    name = Name("pytest", __name__, f"Moved.{path}".rstrip("."), **use)
    assert name.problem() == problem.format(f"{__name__}.Moved.{path}".rstrip("."))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Releases in place of the installed ones; the library of an empty one is not there."""
    changed: dict[str, str] = {}
    monkeypatch.setattr("perdure.libraries.release_of", lambda name: changed.get(name, release_of(name)))
    return changed


@pytest.mark.parametrize(
    ("release", "untested"), [("1.35.4", ()), ("1.36.0", ("temporalio",)), ("1.99.0rc1", ("temporalio",))]
)
def test_a_worker_logs_a_release_that_it_was_not_tested_with_and_goes_on(
    installed: dict[str, str], caplog: pytest.LogCaptureFixture, release: str, untested: tuple[str, ...]
) -> None:
    installed["temporalio"] = release
    assert find_untested() == untested
    warn_of_untested()
    sentence = f"temporalio {release} is outside of the tested releases, <1.36,>=1.35; install 'temporalio<1.36,>=1.35'"
    assert caplog.messages == [sentence for _ in untested]


def test_a_program_with_the_client_alone_is_held_to_no_name_and_no_minor_release_of_temporalio(
    installed: dict[str, str],
) -> None:
    installed.update({"temporalio": "1.99.0", "uvloop": "", "standardwebhooks": ""})
    assert find_untested() == ()
    assert {name.library for name in names_used_here()} == {"uvicorn"}


def test_tests_of_agents_say_which_name_of_temporalio_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run activities in their own process, where no worker's start has compared anything."""
    import perdure.testing  # noqa: PLC0415

    monkeypatch.delattr("temporalio.bridge.worker.Worker.record_activity_heartbeat")
    check_sdk.cache_clear()
    with pytest.raises(
        LibraryMismatchError, match=r"has no temporalio\.bridge\.worker\.Worker\.record_activity_heartbeat"
    ):
        _ = perdure.testing.run_in_memory


async def test_a_heartbeat_that_leads_to_no_worker_is_said_at_the_first_call() -> None:
    """Planted: an activity whose heartbeat is no method of the SDK's. Without beats, each call would count as lost."""
    inner = ActivityInboundInterceptor(cast("ActivityInboundInterceptor", None))
    looking = LostAttempts(lambda _: None).intercept_activity(inner)
    given = ExecuteActivityInput(fn=lambda: None, args=(), executor=None, headers={})
    with pytest.raises(
        LibraryMismatchError, match="has no worker behind the heartbeat of an activity, which perdure needs"
    ):
        await ActivityEnvironment().run(looking.execute_activity, given)


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
