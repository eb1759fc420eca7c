"""``perdure fork``: a new session from a step of another one."""

from typing import Unpack

import click

from perdure.cli.attached import read_attached
from perdure.cli.connection import run
from perdure.cli.prompts import PROMPT
from perdure.cli.resuming import Told, go_on, resuming


@click.command("fork")
@click.argument("session")
@click.argument("prompt", default="", type=PROMPT)
@click.option("--as", "into", metavar="ID", help="The new session; without it, a new id.")
@resuming
@click.pass_context
def command(ctx: click.Context, *, session: str, prompt: str, into: str | None, **told: Unpack[Told]) -> None:
    """Begin a new session from a step of SESSION, and follow its first turn to its end.

    SESSION stays as it is; it may even run. Without PROMPT the model goes on with what stands at that step, with
    another model or limit if you like. Nothing is copied, and calls that have run never run again.
    """
    at, turn, content = told["at"], told["turn"], read_attached(prompt, told["attached"])
    ctx.exit(
        run(go_on(told, lambda client, options: client.fork(session, content, at=at, turn=turn, into=into, **options)))
    )
