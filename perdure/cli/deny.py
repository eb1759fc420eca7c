"""``perdure deny``: refuse a tool call, or to answer a question."""

import click

from perdure.cli import replying
from perdure.cli.asking import person


@click.command("deny")
@click.argument("session")
@replying.which
@click.option("--reason", default="", metavar="TEXT", help="Why; the model reads it.")
@replying.by
@replying.as_json
def command(*, session: str, request: str | None, reason: str, by: str | None, as_json: bool) -> None:
    """Deny REQUEST of SESSION: a tool call does not run, a question gets no answer; the model is told so.

    REQUEST may be left out if SESSION waits for one reply only; several are listed.
    """
    replying.reply(
        session,
        request,
        lambda client, found, _: client.deny(session, found, by=person(by), reason=reason),
        as_json=as_json,
    )
