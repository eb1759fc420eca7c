"""Exit codes, and the one kind of error the command line shows: a line with the cause and the next thing to try."""

from enum import IntEnum
from typing import IO, Any

import click

from perdure.cli.render import to_one_line
from perdure.security.credentials import mask_addresses


class ExitCode(IntEnum):
    """Exit code of ``perdure``."""

    FINISHED = 0
    ERROR = 1
    USAGE = 2
    MAX_STEPS_REACHED = 3
    STALLED = 4
    BUDGET_EXHAUSTED = 5
    CANCELLED = 6
    WAITING = 7
    UNREACHABLE = 8
    INTERRUPTED = 130
    """Quit at once by a second Ctrl+C; the turn may still run."""


class CliError(click.ClickException):
    """An expected failure, shown as ``perdure: <cause>; <fix>`` on stderr."""

    def __init__(self, message: str, exit_code: int = ExitCode.ERROR) -> None:
        super().__init__(to_one_line(message))
        self.exit_code = int(exit_code)  # type: ignore[misc]  # click declares it per class and reads it per instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the one line."""
        click.echo(f"perdure: {mask_addresses(self.message)}", file=file, err=file is None)


class MistakeError(CliError):
    """The command line cannot be carried out as it was written."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)


class UnreachableError(CliError):
    """A server, worker or store that is needed does not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.UNREACHABLE)
