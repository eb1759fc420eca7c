"""The worker as a child process: where its code is, its environment, and the signals that are passed on."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from perdure.cli.errors import MistakeError
from perdure.settings import PREFIX

LIBRARY = Path(__file__).resolve().parent.parent
"""The folder of the package ``perdure``."""


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


def worker_root() -> Path:
    """The checkout or image that holds the worker beside the library.

    Raises:
        MistakeError: The library was installed without it, as a wheel.
    """
    root = LIBRARY.parent
    if not (root / "worker" / "__main__.py").is_file():
        msg = (
            "this installation is the client library only; run the worker from a checkout of perdure or from its "
            "container image, and reach it from here with 'perdure run'"
        )
        raise MistakeError(msg)
    return root


def worker_command(agents: Sequence[str]) -> list[str]:
    """The command line of the worker. ``-P`` keeps a package of the caller's folder from taking its name."""
    command = [sys.executable, "-P", "-m", "worker"]
    for module in agents:
        command += ["--agents", module]
    return command


def worker_environment(root: Path, **changes: str) -> dict[str, str]:
    """Our environment, with the worker's code and then the caller's folder on the path of modules.

    The child stays in the caller's folder, so that agents are found there and relative paths mean the same to both.
    """
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(root), str(Path.cwd()), *([inherited] if inherited else [])])
    return {**os.environ, **changes, "PYTHONPATH": path}


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
