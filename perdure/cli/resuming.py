"""What ``perdure resume`` and ``perdure fork`` have in common: the place to go on from, and what the turn is told."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import ParamSpec, TypedDict, TypeVar

import click

from perdure.cli.attached import attachments
from perdure.cli.connection import connected
from perdure.cli.live import Printer, detach, follow, only_types, refuse_types, type_names
from perdure.cli.run import Dollars
from perdure.client import Client, Turn
from perdure.client.requests import ResumeOptions
from perdure.contracts.budgets import Budgets
from perdure.contracts.events import Names

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONS = (
    click.option(
        "--at",
        type=click.IntRange(min=0),
        metavar="STEP",
        help="The step to go on from, with the results of its calls; without it, the turn's end.",
    ),
    click.option(
        "--turn", type=click.IntRange(min=0), metavar="N", help="The turn of that step; without it, the last one."
    ),
    click.option("--json", "as_json", is_flag=True, help="One event a line, as JSON."),
    only_types,
    type_names,
    click.option("--detach", "detached", is_flag=True, help="Print session and turn, and return at once."),
    click.option("--model", metavar="NAME", help="Another model for this turn, as provider/model."),
    click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Another step limit for this turn."),
    click.option("--max-cost-usd", type=Dollars(), metavar="X", help="What this turn may cost."),
    attachments,
)


class Told(TypedDict):
    """The values of the common options."""

    at: int | None
    turn: int | None
    as_json: bool
    types: tuple[str, ...]
    names: Names
    detached: bool
    model: str | None
    max_steps: int | None
    max_cost_usd: Decimal | None
    attached: tuple[Path, ...]


def resuming(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the common options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


async def go_on(told: Told, start: Callable[[Client, ResumeOptions], Awaitable[Turn]]) -> int:
    """Start the turn and follow it to its end; the exit code."""
    if told["detached"]:
        refuse_types(told["types"], "--detach")
    printer = Printer(as_json=told["as_json"], types=told["types"], names=told["names"])
    options = ResumeOptions(model=told["model"], max_steps=told["max_steps"])
    if told["max_cost_usd"] is not None:
        options["budgets"] = Budgets(cost_usd=told["max_cost_usd"])
    async with connected() as client:
        await client.check_worker()
        turn = await start(client, options)
        if told["detached"]:
            return await detach(turn, as_json=told["as_json"])
        return await follow(turn, printer, cancels=True, client=client)
