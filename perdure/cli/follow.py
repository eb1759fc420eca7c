"""``perdure follow``: the events of the running or last turn."""

from datetime import timedelta

import click

from perdure.cli.connection import connected, run
from perdure.cli.errors import MistakeError
from perdure.cli.live import Printer, follow, only_types


@click.command("follow")
@click.argument("session")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@only_types
@click.option(
    "--heartbeat",
    type=click.FloatRange(min=0.01, max=86_400),
    metavar="SECONDS",
    help="With --json: a line of the type heartbeat whenever nothing else came for so long. It has the number of the "
    "event before it.",
)
@click.pass_context
def command(
    ctx: click.Context, *, session: str, after: int, as_json: bool, types: tuple[str, ...], heartbeat: float | None
) -> None:
    """Follow the running or last turn of SESSION to its end. Ctrl+C stops following; the turn goes on."""
    if heartbeat is not None and not as_json:
        raise MistakeError("--heartbeat prints nothing without --json; add that, or leave it out")
    every = None if heartbeat is None else timedelta(seconds=heartbeat)

    async def main() -> int:
        async with connected() as client:
            turn = await client.attach(session)
            printer = Printer(as_json=as_json, types=types, heartbeat=every)
            return await follow(turn, printer, after=after, cancels=False, client=client)

    ctx.exit(run(main()))
