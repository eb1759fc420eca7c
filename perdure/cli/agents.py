"""``perdure agents``: what the workers have registered."""

import click

from perdure.cli.connection import opened_store, run
from perdure.cli.live import print_json, show
from perdure.cli.render import Line, Tone, clean
from perdure.contracts.agents import AgentDefinition
from perdure.store.records import RegisteredAgent


@click.command("agents")
@click.option("--json", "as_json", is_flag=True, help="One agent a line, as JSON.")
def command(*, as_json: bool) -> None:
    """List the agents that workers have registered in the store."""

    async def main() -> list[tuple[RegisteredAgent, AgentDefinition]]:
        async with opened_store() as store:
            return [(agent, await store.definition(agent.definition)) for agent in await store.agents()]

    agents = run(main())
    for agent, definition in agents:
        if as_json:
            called = {"label": definition.label, "tags": list(definition.tags)}
            print_json({**agent.model_dump(mode="json"), **called})
            continue
        label = f" ({clean(definition.label)})" if definition.label else ""
        show(Line(f"{agent.name}{label} · {agent.model} · seen {agent.seen_at:%Y-%m-%d %H:%M}", Tone.HEAD))
        if agent.description:
            show(Line(f"  {clean(' '.join(agent.description.split()))}"))
        if definition.tags:
            show(Line(f"  tags: {clean(', '.join(definition.tags))}", Tone.QUIET))
        show(Line(f"  tools: {', '.join(agent.tools) or 'none'}", Tone.QUIET))
    if not agents and not as_json:
        click.echo("no agents yet; start a worker with 'perdure dev --agents MODULE'")
