"""``perdure send``: the next turn of a session, or a word into the running one."""

from pathlib import Path

import click

from perdure.cli.attached import attachments, read_attached
from perdure.cli.connection import connected, run
from perdure.cli.live import Printer, detach, follow, only_types, refuse_types, type_names, with_tree
from perdure.cli.prompts import PROMPT
from perdure.cli.turn_context import on_behalf_of
from perdure.contracts.events import Names
from perdure.contracts.values import JsonValue


@click.command("send")
@click.argument("session")
@click.argument("prompt", type=PROMPT)
@click.option("--steer", is_flag=True, help="Into the running turn, before its next model call.")
@on_behalf_of
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@only_types
@type_names
@with_tree
@click.option("--detach", "detached", is_flag=True, help="Print session and turn, and return at once.")
@attachments
@click.pass_context
def command(  # noqa: PLR0913  # one for each option of the command line
    ctx: click.Context,
    *,
    session: str,
    prompt: str,
    steer: bool,
    data: dict[str, JsonValue] | None,
    by: str,
    as_json: bool,
    types: tuple[str, ...],
    names: Names,
    tree: bool,
    detached: bool,
    attached: tuple[Path, ...],
) -> None:
    """Send PROMPT to SESSION and follow the turn that takes it; - reads the prompt from stdin, @FILE from a file.

    A busy session queues the message for its next turn. Ctrl+C cancels the turn; a second one within three
    seconds quits at once.
    """
    if detached:
        refuse_types(types, "--detach")
    printer = Printer(as_json=as_json, types=types, names=names)
    content = read_attached(prompt, attached)

    async def main() -> int:
        async with connected() as client:
            await client.check_worker()
            turn = await client.send(session, content, steer=steer, context=data, by=by)
            if detached:
                return await detach(turn, as_json=as_json)
            return await follow(turn, printer, cancels=True, client=client, tree=tree)

    ctx.exit(run(main()))
