"""``perdure follow``: the events of the running or last turn."""

import click

from perdure.cli.connection import connected, run
from perdure.cli.live import Printer, follow, only_types


@click.command("follow")
@click.argument("session")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="N", help="Only events after number N.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@only_types
@click.pass_context
def command(ctx: click.Context, *, session: str, after: int, as_json: bool, types: tuple[str, ...]) -> None:
    """Follow the running or last turn of SESSION to its end. Ctrl+C stops following; the turn goes on."""

    async def main() -> int:
        async with connected() as client:
            turn = await client.attach(session)
            return await follow(turn, Printer(as_json=as_json, types=types), after=after, cancels=False, client=client)

    ctx.exit(run(main()))
