"""``perdure cancel``: stop the running turn of a session."""

import click

from perdure.cli.connection import connected, run


@click.command("cancel")
@click.argument("session")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the turn.")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only if turn N is the one that runs.")
def command(*, session: str, reason: str, turn: int | None) -> None:
    """Cancel the running turn of SESSION; one that is idle is left as it is."""

    async def main() -> bool:
        async with connected(store=False) as client:
            return await client.cancel(session, reason, turn)

    if run(main()):
        click.echo(f"cancel sent to session {session}; 'perdure follow {session}' shows the turn's end")
    else:
        click.echo(f"no turn of session {session} runs; nothing to cancel")
