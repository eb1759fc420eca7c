"""``perdure doctor``: is everything there that a job needs, and if not, what to do about it."""

import asyncio
import platform
import threading
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

import click

from perdure.cli.checks import Finding, ask_server, ask_store, failed, read_cluster, read_settings
from perdure.cli.errors import ExitCode
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean
from perdure.client.connect import CONNECT_TIMEOUT
from perdure.security.redaction import redact_text
from perdure.settings import known_secrets
from perdure.store.database import BUSY_TIMEOUT

PATIENCE = max(CONNECT_TIMEOUT, BUSY_TIMEOUT) + timedelta(seconds=1)
"""How long the answers of server and store may take together: as long as a connection, and a moment to report it."""

_MARKS = {True: ("✓", Tone.GOOD), False: ("✗", Tone.BAD), None: ("·", Tone.QUIET)}
_WORST_FIRST = (ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.ERROR)


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """Check settings, server, worker and store, and say what to do about what is wrong.

    It changes nothing, takes a few seconds at most, and shows no secret. A line with a dot is a hint, or what could not
    be checked. Exit codes: 0 all is well, 2 a setting is wrong, 8 something is not reachable, 1 anything else.
    """
    findings = examine(time.monotonic() + PATIENCE.total_seconds())
    versions = {
        "perdure": version("perdure"),
        "temporalio": version("temporalio"),
        "python": platform.python_version(),
        "server": next((finding.version for finding in findings if finding.version), None),
    }
    code = exit_code(findings)
    if as_json:
        checks = [{"check": one.check, "ok": one.ok, "text": one.text, "fix": one.fix or None} for one in findings]
        print_json({"ok": code is ExitCode.FINISHED, "checks": checks, "versions": versions})
        ctx.exit(code)
    for finding in findings:
        mark, tone = _MARKS[finding.ok]
        fix = f"; {finding.fix}" if finding.fix else ""
        show(Line(f"{mark} {finding.check}: {finding.text}{fix}", tone))
    known = " · ".join(f"{name} {number or 'unknown'}" for name, number in versions.items())
    show(Line(f"{_MARKS[True][0]} versions: {known}", _MARKS[True][1]))
    ctx.exit(code)


def examine(deadline: float) -> list[Finding]:
    """Everything that was found by the deadline, in a fixed order and without secrets."""
    settings, found = read_settings()
    cluster, temporal = read_cluster()
    asked = [
        Asking("server", ask_server(settings, cluster), fix="check TEMPORAL_ADDRESS, TLS and the network"),
        Asking("store", ask_store(settings), fix="check PERDURE_STORE_URL and the network"),
    ]
    found = [*found, temporal, *(finding for asking in asked for finding in asking.found_by(deadline))]
    secrets = known_secrets() | {cluster.api_key if cluster is not None else ""}

    def shown(text: str) -> str:
        return clean(" ".join(redact_text(text, secrets).split()))

    return [replace(finding, text=shown(finding.text), fix=shown(finding.fix)) for finding in found]


class Asking:
    """Checks on a thread of their own: one that never ends neither delays the others nor keeps the process alive."""

    def __init__(self, name: str, checks: AsyncIterator[Finding], *, fix: str) -> None:
        self._name = name
        self._checks = checks
        self._fix = fix
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()), daemon=True)
        self._thread.start()

    async def _ask(self) -> None:
        try:
            async for finding in self._checks:
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001 - the thread's edge: a bug of ours must not look like health
            self._found.append(failed(self._name, error))

    def found_by(self, deadline: float) -> list[Finding]:
        """What the checks have found by then; if they are not done, that is a finding too."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        late = self._thread.is_alive()
        found = list(self._found)
        if late:
            text = f"no further answer within {PATIENCE.total_seconds():.0f} s"
            found.append(Finding(check=self._name, ok=False, text=text, fix=self._fix, code=ExitCode.UNREACHABLE))
        return found


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """The exit code of the worst finding."""
    codes = {finding.code for finding in findings if finding.ok is False}
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.FINISHED)
