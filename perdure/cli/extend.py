"""``perdure extend``: other limits for the turn of a session that runs."""

from collections.abc import Mapping

import click

from perdure.cli.connection import connected, run
from perdure.cli.live import print_json
from perdure.contracts.turns import BudgetStatus


@click.command("extend")
@click.argument("session")
@click.option("--max-steps", "max_steps", type=int, metavar="N", help="Generations.")
@click.option("--max-cost-usd", "cost_usd", metavar="X", help="US dollars.")
@click.option("--max-llm-calls", "llm_calls", type=int, metavar="N", help="Model answers.")
@click.option("--max-tool-calls", "tool_calls", type=int, metavar="N", help="Tool calls.")
@click.option("--max-behavior-calls", "behavior_calls", type=int, metavar="N", help="Delegates and hooks called.")
@click.option("--max-events", "events", type=int, metavar="N", help="Answers, and results of calls.")
@click.option("--max-seconds", "seconds", type=float, metavar="S", help="Time since the turn began.")
@click.option("--max-patches", "patches", type=int, metavar="N", help="Changes of todos and other state.")
@click.option("--max-depth", "depth", type=int, metavar="N", help="Levels of delegates.")
@click.option("--turn", type=click.IntRange(min=1), metavar="N", help="Only if turn N is the one that runs.")
@click.option("--end", is_flag=True, help="Also if a limit is used up already, so that the turn ends.")
@click.option("--json", "as_json", is_flag=True, help="The limits and what is used, as JSON.")
def command(*, session: str, turn: int | None, end: bool, as_json: bool, **limits: object) -> None:
    """Set limits of the running turn of SESSION, each as a whole; those that are not named stay.

    A limit may be lower than before. One that is used up already is refused without --end.
    """
    named = {name: value for name, value in limits.items() if value is not None}

    async def main() -> BudgetStatus:
        async with connected(store=False) as client:
            return await client.extend(session, turn=turn, end=end, **named)  # type: ignore[arg-type] # checked there

    status = run(main())
    if as_json:
        print_json(status.model_dump(mode="json"))
    else:
        click.echo(f"session {session}: {', '.join(_limits(status, named))}")


def _limits(status: BudgetStatus, named: Mapping[str, object]) -> list[str]:
    """The new limits with what is used of each."""
    used = {**dict(status.spent), "max_steps": status.steps}
    limits = {**dict(status.limits), "max_steps": status.max_steps}
    return [
        f"{name} {limits[name]}" + (f" ({used[name]} used)" if name in used else "") for name in limits if name in named
    ]
