"""``perdure resume``: a session goes on from its end, or from an earlier step."""

from typing import Unpack

import click

from perdure.cli.attached import read_attached
from perdure.cli.connection import run
from perdure.cli.prompts import PROMPT
from perdure.cli.resuming import Told, go_on, resuming


@click.command("resume")
@click.argument("session")
@click.argument("prompt", default="", type=PROMPT)
@resuming
@click.pass_context
def command(ctx: click.Context, *, session: str, prompt: str, **told: Unpack[Told]) -> None:
    """Go on with SESSION where its last turn stopped, and follow the new turn to its end.

    Without PROMPT the model goes on with what stands at the end of the conversation, such as the results of its calls
    after `max_steps_reached`. With --turn and --at the session goes back to that place first: what came after stays
    stored, and leaves the conversation. --turn 0 is before the first message. Calls that have run never run again.
    """
    at, turn, content = told["at"], told["turn"], read_attached(prompt, told["attached"])
    ctx.exit(run(go_on(told, lambda client, options: client.resume(session, content, at=at, turn=turn, **options))))
