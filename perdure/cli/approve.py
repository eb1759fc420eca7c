"""``perdure approve``: let a tool call run."""

import click

from perdure.cli import replying
from perdure.cli.asking import person


@click.command("approve")
@click.argument("session")
@replying.which
@replying.by
@click.option("--digest", default="", metavar="HEX", help="Only if the request still has this digest.")
@replying.as_json
def command(*, session: str, request: str | None, by: str | None, digest: str, as_json: bool) -> None:
    """Approve REQUEST, a tool call of SESSION that waits for it: the tool runs.

    REQUEST may be left out if SESSION waits for one approval only; several are listed.
    """
    replying.reply(
        session,
        request,
        lambda client, found, seen: client.approve(session, found, by=person(by), digest=digest or seen),
        needs="approval",
        as_json=as_json,
    )
