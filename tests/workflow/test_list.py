"""``perdure list`` after a job with a delegate."""

import asyncio
import json

from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.testing import ScriptedProvider, say
from tests.house import House
from tests.workflow.delegating import DONE, agent, asks, in_order, played


async def listed(*arguments: str) -> list[str]:
    """The sessions that the command prints; a command runs a loop of its own."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["list", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return [json.loads(line)["session"] for line in result.stdout.splitlines()]


async def test_a_list_has_delegates_alone_all_of_them_or_none(house: House) -> None:
    """S-62: a delegate's session is one of its caller's."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("1"))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        await house.run()
    everything = await listed()
    below = await listed("--caller", house.session)
    assert len(below) == 1
    assert below[0].startswith(f"{house.session}.helper~d")
    assert everything == [*below, house.session]
    assert await listed("--no-delegates") == [house.session]
    assert await listed("--caller", below[0]) == await listed("--caller", house.session, "--no-delegates") == []
