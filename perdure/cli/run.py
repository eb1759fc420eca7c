"""``perdure run``: start a turn and follow it live."""

from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

from perdure.cli.attached import attachments, read_attached
from perdure.cli.connection import connected, run
from perdure.cli.history import read_history
from perdure.cli.live import Printer, detach, follow, only_types, refuse_types, type_names, with_tree
from perdure.cli.prompts import PROMPT
from perdure.cli.turn_context import on_behalf_of
from perdure.client import TurnOptions
from perdure.contracts.budgets import Budgets
from perdure.contracts.events import Names
from perdure.contracts.values import JsonValue

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class Dollars(click.ParamType[Decimal]):
    """An amount of US dollars above zero."""

    name = "usd"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Read the amount exactly as it was written."""
        try:
            amount = Decimal(str(value))
        except InvalidOperation:
            amount = Decimal(0)
        if not (amount.is_finite() and amount > 0):
            self.fail(f"{value!r} is not an amount above zero, for example 0.50", param, ctx)
        return amount


@click.command("run")
@click.argument("agent")
@click.argument("prompt", type=PROMPT)
@click.option("--session", metavar="ID", help="The session; without it, a new one.")
@click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON.")
@only_types
@type_names
@with_tree
@click.option("--detach", "detached", is_flag=True, help="Print session and turn, and return at once.")
@click.option("--history", "path", type=FILE, metavar="FILE", help="A conversation that the new session begins with.")
@on_behalf_of
@click.option("--tenant", default="", metavar="NAME", help="On whose behalf the turn runs.")
@click.option("--model", metavar="NAME", help="Another model for this turn, as provider/model.")
@click.option("--recording", metavar="NAME", help="The recording that a recording or replaying worker uses.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Another step limit for this turn.")
@click.option("--max-cost-usd", type=Dollars(), metavar="X", help="What this turn may cost.")
@attachments
@click.pass_context
def command(  # noqa: PLR0913  # one for each option of the command line
    ctx: click.Context,
    *,
    agent: str,
    prompt: str,
    session: str | None,
    as_json: bool,
    types: tuple[str, ...],
    names: Names,
    tree: bool,
    detached: bool,
    attached: tuple[Path, ...],
    path: Path | None,
    data: dict[str, JsonValue] | None,
    by: str,
    tenant: str,
    model: str | None,
    recording: str | None,
    max_steps: int | None,
    max_cost_usd: Decimal | None,
) -> None:
    """Start a turn of AGENT with PROMPT and follow it to its end; - reads the prompt from stdin, @FILE from a file.

    Ctrl+C cancels the turn; a second one within three seconds quits at once.
    """
    if detached:
        refuse_types(types, "--detach")
    printer = Printer(as_json=as_json, types=types, names=names)
    content = read_attached(prompt, attached)
    options = TurnOptions(model=model, max_steps=max_steps, recording=recording, context=data, tenant=tenant, by=by)
    if path is not None:
        options["history"] = read_history(path)
    if max_cost_usd is not None:
        options["budgets"] = Budgets(cost_usd=max_cost_usd)

    async def main() -> int:
        async with connected() as client:
            await client.check_worker()
            turn = await client.start(agent, content, session=session, **options)
            if detached:
                return await detach(turn, as_json=as_json)
            return await follow(turn, printer, cancels=True, client=client, tree=tree)

    ctx.exit(run(main()))
