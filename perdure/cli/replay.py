"""``perdure replay``: check that the turns of a cluster can go on under the installed code."""

import os
import re
import sys

import click

from perdure.cli.server import spawn
from perdure.cli.worker import exit_code, pass_signals, require_worker

_UNITS = {"m": 1 / 60, "h": 1.0, "d": 24.0}


class _Hours(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Hours of ``30m``, ``24h`` or ``7d``."""
        found = re.fullmatch(r"(\d+)([mhd])", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration; write for example 30m, 24h or 7d", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


@click.command("replay")
@click.option("--query", default="", metavar="Q", help="Only executions that match this Temporal list filter too.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Most executions to replay.",
)
@click.option(
    "--since",
    type=_Hours(),
    default="24h",
    show_default=True,
    metavar="TIME",
    help="Only closed executions that ended in this time: 30m, 24h, 7d. Running ones are always replayed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.pass_context
def replay_command(ctx: click.Context, *, query: str, limit: int, since: float, as_json: bool) -> None:
    """Replay workflow histories of the cluster against the code installed here, before you roll it out.

    The command reads the histories of running and recently closed workflows of the task queue (turns, deliveries,
    knocks and sweeps), and changes nothing. For each history that does not replay, a line says which one, at which
    event, and what to do. Exit codes: 0 all replay, 1 some do not, 2 a setting is wrong, 8 the server does not answer.
    """
    require_worker()
    command = [sys.executable, "-P", "-m", "perdure.worker.replay", "--limit", str(limit), "--since", str(since)]
    command += [*(("--query", query) if query else ()), *(("--json",) if as_json else ())]
    process = spawn(command, output=None, env=os.environ)
    with pass_signals(process):
        ctx.exit(exit_code(process.wait()))
