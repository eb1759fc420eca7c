"""Findings of the checks of ``perdure doctor``."""

from dataclasses import dataclass

from perdure.cli.errors import ExitCode


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Finding of one check.

    Attributes:
        ok: Whether all is well; None if it could not be checked, or is only a hint.
        fix: What to do, where there is something to do.
        code: The exit code that a check that failed asks for.
        version: Of what was checked, where it has one.
    """

    check: str
    ok: bool | None
    text: str
    fix: str = ""
    code: ExitCode = ExitCode.ERROR
    version: str = ""
