"""deploy/compose.yaml as Compose reads it, and its services of perdure as processes of this machine.

A service's command and variables are taken as they stand there. Names of other services become addresses of this
machine, and its ports become free ones.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from perdure.local_ports import find_free_port

ROOT = Path(__file__).parent.parent
FILE = ROOT / "deploy/compose.yaml"
IMAGE = "perdure"

_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::([-?])([^}]*))?\})")


class UnsetVariableError(Exception):
    """A variable has no value, and the file says that it needs one; the message is the file's."""


def load(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables replaced, as ``docker compose config`` shows it.

    Raises:
        UnsetVariableError: One that is needed is not set.
    """
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: _replaced(value, environment) for name, value in loaded.items()}


def _replaced(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(part, environment) for key, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, environment) for part in value]
    return _VARIABLE.sub(lambda found: _value(found, environment), value) if isinstance(value, str) else value


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name, kind, rest = found.groups()
    if name is None:
        return "$"
    if environment.get(name):
        return environment[name]
    if kind == "?":
        raise UnsetVariableError(rest)
    return rest or ""


def seconds(duration: str) -> float:
    """A duration of Compose, in seconds."""
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


@dataclass
class Process:
    """A service of the file as a process.

    Attributes:
        ports: Ports of the container with the free ones that they became.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    grace: float
    ports: Mapping[int, int]
    health: Sequence[str]
    log: Path
    variables: Mapping[str, str]

    def url(self, port: int, path: str = "") -> str:
        """An address of this process, by a port of the container."""
        return f"http://127.0.0.1:{self.ports[port]}{path}"

    def get(self, port: int, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(self.url(port, path), timeout=10) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def stop(self) -> int:
        """SIGTERM, and the end within the grace; -9 if it takes longer."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@dataclass
class Fleet:
    """The services of perdure in the file.

    Attributes:
        hosts: ``NAME:PORT`` or address of another service, with what it is on this machine.
        folder: Where logs and temporary files go; services write nowhere else.
    """

    environment: Mapping[str, str]
    hosts: Mapping[str, str]
    folder: Path
    agents: Path
    processes: list[Process] = field(default_factory=list)

    def start(self, name: str) -> Process:
        """Start a service as a container would: its command, its variables alone, in a folder it cannot write."""
        service = load(self.environment)["services"][name]
        ports = {port: find_free_port() for port in (8234, 9464)}
        variables = {key: self._here(value, ports) for key, value in self._variables(service).items()}
        temporary = self.folder / f"tmp-{name}-{len(self.processes)}"
        temporary.mkdir()
        log = self.folder / f"{name}-{len(self.processes)}.log"
        environment = {**_image(ports), **variables, "TMPDIR": str(temporary), "HOME": str(self.agents / "home")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_without_rights(), *self._command(service["command"], ports)],
                cwd=self.agents,
                env=environment,
                stdout=output,
                stderr=output,
            )
        health = self._command(service.get("healthcheck", {}).get("test", ["CMD"])[1:], ports)
        grace = seconds(service["stop_grace_period"])
        started = Process(name, process, grace, ports, health, log, environment)
        self.processes.append(started)
        return started

    def execute(self, process: Process, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command beside a process, as ``docker compose exec`` does."""
        return subprocess.run(
            [*_without_rights(), *self._command(command, process.ports)],
            cwd=self.agents,
            env=process.variables,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def is_healthy(self, process: Process) -> bool:
        """Whether the health check of the service says so."""
        return self.execute(process, *process.health).returncode == 0

    def kill(self) -> None:
        """Kill whatever still runs."""
        for started in self.processes:
            if started.process.poll() is None:
                started.process.kill()
                started.process.wait()

    def _variables(self, service: Mapping[str, Any]) -> dict[str, str]:
        """A name without a value is passed on from the environment, if it is there."""
        told = {
            name: self.environment.get(name) if value is None else str(value)
            for name, value in service["environment"].items()
        }
        return {name: value for name, value in told.items() if value is not None}

    def _command(self, command: Sequence[str], ports: Mapping[int, int]) -> list[str]:
        folder = Path(sys.executable).parent
        words = [self._here(word, ports) for word in command]
        return [str(folder / words[0]), *words[1:]] if words and (folder / words[0]).exists() else words

    def _here(self, text: str, ports: Mapping[int, int]) -> str:
        for name, address in self.hosts.items():
            text = text.replace(name, address)
        for port, free in ports.items():
            text = re.sub(rf"(?<=:){port}\b", str(free), text)
        return text


def _image(ports: Mapping[int, int]) -> dict[str, str]:
    """The variables of the image, with its ports replaced, and what leads to this checkout."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (words,) = re.findall(r"^ENV (.*)$", text, flags=re.MULTILINE)
    told = dict(word.split("=", 1) for word in words.split())
    for port, free in ports.items():
        told = {name: value.replace(f":{port}", f":{free}") for name, value in told.items()}
    return {**told, "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "PYTHONPATH": str(ROOT)}


def _without_rights() -> list[str]:
    """For root: no capability, as in the file. Without them folders of mode 0555 are closed to it too."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    return ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
