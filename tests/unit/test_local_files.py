"""The address file of ``perdure dev``: who reads it, what goes before it, and what becomes of one that was left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.client import ServerUnreachableError
from perdure.client.connect import address_source, load_config
from perdure.local_files import FILE, AlreadyRunningError, DevAddresses, find, hold_address
from perdure.local_ports import find_free_port
from perdure.settings import load_settings
from perdure.store.database import Address
from tests.contract.repository import ROOT

ADDRESSES = DevAddresses(
    pid=os.getpid(),
    temporal_address=f"127.0.0.1:{find_free_port()}",
    namespace="default",
    task_queue="of-the-file",
    store_url="sqlite:////of/the/file.db",
    ui_url=None,
    metrics_address="",
)


@pytest.fixture(autouse=True)
def _somewhere_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def running() -> Iterator[None]:
    with hold_address() as file:
        file.write(ADDRESSES)
        yield


@pytest.fixture
def left(tmp_path: Path) -> None:
    """A file whose writer was killed."""
    code = (
        "import os, signal\nfrom perdure.local_files import DevAddresses, hold_address\n"
        f"with hold_address() as file:\n    file.write(DevAddresses(**{ADDRESSES.model_dump()}))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("running")
def test_no_variable_is_needed_in_the_folder_and_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert load_config() == {"target_host": ADDRESSES.temporal_address, "namespace": "default"}
    assert address_source() == f"from {tmp_path / FILE}"
    settings = load_settings()
    assert (settings.store_url, settings.task_queue) == ("sqlite:////of/the/file.db", "of-the-file")
    assert settings.metrics_address == "127.0.0.1:9464", "a worker beside the one of dev has pages of its own"


@pytest.mark.usefixtures("running")
def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cluster:7233")
    monkeypatch.setenv("PERDURE_STORE_URL", "sqlite:///mine.db")
    assert load_config().get("target_host") == "cluster:7233"
    assert address_source() == "from TEMPORAL_ADDRESS"
    assert (load_settings().store_url, load_settings().task_queue) == ("sqlite:///mine.db", "of-the-file")
    assert load_settings(of_folder=False).task_queue == "perdure"


@pytest.mark.usefixtures("running")
def test_a_verb_says_where_an_address_comes_from() -> None:
    result = CliRunner().invoke(cli, ["cancel", "s"])
    assert result.exit_code == 8
    assert f"answers at {ADDRESSES.temporal_address};" in result.stderr
    assert f"(the address: from {Path.cwd() / FILE})" in result.stderr


def test_a_default_is_told_as_one() -> None:
    assert address_source().startswith("the default, as no TEMPORAL_ADDRESS is set")


@pytest.mark.deep
@pytest.mark.usefixtures("left")
def test_a_file_that_was_left_is_told_as_that_and_does_not_lead_anywhere(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachableError, match=rf"'perdure dev' of {tmp_path} \(process \d+\) was killed; start"):
        load_config()
    result = CliRunner().invoke(cli, ["cancel", "s"])
    assert (result.exit_code, result.stderr.count("\n")) == (8, 1)
    doctor = CliRunner().invoke(cli, ["doctor"])
    assert doctor.exit_code == 8
    assert "✗ Temporal settings: the 'perdure dev' of" in doctor.stdout


@pytest.mark.deep
@pytest.mark.usefixtures("left")
def test_the_next_start_takes_over_a_file_that_was_left() -> None:
    with hold_address() as file:
        assert find() is None, "nothing of the old one is read"
        file.write(ADDRESSES)
        found = find()
        assert found is not None
        assert found.is_live
    assert not FILE.exists()


@pytest.mark.usefixtures("running")
def test_a_second_start_in_the_folder_is_refused_and_leaves_the_file() -> None:
    with pytest.raises(AlreadyRunningError, match=rf"\(process {os.getpid()}\); stop it"), hold_address():
        pass
    assert find() is not None


@pytest.mark.usefixtures("running")
def test_a_file_of_another_user_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert find() is None


@pytest.mark.usefixtures("running")
def test_only_its_owner_may_read_it() -> None:
    assert FILE.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("url", "shared"),
    [
        ("postgresql://me:secret-word@db/x?sslpassword=other", "postgresql+psycopg://me@db/x"),
        ("postgresql://db/x?sslmode=require", "postgresql+psycopg://db/x?sslmode=require"),
        ("sqlite:///.perdure/store.db", "sqlite:///{here}/.perdure/store.db"),
        ("sqlite:////abs/store.db", "sqlite:////abs/store.db"),
    ],
)
def test_the_stores_address_is_given_without_secrets_and_for_any_folder(url: str, shared: str) -> None:
    address = Address(url)
    assert address.public_url == shared.format(here=Path.cwd())
    assert address.has_secrets == ("secret-word" in url)
    assert str(Address(address.public_url)) == address.public_url
