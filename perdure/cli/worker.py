"""``perdure worker``, and the worker process of ``perdure dev``: started, waited for, stopped, and why it died."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, ValidationError

from perdure.cli.errors import CliError, ExitCode, MistakeError
from perdure.cli.server import open_log, reminding, spawn, stop_process
from perdure.settings import PREFIX

WORKER = "perdure.worker"
"""The worker's module."""

SAID = "perdure: "
"""Prefix of the line in which a worker says why it cannot start."""

NEEDED = ("litellm", "mcp", "prometheus_client", "uvloop")
"""Modules of the extra ``worker``, without which a worker cannot start."""


_FOLDER = click.Path(file_okay=False, path_type=Path)

record_option = click.option(
    "--record", type=_FOLDER, metavar="DIR", help="Record model and tool calls in DIR, for a later --replay."
)
replay_option = click.option(
    "--replay", type=_FOLDER, metavar="DIR", help="Replay the calls recorded in DIR; call no model and run no tool."
)


def recording_settings(record: Path | None, replay: Path | None) -> dict[str, Path | str]:
    """The settings that the options stand for, by their names; none if neither is given."""
    if record is not None and replay is not None:
        raise MistakeError("a worker records or replays, not both; leave --record or --replay out")
    folder = replay if record is None else record
    if folder is None:
        return {}
    return {"recordings": folder, "recording_mode": "replay" if record is None else "record"}


def variables(settings: Mapping[str, Path | str]) -> dict[str, str]:
    """Settings as a child process reads them."""
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}


def require_worker() -> None:
    """See that this installation has a worker.

    Raises:
        CliError: It is a client only, or a checkout without its links.
    """
    if find_spec(WORKER) is None:
        raise MistakeError(
            "this checkout has no perdure/worker: its symbolic links were not made; clone it again with "
            "'git clone -c core.symlinks=true', or install the package: pip install 'perdure[worker]'"
        )
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MistakeError(
            f"this installation is the client only (there is no {missing[0]}); for a worker: "
            "pip install 'perdure[worker]', or use its container image; 'perdure run' reaches it from here"
        )


def with_port(address: str, port: int) -> str:
    """An address of metrics with another port; loopback if it has no host."""
    return f"{address.rpartition(':')[0] or '127.0.0.1'}:{port}"


def worker_arguments(agents: Sequence[str]) -> list[str]:
    """The command line of the worker. ``-P`` keeps files of the caller's folder from taking the names of modules."""
    require_worker()
    command = [sys.executable, "-P", "-m", WORKER]
    for module in agents:
        command += ["--agents", module]
    return command


@contextlib.contextmanager
def pass_signals(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Give the signals that ask us to stop to the child, which decides what they mean."""

    def hand_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(returncode: int) -> int:
    """A child's return code as a shell shows it."""
    return returncode if returncode >= 0 else 128 - returncode


@click.command("worker")
@click.option("--agents", multiple=True, metavar="MODULE", help="A module or file with agents; may be repeated.")
@click.option("--task-queue", metavar="Q", help="The Temporal task queue to poll, instead of PERDURE_TASK_QUEUE.")
@click.option(
    "--roles",
    metavar="R,…",
    help="In a split fleet, what this worker does: turns, models, tools, separated by commas. Without it, "
    "PERDURE_ROLES; without both, everything.",
)
@click.option(
    "--metrics-address",
    metavar="HOST:PORT",
    help="Where to serve /metrics, /healthz and /readyz, instead of PERDURE_METRICS_ADDRESS (127.0.0.1:9464).",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Only the port of that address, as in 'perdure dev'; the host stays.",
)
@record_option
@replay_option
@click.pass_context
def worker_command(
    ctx: click.Context,
    *,
    agents: tuple[str, ...],
    task_queue: str | None,
    roles: str | None,
    metrics_address: str | None,
    metrics_port: int | None,
    record: Path | None,
    replay: Path | None,
) -> None:
    """Run a worker until it gets SIGTERM or Ctrl+C.

    Running calls then get PERDURE_SHUTDOWN_GRACE seconds (300 by default) to finish; other workers take over the rest.
    TEMPORAL_ADDRESS or a Temporal profile names the Temporal server, PERDURE_STORE_URL the store.
    """
    changes = variables(recording_settings(record, replay))
    if task_queue is not None:
        changes["PERDURE_TASK_QUEUE"] = task_queue
    if roles is not None:
        changes["PERDURE_ROLES"] = roles
    if metrics_port is not None:
        if metrics_address is not None:
            raise MistakeError("--metrics-address has a port already; leave it or --metrics-port out")
        metrics_address = with_port(os.environ.get("PERDURE_METRICS_ADDRESS", ""), metrics_port)
    if metrics_address is not None:
        changes["PERDURE_METRICS_ADDRESS"] = metrics_address
    process = spawn(worker_arguments(agents), output=None, env={**os.environ, **changes})
    with pass_signals(process):
        ctx.exit(exit_code(process.wait()))


STOP_MARGIN = timedelta(seconds=10)
"""Time that the worker gets beyond its own grace period before it is killed."""

POLL = timedelta(milliseconds=100)

STEADY = timedelta(seconds=60)
"""A worker that has lived for as long is replaced at once; those that die earlier in a row, ever later."""

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(seconds=30)
"""The wait before the next start, doubled with each worker that was not steady."""

LAST_LINES = 5
"""Lines of a dead worker's log that are shown."""

TAIL_BYTES = 16 * 1024
"""The end of its log in which they are looked for."""

_GROUPS = (
    (re.compile(r"^\d+:(?:\w+,)*memory(?:,\w+)*:/(.*)$", re.MULTILINE), "memory", "memory.oom_control"),  # version 1
    (re.compile(r"^0::/(.*)$", re.MULTILINE), "", "memory.events"),
)
"""Forms of a control group: its name, the folder above it, and its file with the count."""

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryKills:
    """Number of processes that the kernel has killed for want of memory; None where it does not say.

    Attributes:
        group: In the control group of this process, so among few others.
        machine: On the whole machine.
    """

    group: int | None = None
    machine: int | None = None

    @classmethod
    def read(cls, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> "MemoryKills":
        """The counts as they are now."""
        names = _text(proc / "self" / "cgroup")
        found = ((pattern.search(names), groups / folder, file) for pattern, folder, file in _GROUPS)
        # In a container the name may be that of the host, where the container sees its own group at the top.
        files = [path / file for name, top, file in found if name for path in (top / name[1], top)]
        group = next((count for count in map(_count, map(_text, files)) if count is not None), None)
        return cls(group, _count(_text(proc / "vmstat")))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _count(text: str) -> int | None:
    found = _COUNT.search(text)
    return int(found[1]) if found else None


def cause_of_death(code: int, before: MemoryKills, after: MemoryKills) -> str:
    """Reason a process ended, by its return code and the kernel's counts before and after."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name != "SIGKILL":
        return f"was ended by {name}"
    if _has_risen(before.group, after.group):
        return "was killed by the kernel (SIGKILL): out of memory"
    if _has_risen(before.machine, after.machine):
        return "was killed (SIGKILL), probably for want of memory: the kernel has just killed a process for that"
    if after.machine is None:
        return "was killed (SIGKILL), by somebody or for want of memory"
    return "was killed (SIGKILL) by another process: the kernel killed none for want of memory"


def _has_risen(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def wait_before_start(deaths: int) -> timedelta:
    """The wait before the next start, by the number of workers that died soon after theirs."""
    return min(FIRST_WAIT * 2 ** min(deaths - 1, 10), LONGEST_WAIT) if deaths else timedelta()


class WorkerProcess:
    """One process, and what it alone has written to the log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._kills = MemoryKills.read()
        self._began = time.monotonic()
        with open_log(log) as output:
            self._start = os.fstat(output.fileno()).st_size
            self.process: subprocess.Popen[bytes] = spawn(list(command), output=output, env=environment)

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self.process.poll() is not None

    @property
    def was_steady(self) -> bool:
        """Whether it has lived for a while."""
        return time.monotonic() - self._began > STEADY.total_seconds()

    def death(self) -> str:
        """Reason the process ended."""
        return cause_of_death(self.process.returncode, self._kills, MemoryKills.read())

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it wrote, each line as a person reads it."""
        with self.log.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(self._start, size - TAIL_BYTES))
            rows = opened.read().decode(errors="replace").splitlines()
        return tuple(to_plain_line(row) for row in rows if row.strip())[-LAST_LINES:]

    async def is_ready(self, address: str, remind: Callable[[str], None]) -> bool:
        """Wait until it says so, or has ended; without a door for metrics there is nobody to ask.

        A slow machine takes a minute and more. So there is no time limit, but a reminder.
        """
        async with reminding(remind, f"the {self.log.stem} is not ready yet; see {self.log}"):
            while not (self.has_ended or not address or await _is_ready(address)):  # noqa: ASYNC110 - of a process
                await asyncio.sleep(POLL.total_seconds())
        return not self.has_ended

    async def stop(self, grace: timedelta, insisted: asyncio.Event) -> None:
        """Let it finish what runs; kill it when that takes too long, or somebody insists."""
        stopping = asyncio.create_task(stop_process(self.process, (grace + STOP_MARGIN).total_seconds()))
        insisting = asyncio.create_task(insisted.wait())
        await asyncio.wait({stopping, insisting}, return_when=asyncio.FIRST_COMPLETED)
        insisting.cancel()
        if not stopping.done():
            self.process.kill()
        await stopping


class _Record(BaseModel):
    logger: str = "worker"
    message: str
    exception: str = ""


def to_plain_line(row: str) -> str:
    """A line of the log: of a JSON record its logger and message, and the last line of its exception."""
    with contextlib.suppress(ValidationError):
        record = _Record.model_validate_json(row)
        last = record.exception.strip().splitlines()[-1:]
        return ": ".join([record.logger, record.message, *last])[:300]
    return row[:300]


async def _is_ready(address: str) -> bool:
    def ask() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as reply:
            return bool(reply.status == HTTPStatus.OK)
        return False  # an error status is an OSError too

    return await asyncio.to_thread(ask)


USUAL_KEYS: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "azure": ("AZURE_API_KEY",),
    "bedrock": ("AWS_ACCESS_KEY_ID",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_AI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "huggingface": ("HUGGINGFACE_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY",),
    "replicate": ("REPLICATE_API_KEY",),
    "together_ai": ("TOGETHERAI_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""The variables litellm reads the key of a provider from; any one of them will do."""


@dataclass(frozen=True, kw_only=True)
class LoadedAgent:
    """Summary of a loaded agent.

    Attributes:
        servers: Number of its MCP servers.
        models_without_key: Its models, those that stand in for the first included, that take the provider's usual key.
        unset: Variables that its settings refer to and that are not set.
        unknown_providers: A sentence for each of its models whose provider does not exist.
    """

    name: str
    model: str
    tools: int
    servers: int
    models_without_key: Sequence[str]
    unset: Sequence[str]
    unknown_providers: Sequence[str] = ()

    def line(self) -> str:
        """The agent as one line."""
        servers = [_count_of(self.servers, "MCP server")] if self.servers else []
        return " · ".join([self.name, self.model, _count_of(self.tools, "tool"), *servers])


def _count_of(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


async def load_agents(
    command: Sequence[str], environment: Mapping[str, str], remind: Callable[[str], None]
) -> tuple[LoadedAgent, ...]:
    """Load the agents as the worker will, however long their modules take.

    Raises:
        CliError: They cannot be loaded; the message is the worker's own.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        "--describe",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,  # so that Ctrl+C does not reach it
    )
    try:
        async with reminding(remind, "the agents' modules are still being imported"):
            said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    rows = [row for row in said.decode(errors="replace").splitlines() if row.strip()]
    if process.returncode == 0 and rows:
        described: list[dict[str, Any]] = json.loads(rows[-1])  # modules may print lines of their own
        return tuple(LoadedAgent(**agent) for agent in described)
    told = [to_plain_line(row) for row in complaint.decode(errors="replace").splitlines() if row.strip()]
    if told and told[-1].startswith(SAID):
        raise CliError(told[-1].removeprefix(SAID), process.returncode or ExitCode.ERROR)
    raise CliError(f"the agents cannot be loaded: {' | '.join(told[-LAST_LINES:]) or 'no word of why'}")


def find_missing_keys(agents: Sequence[LoadedAgent], environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """A sentence for each key or variable that agents need and that is not set."""
    users: dict[str, list[str]] = {}
    for agent in agents:
        for model in agent.models_without_key:
            names = USUAL_KEYS.get(model.partition("/")[0], ())
            if names and not any(environment.get(name) for name in names):
                users.setdefault(f"{' or '.join(names)} for {model}", []).append(agent.name)
        for name in agent.unset:
            users.setdefault(name, []).append(agent.name)
    for needed, agents_of in users.items():
        yield f"{needed} (agent {', '.join(dict.fromkeys(agents_of))}) is not set"
