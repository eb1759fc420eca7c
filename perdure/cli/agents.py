"""``perdure agents``: what the workers have registered."""

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean
from perdure.store.records import RegisteredAgent


@click.command("agents")
@click.option("--json", "as_json", is_flag=True, help="One agent a line, as JSON.")
def command(*, as_json: bool) -> None:
    """List the agents that workers have registered in the store."""

    async def main() -> list[RegisteredAgent]:
        async with opened_store() as store:
            return list(await store.agents())

    agents = run(main())
    for agent in agents:
        if as_json:
            print_json(agent.model_dump(mode="json"))
            continue
        show(Line(f"{agent.name} · {agent.model} · seen {agent.seen_at:%Y-%m-%d %H:%M}", Tone.HEAD))
        if agent.description:
            show(Line(f"  {clean(' '.join(agent.description.split()))}"))
        show(Line(f"  tools: {', '.join(agent.tools) or 'none'}", Tone.QUIET))
    if not agents and not as_json:
        click.echo("no agents yet; start a worker with 'perdure dev --agents MODULE'")
