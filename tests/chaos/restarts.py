"""``python -m tests.chaos.restarts``: one wait for a turn's end, through ten restarts of the Temporal server.

Too slow for the tests, which sit out one: each wait is longer than the ten seconds for which the SDK repeats a call.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
import pytest
import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider
from tests.house import House, become_a_user
from tests.workflow.asking import COLOUR, DONE, asker, waiting

RESTARTS = 10
OPEN_SECONDS = 12.0


async def main() -> int:
    """Exits with 1 if the wait ends before the turn, or in an error."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-restarts-"))
    options = ServerOptions(port=find_free_port(), db=folder / "temporal.db")
    with pytest.MonkeyPatch.context() as environment:
        async with EmbeddedServer(options) as server:
            become_a_user(environment, server.address)
            temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
            async with House.built(
                name="restarts", server=server, temporal=temporal, environment=environment, folder=folder
            ) as house:
                return await _wait_through(house)


async def _wait_through(house: House) -> int:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        (request,) = await waiting(house)
        result = asyncio.create_task(turn.result())
        for number in range(1, RESTARTS + 1):
            done, _ = await asyncio.wait({result}, timeout=OPEN_SECONDS)
            if done:
                click.echo(f"restart {number - 1}: {result.exception() or result.result()}")
                return 1
            began = time.monotonic()
            os.kill(house.server.pid or 0, signal.SIGKILL)
            await house.server.wait()
            await house.server.start()
            click.echo(f"restart {number}: back after {time.monotonic() - began:.1f} s, still waiting")
        await house.client.answer(house.session, request["request_id"], "red", by="ann")
        click.echo(f"result after {RESTARTS} restarts: {(await result).output}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
