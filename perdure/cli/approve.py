"""``perdure approve``: let a tool call run."""

import click

from perdure.cli import replying
from perdure.cli.asking import person


@click.command("approve")
@click.argument("session")
@click.argument("request")
@replying.by
@click.option("--digest", default="", metavar="HEX", help="Only if the request still has this digest.")
@replying.as_json
def command(*, session: str, request: str, by: str | None, digest: str, as_json: bool) -> None:
    """Approve REQUEST, a tool call of SESSION that waits for it: the tool runs."""
    replying.reply(
        session, lambda client: client.approve(session, request, by=person(by), digest=digest), as_json=as_json
    )
