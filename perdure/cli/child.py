"""The worker as a child process: its command line, its environment, and the signals that are passed on."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from perdure.cli.errors import MistakeError
from perdure.settings import PREFIX

WORKER = "perdure.worker"
"""The worker's module."""

NEEDED = ("litellm", "mcp", "prometheus_client", "uvloop")
"""Modules of the extra ``worker``, without which a worker cannot start."""


_FOLDER = click.Path(file_okay=False, path_type=Path)

record_option = click.option(
    "--record", type=_FOLDER, metavar="DIR", help="Record model and tool calls below DIR, to be replayed."
)
replay_option = click.option(
    "--replay", type=_FOLDER, metavar="DIR", help="Replay the calls recorded below DIR; call no model and run no tool."
)


def recording_settings(record: Path | None, replay: Path | None) -> dict[str, Path | str]:
    """The settings that the options stand for, by their names; none if neither is given.

    Raises:
        MistakeError: Both are given.
    """
    if record is not None and replay is not None:
        raise MistakeError("a worker records or replays, not both; leave --record or --replay out")
    folder = replay if record is None else record
    if folder is None:
        return {}
    return {"recordings": folder, "recording_mode": "replay" if record is None else "record"}


def variables(settings: Mapping[str, Path | str]) -> dict[str, str]:
    """Settings as a child process reads them."""
    return {f"{PREFIX}{name.upper()}": str(value) for name, value in settings.items()}


def worker_command(agents: Sequence[str]) -> list[str]:
    """The command line of the worker. ``-P`` keeps files of the caller's folder from taking the names of modules.

    Raises:
        MistakeError: The worker is not installed.
    """
    if find_spec(WORKER) is None:
        msg = (
            "this checkout has no perdure/worker: its symbolic links were not made; clone it again with "
            "'git clone -c core.symlinks=true', or install the package: pip install 'perdure[worker]'"
        )
        raise MistakeError(msg)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        msg = (
            f"this installation is the client only (there is no {missing[0]}); for a worker: "
            "pip install 'perdure[worker]', or use its container image; 'perdure run' reaches it from here"
        )
        raise MistakeError(msg)
    command = [sys.executable, "-P", "-m", WORKER]
    for module in agents:
        command += ["--agents", module]
    return command


@contextlib.contextmanager
def passing_signals(process: "subprocess.Popen[bytes]") -> Iterator[None]:
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
