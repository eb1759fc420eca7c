"""``perdure compact``: summarise a session's conversation between its turns."""

import click

from perdure.cli.connection import connected, run
from perdure.cli.live import Printer, detach, follow


@click.command("compact")
@click.argument("session")
@click.argument("guidance", default="")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@click.option("--detach", "detached", is_flag=True, help="Print session and turn, and return at once.")
@click.pass_context
def command(ctx: click.Context, *, session: str, guidance: str, as_json: bool, detached: bool) -> None:
    """Have the conversation of SESSION summarised, and follow that to its end.

    Models then read the summary and the last messages; `perdure show` and `perdure export` go on giving every
    message. GUIDANCE says what the summary must keep in mind. A session whose turn runs is refused.
    """

    async def main() -> int:
        async with connected() as client:
            await client.check_worker()
            turn = await client.compact(session, guidance)
            if detached:
                return await detach(turn, as_json=as_json)
            return await follow(turn, Printer(as_json=as_json), cancels=True)

    ctx.exit(run(main()))
