"""``perdure cancel``: stop the running turn of a session."""

import click

from perdure.cli.connection import connected, run
from perdure.cli.live import print_json


@click.command("cancel")
@click.argument("session")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is kept with the turn.")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Turn N, which runs or waits.")
@click.option("--drop-queue", is_flag=True, help="Drop all messages that wait, too: their turns end as cancelled.")
@click.option("--json", "as_json", is_flag=True, help="One object, as JSON.")
def command(*, session: str, reason: str, turn: int | None, drop_queue: bool, as_json: bool) -> None:
    """Cancel the running turn of SESSION, or one that waits; an idle session is left as it is.

    A --turn that neither runs nor waits is refused with exit code 2 while another one runs. With --json the object has
    session, and sent: false if there was nothing to cancel.
    """

    async def main() -> bool:
        async with connected(store=False) as client:
            return await client.cancel(session, reason, turn, drop_queue=drop_queue)

    sent = run(main())
    if as_json:
        print_json({"session": session, "sent": sent})
    elif sent:
        click.echo(f"cancel sent to session {session}; 'perdure follow {session}' shows the turn's end")
    else:
        click.echo(f"no turn of session {session} runs; nothing to cancel")
