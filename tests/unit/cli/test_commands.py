import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli import worker
from perdure.cli.main import VERBS, module
from perdure.local_ports import find_free_port
from tests.contract.repository import ROOT
from tests.unit.cli.invoked import assert_one_line, perdure

MODULES = dict.fromkeys(map(module, VERBS)).keys()


@pytest.fixture(autouse=True)
def _somewhere_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{find_free_port()}")


def python(*args: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False, env=environment)


def loaded_by(code: str) -> set[str]:
    done = python("-c", f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str) -> None:
    result = perdure(verb, "--help")
    assert result.exit_code == 0
    assert f"Usage: perdure {verb}" in result.output


@pytest.mark.deep
def test_the_help_lists_every_verb_without_loading_any() -> None:
    shown = perdure("--help").output.split("Verbs:")[1]
    assert all(f"  {verb} " in shown for verb in VERBS)
    loaded = loaded_by(
        "from perdure.cli.main import cli\n"
        "try:\n    cli(['--help'], prog_name='perdure')\n"
        "except SystemExit as end:\n    assert end.code == 0"
    )
    assert not {"temporalio", "sqlalchemy", "alembic", "litellm", "mcp"} & loaded
    assert not MODULES & loaded


@pytest.fixture(scope="module")
def loaded_with() -> dict[str, set[str]]:
    """What the module of each verb loads, in one process: what an earlier one has loaded, that one is charged with."""
    names = [*MODULES, "perdure.cli.connection"]
    done = python(
        "-c",
        f"import importlib, json, sys\nfound = {{}}\nfor name in {names!r}:\n"
        "    before = set(sys.modules)\n    importlib.import_module(name)\n"
        "    found[name] = [*set(sys.modules) - before]\nprint(json.dumps(found))",
    )
    assert done.returncode == 0, done.stderr
    return {name: set(loaded) for name, loaded in json.loads(done.stdout).items()}


@pytest.mark.deep
@pytest.mark.parametrize("name", [*MODULES, "perdure.cli.connection"])
def test_no_verb_ever_loads_the_workers_code(loaded_with: dict[str, set[str]], name: str) -> None:
    application = {"perdure.workflows", "perdure.activities", "perdure.worker"}
    assert not ({"litellm", "mcp", "perdure.testing"} | application) & loaded_with[name]


@pytest.mark.deep
def test_the_module_can_be_run() -> None:
    done = python("-m", "perdure.cli", "frobnicate")
    assert done.returncode == 2
    assert done.stderr == "perdure: no such command 'frobnicate'; see 'perdure --help'\n"


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["run"], "missing argument 'AGENT'; see 'perdure run --help'"),
        (["run", "a", "b", "--max-steps", "0"], "--max-steps"),
        (["run", "a", "b", "--max-cost-usd", "-1"], "above zero"),
        (["run", "a", "b", "--max-cost-usd", "nan"], "above zero"),
        (["list", "--state", "asleep"], "asleep"),
        (["--colour"], "perdure --help"),
        (["follow", "s", "--after", "x"], "--after"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(args: list[str], part: str) -> None:
    assert_one_line(perdure(*args), 2, part)


@pytest.mark.parametrize("args", [["run", "a", "b"], ["send", "s", "b"], ["follow", "s"], ["cancel", "s"], ["setup"]])
def test_a_server_that_is_not_there_is_exit_8(args: list[str]) -> None:
    assert_one_line(perdure(*args), 8, os.environ["TEMPORAL_ADDRESS"], "perdure dev")


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("TEMPORAL_ADDRESS", "localhost:99999", "'localhost:99999' is no HOST:PORT"),
        ("TEMPORAL_PROFILE", "nowhere", "Profile 'nowhere' not found"),
        ("TEMPORAL_TLS_SERVER_CA_CERT_PATH", "/no/such/file", "/no/such/file"),
    ],
)
def test_a_temporal_configuration_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, part: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert_one_line(perdure("cancel", "s"), 2, "TEMPORAL_", part)


@pytest.mark.parametrize("args", [["list"], ["agents"], ["show", "s"], ["export", "s", "--format", "jsonl"]])
def test_a_store_that_is_not_there_is_exit_8_and_is_not_created(args: list[str], tmp_path: Path) -> None:
    assert_one_line(perdure(*args), 8, ".perdure/store.db", "PERDURE_STORE_URL")
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TOOL_THREADS", "many")
    assert_one_line(perdure("list"), 2, "PERDURE_TOOL_THREADS='many'")


@pytest.mark.parametrize("verb", ["worker", "dev"])
def test_an_installation_without_the_extra_says_what_to_install(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "NEEDED", (*worker.NEEDED, "absent_module"))
    assert_one_line(perdure(verb), 2, "client only (there is no absent_module)", "pip install 'perdure[worker]'")


@pytest.mark.parametrize("verb", ["worker", "dev"])
def test_a_checkout_without_its_links_says_how_to_make_them(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git makes files of symbolic links where it may not make links, as on some Windows machines."""
    monkeypatch.setattr(worker, "WORKER", "perdure.absent")
    assert_one_line(perdure(verb), 2, "its symbolic links were not made", "core.symlinks=true")


@pytest.mark.deep
def test_the_worker_gets_its_agents_and_settings_and_its_exit_code_is_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "stand_in.py").write_text(
        "import json, os, pathlib, sys\n"
        "seen = {'args': sys.argv[1:], 'cwd': os.getcwd(), 'path': sys.path, 'queue': os.environ['PERDURE_TASK_QUEUE'],"
        " 'metrics': os.environ['PERDURE_METRICS_ADDRESS']}\n"
        "pathlib.Path('seen.json').write_text(json.dumps(seen))\n"
        "sys.exit(5)\n"
    )
    monkeypatch.setattr(worker, "WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.syspath_prepend(str(root))
    result = perdure(
        "worker", "--agents", "one", "--agents", "two", "--task-queue", "q", "--metrics-address", "127.0.0.1:1"
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert result.exit_code == 5
    assert seen["args"] == ["--agents", "one", "--agents", "two"]
    assert (seen["queue"], seen["metrics"]) == ("q", "127.0.0.1:1")
    assert seen["cwd"] == str(tmp_path)
    assert str(tmp_path) not in seen["path"], "files of the caller's folder could take the names of modules"


@pytest.mark.deep
@pytest.mark.parametrize(
    ("setting", "expected"), [(None, "127.0.0.1:9"), ("", "127.0.0.1:9"), ("0.0.0.0:9464", "0.0.0.0:9")]
)
def test_the_port_of_a_worker_is_chosen_as_that_of_dev(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str | None, expected: str
) -> None:
    (tmp_path / "stand_in.py").write_text(
        "import os, pathlib; pathlib.Path('seen').write_text(os.environ['PERDURE_METRICS_ADDRESS'])\n"
    )
    monkeypatch.setattr(worker, "WORKER", "stand_in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PERDURE_METRICS_ADDRESS", raising=False)
    if setting is not None:
        monkeypatch.setenv("PERDURE_METRICS_ADDRESS", setting)
    assert perdure("worker", "--metrics-port", "9").exit_code == 0
    assert (tmp_path / "seen").read_text() == expected


def test_the_port_of_a_worker_is_named_once() -> None:
    both = ("--metrics-port", "9", "--metrics-address", "127.0.0.1:8")
    assert_one_line(perdure("worker", *both), 2, "has a port already", "leave it or --metrics-port out")


def test_a_signalled_child_ends_with_the_code_a_shell_shows() -> None:
    assert worker.exit_code(-15) == 143
    assert worker.exit_code(3) == 3
