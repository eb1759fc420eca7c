"""The doctor: each thing that can be wrong is named with its fix, nothing hangs, and no secret is shown."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from perdure import Agent
from perdure.cli import doctor
from perdure.cli.doctor import look_at_agents
from perdure.cli.errors import ExitCode
from perdure.cli.findings import Finding
from perdure.cli.main import cli
from perdure.cli.server import EmbeddedServer
from perdure.cli.worker import USUAL_KEYS
from perdure.client.errors import ServerUnreachableError
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES
from perdure.libraries import releases_that_fit
from perdure.local_ports import find_free_port
from perdure.store import Store
from perdure.store.records import RegisteredAgent
from tests.contract.repository import ROOT
from tests.house import WAIT_SECONDS, House

WANTED = cast("dict[str, str]", SEARCH_ATTRIBUTE_TYPES)
SECRET = "a-secret-of-ours-0123456789"
CHECKS = [
    "libraries",
    "settings",
    "Temporal settings",
    "server",
    "namespace",
    "search attributes",
    "worker",
    "store",
    "agents",
]


@pytest.fixture(autouse=True)
def _somewhere_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = {name for names in USUAL_KEYS.values() for name in names}
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")) or name in keys:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{find_free_port()}")
    monkeypatch.setattr(doctor, "PATIENCE", timedelta(seconds=WAIT_SECONDS))  # busy is not ill


@pytest.fixture
def store_with_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    monkeypatch.setenv("PERDURE_STORE_URL", url)

    async def write() -> None:
        async with await Store.open(url, upgrade=True) as store:
            await store.register_agents([AgentDefinition(name="writer", model="openai/gpt-5-mini")])

    asyncio.run(write())


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who takes every connection and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def diagnosis() -> Result:
    return CliRunner().invoke(cli, ["doctor"], prog_name="perdure")


def found() -> dict[str, dict[str, Any]]:
    """The checks by name; the last one counts where a name has several."""
    result = CliRunner().invoke(cli, ["doctor", "--json"], prog_name="perdure")
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    return {"exit": {"code": result.exit_code}, **{check["check"]: check for check in report["checks"]}}


async def test_all_is_well_when_a_worker_with_an_agent_is_there(house: House) -> None:
    async with house.worker(Agent(name="tester", model="openai/scripted")):
        result = await asyncio.to_thread(diagnosis)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"✓ {check}" for check in [*CHECKS, "keys", "versions"]]
    assert f"answers at {house.server.address}" in lines[3]
    assert "openai: OPENAI_API_KEY is set here" in lines[-2]
    assert os.environ["OPENAI_API_KEY"] not in result.stdout
    assert "unknown" not in lines[-1]


def test_every_check_is_made_although_the_server_is_not_there(store_with_agents: None) -> None:
    result = diagnosis()
    assert result.exit_code == 8
    lines = {line[2:].partition(":")[0]: line for line in result.stdout.splitlines()}
    assert lines["server"].startswith("✗")
    assert "(Connection refused); start one with 'perdure dev'" in lines["server"]
    assert lines["worker"].startswith("·")
    assert lines["store"].startswith("✓")
    assert lines["agents"] == "✓ agents: writer"
    assert lines["versions"].endswith("server unknown")


def test_libraries_outside_of_the_tested_releases_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation takes what a resolver gives it, or what somebody has upgraded by hand."""
    changed = {"litellm": "9.0.1", "mcp": "9.0.1", "temporalio": "1.36.0"}
    monkeypatch.setattr("perdure.libraries.version", lambda name: changed.get(name) or version(name))
    lines = sorted(line for line in diagnosis().stdout.splitlines() if line.startswith("· libraries"))
    assert len(lines) == 3
    assert "· libraries: litellm 9.0.1 is outside of the tested releases, " in lines[0]
    assert f"; install 'litellm{releases_that_fit('litellm')}'" in lines[0]
    assert "mcp 9.0.1" in lines[1]
    assert f"temporalio 1.36.0 is outside of the tested releases, {releases_that_fit('temporalio')}" in lines[2]


def test_a_name_that_a_library_has_moved_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("temporalio.bridge.worker.Worker.record_activity_heartbeat")
    report = found()
    assert report["exit"]["code"] == 2
    result = diagnosis().stdout
    assert "✗ libraries: temporalio" in result
    assert "has no temporalio.bridge.worker.Worker.record_activity_heartbeat, which perdure needs" in result
    assert "; install 'temporalio" in result


def test_the_releases_of_what_calls_models_are_shown() -> None:
    last = diagnosis().stdout.splitlines()[-1]
    for name in ("litellm", "openai", "temporalio", "mcp"):
        assert f"{name} {version(name)}" in last


def test_a_namespace_that_is_not_there_is_named_once(monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
    report = found()
    assert report["exit"]["code"] == 8
    assert report["server"]["ok"] is True
    assert "temporal operator namespace create --namespace nowhere" in report["namespace"]["fix"]
    assert (report["search attributes"]["ok"], report["worker"]["ok"]) == (None, None)


def test_a_task_queue_without_a_worker_is_exit_8(
    monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer, store_with_agents: None
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("PERDURE_TASK_QUEUE", "nobody")
    report = found()
    assert report["exit"]["code"] == 8
    assert report["worker"]["text"] == "no worker polls the task queue 'nobody'"
    assert "perdure worker" in report["worker"]["fix"]


async def test_search_attributes_that_are_missing_are_exit_1_unless_they_are_off(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WANTED, "PerdureOfTomorrow", "Keyword")
    async with house.worker(Agent(name="tester", model="openai/scripted")):
        report = await asyncio.to_thread(found)
        monkeypatch.setenv("PERDURE_SEARCH_ATTRIBUTES", "off")
        off = await asyncio.to_thread(found)
    assert report["exit"]["code"] == 1
    assert report["search attributes"]["text"] == "PerdureOfTomorrow: not registered"
    assert report["search attributes"]["fix"].startswith("run 'perdure setup' once")
    assert (off["exit"]["code"], off["search attributes"]["ok"]) == (0, True)


async def test_a_search_attribute_of_another_type_is_named(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WANTED, "PerdureAgent", "Int")
    report = await asyncio.to_thread(found)
    text = report["search attributes"]["text"]
    assert text == "search attributes that must be of another type: PerdureAgent (Int)"


def test_wrong_settings_are_all_named_without_their_values_and_the_other_checks_go_on(
    monkeypatch: pytest.MonkeyPatch, store_with_agents: None
) -> None:
    monkeypatch.setenv("PERDURE_TOOL_THREADS", "many-many")
    monkeypatch.setenv("PERDURE_SHUTDOWN_GRACE", SECRET)
    result = diagnosis()
    assert result.exit_code == 2
    wrong = [line for line in result.stdout.splitlines() if line.startswith("✗ settings")]
    assert [line.split()[2] for line in wrong] == ["PERDURE_TOOL_THREADS:", "PERDURE_SHUTDOWN_GRACE:"]
    assert all(line.endswith("correct or unset it; the checks below use its default") for line in wrong)
    assert SECRET not in result.output
    assert "many-many" not in result.output
    assert "✓ agents: writer" in result.stdout


@pytest.mark.parametrize(
    ("url", "part"), [("nonsense", "not a URL"), (f"mysql://u:{SECRET}@h/d", "cannot be a mysql database")]
)
def test_a_store_address_that_is_none_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch, url: str, part: str) -> None:
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    result = diagnosis()
    assert result.exit_code == 2
    assert f"✗ settings: PERDURE_STORE_URL: {'the store' if 'mysql' in url else ''}" in result.stdout
    assert part in result.stdout
    assert SECRET not in result.output


def test_temporals_settings_that_cannot_be_read_are_exit_2_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(f'[profile.default]\naddress = "a:1"\napi_key = "{SECRET}\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    result = diagnosis()
    assert result.exit_code == 2
    assert "✗ Temporal settings: Temporal's configuration cannot be read" in result.stdout
    assert "· server: not checked" in result.stdout
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "environment", [{"TEMPORAL_PROFILE": "none"}, {"TEMPORAL_TLS_SERVER_CA_CERT_PATH": "/no/such/file"}]
)
def test_a_profile_or_certificate_that_is_not_there_is_exit_2(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    report = found()
    assert (report["exit"]["code"], report["Temporal settings"]["ok"]) == (2, False)


def test_an_address_that_is_none_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "not an address")
    report = found()
    assert report["exit"]["code"] == 2
    assert report["server"]["text"].startswith("TEMPORAL_ADDRESS: ")


def test_no_secret_is_shown_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORE_URL", f"postgresql://user:{SECRET}@127.0.0.1:{find_free_port()}/db")
    monkeypatch.setenv("TEMPORAL_API_KEY", "key-of-the-cluster-0123456789")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "key-of-the-cluster-0123456789")
    result = diagnosis()
    assert result.exit_code == 8
    assert "with an API key" in result.stdout
    assert SECRET not in result.output
    assert "key-of-the-cluster" not in result.output


def test_a_store_that_is_not_there_or_of_another_schema_is_exit_8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ".perdure/store.db" in found()["store"]["text"]
    assert not (tmp_path / ".perdure").exists()
    (tmp_path / "empty.db").touch()
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    report = found()
    assert "has no tables yet" in report["store"]["text"]
    assert (report["exit"]["code"], report["agents"]["ok"], report["keys"]["ok"]) == (8, None, None)


def registered(model: str) -> RegisteredAgent:
    return RegisteredAgent(
        name="a", model=model, description="", tools=(), definition="d", seen_at=datetime(2026, 1, 1, tzinfo=UTC)
    )


def test_a_store_without_agents_says_how_to_get_some() -> None:
    (finding,) = look_at_agents([])
    assert (finding.ok, finding.code) == (False, ExitCode.ERROR)
    assert "perdure worker --agents" in finding.fix


@pytest.mark.parametrize(
    ("model", "variable", "ok", "part"),
    [
        ("openai/m", "", None, "OPENAI_API_KEY is not set here"),
        ("openai/m", "OPENAI_API_KEY", True, "OPENAI_API_KEY is set here"),
        ("gemini/m", "", None, "GEMINI_API_KEY or GOOGLE_API_KEY is not set here"),
        ("gemini/m", "GOOGLE_API_KEY", True, "GOOGLE_API_KEY is set here"),
        ("deepinfra/m", "", None, "deepinfra: perdure does not know which variable holds its key"),
        ("opnai/m", "", None, "litellm has no provider 'opnai'; did you mean 'openai'?"),
        ("m", "", None, "has no provider in its name"),
    ],
)
def test_a_key_is_a_hint_and_never_a_failure(
    monkeypatch: pytest.MonkeyPatch, model: str, variable: str, ok: bool | None, part: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, SECRET)
    _, finding = look_at_agents([registered(model)])
    assert finding.ok is ok
    assert part in finding.text
    assert SECRET not in finding.text


@pytest.mark.deep
def test_who_takes_the_connection_and_never_answers_is_reported_in_time(
    monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """The process ends although both connections still hang, and the store's would for ten minutes."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TEMPORAL_ADDRESS": silent,
        "PERDURE_STORE_URL": f"postgresql://u:{SECRET}@{silent}/db?connect_timeout=600",
    }
    code = (
        "import datetime\nfrom perdure.cli import doctor, main\ndoctor.PATIENCE = datetime.timedelta(seconds=1)\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (8, "")
    late = [line.partition(";")[0] for line in done.stdout.splitlines() if line.startswith("✗")]
    assert late == ["✗ server: did not answer all checks within 1 s", "✗ store: did not answer all checks within 1 s"]
    assert SECRET not in done.stdout


def test_a_bug_in_a_check_does_not_look_like_health() -> None:
    async def broken() -> AsyncIterator[Finding]:
        yield Finding(check="server", ok=True, text="fine so far")
        msg = "no such attribute"
        raise AttributeError(msg)

    first, second = doctor.Asking("server", broken(), fix="").collect(time.monotonic() + 60)
    assert first.ok
    assert (second.ok, second.text) == (False, "AttributeError: no such attribute")


def test_what_the_other_end_said_is_shown() -> None:
    error = ServerUnreachableError("no Temporal server answers at a:1; start one")
    error.__cause__ = RuntimeError('Failed: Status { code: PermissionDenied, message: "Request unauthorized." }')
    finding = doctor._describe_no_connection(error)
    assert finding.text == "no Temporal server answers at a:1 (Request unauthorized.)"
    assert (finding.fix, finding.code) == ("start one", ExitCode.UNREACHABLE)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], 0),
        ([ExitCode.ERROR], 1),
        ([ExitCode.UNREACHABLE, ExitCode.ERROR], 8),
        ([ExitCode.ERROR, ExitCode.UNREACHABLE, ExitCode.USAGE], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(codes: list[ExitCode], code: int) -> None:
    hint = Finding(check="keys", ok=None, text="")
    assert doctor.exit_code([hint, *(Finding(check="x", ok=False, text="", code=reason) for reason in codes)]) == code


def test_an_argument_is_refused() -> None:
    result = CliRunner().invoke(cli, ["doctor", "everything"], prog_name="perdure")
    assert (result.exit_code, result.stdout) == (2, "")
