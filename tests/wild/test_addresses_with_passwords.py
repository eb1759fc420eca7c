"""Addresses with a password, also broken ones: no line of any verb shows it, and none is a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.errors import CliError
from perdure.security.credentials import mask_addresses

pytestmark = pytest.mark.deep

SECRET = "s3cret-pass"

ADDRESSES = {
    "PERDURE_STORE_URL": f"postgresql://u:a@{SECRET}@127.0.0.1:1/db",
    "PERDURE_CODEC_ORIGINS": f"https://u:{SECRET}@h",
    "PERDURE_WEBHOOK_ALLOW": f"https://u:{SECRET}@h",
    "PERDURE_ARTIFACTS": f"http://u:{SECRET}@localhost:abc/x",
    "TEMPORAL_ADDRESS": f"u:{SECRET}@localhost:abc",
}


@pytest.mark.parametrize("verb", ["list", "run a b", "doctor"])
@pytest.mark.parametrize("variable", ADDRESSES)
def test_no_verb_shows_the_password_of_an_address(tmp_path: Path, variable: str, verb: str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    environment = {**own, "PERDURE_STORE_URL": f"sqlite:///{tmp_path}/x.db", variable: ADDRESSES[variable]}
    command = [sys.executable, "-m", "perdure.cli", *verb.split()]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0 or (verb, variable) == ("list", "TEMPORAL_ADDRESS"), said
    assert SECRET not in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("at postgresql://u:p@ss@h:5432/db now", "at postgresql://u:***@h:5432/db now"),
        ("u:p@h:7233 is no HOST:PORT", "u:***@h:7233 is no HOST:PORT"),
        ("http://h:8080/x and job:1@acme", "http://h:8080/x and job:1@acme"),
        ("set PERDURE_STORE_URL to postgresql://…", "set PERDURE_STORE_URL to postgresql://…"),
    ],
)
def test_only_the_password_is_taken_out(said: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert mask_addresses(said) == shown
    CliError(said).show()
    assert capsys.readouterr().err == f"perdure: {shown}\n"
