"""A fleet under load: workers and gateways that are replaced one after the other, and then killed at random.

``python -m tests.chaos.storm --minutes 10`` says at the end what became of every job. A seed decides what is killed and
when; what runs at that moment is up to the machine.
"""

import asyncio
import random
import sys
import tempfile
from pathlib import Path

import click

from perdure.testing import ChatRequest, Reply, call, faults, say
from tests.chaos.fleet import Fleet

STEPS = 6
"""Answers of the model in each turn; the last one is the text."""


def model(request: ChatRequest) -> Reply:
    """Each third job pays, each third one puts, each third one does both at once; now and then the provider refuses."""
    prompt = next(str(message["content"]) for message in request.messages if message["role"] == "user")
    job, at = int(prompt.split()[-1]), request.index
    if at % STEPS == STEPS - 1:
        return say(f"done {job}").after(faults.delay(0.05))
    pay, put = ("pay", {"amount": at}), ("put", {"text": str(at)})
    reply = call(*((pay,), (put,), (pay, put, pay))[(job + at) % 3])
    if (job + at) % 7 == 0:
        reply = reply.after(faults.status(503))
    if (job, at) == (7, 3):  # once: a limited key slows the calls of all
        reply = reply.after(faults.status(429, headers={"retry-after": "0.2"}))
    return reply.after(faults.delay(0.2)) if (job + at) % 2 else reply


async def storm(folder: Path, *, seconds: float, at_once: int, seed: int) -> tuple[str, list[str]]:
    """A rolling restart and then the kills, all under load; a summary, and what was broken."""
    async with Fleet.running(folder, model, "tests.chaos.agents") as fleet:
        enough = asyncio.Event()
        loading = asyncio.create_task(fleet.load(at_once, enough))
        try:
            codes = await fleet.replace_all()
            await fleet.kill_at_random(seconds, random.Random(seed))
            enough.set()
            await loading
        finally:
            enough.set()
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
        broken = [said async for said in fleet.broken()]
        if any(codes):
            broken.append(f"the rolling restart ended processes with {codes}")
        return await fleet.summary(), broken


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="How long processes are killed.")
@click.option("--jobs", default=12, show_default=True, help="How many run at once.")
@click.option("--seed", default=1, show_default=True, help="Decides what is killed and when.")
def main(minutes: float, jobs: int, seed: int) -> None:
    """Load a fleet, restart it and kill it; exits with 1 if a job was lost, doubled or broken."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-storm-"))
    click.echo(f"logs: {folder}")
    said, broken = asyncio.run(storm(folder, seconds=minutes * 60, at_once=jobs, seed=seed))
    for line in broken:
        click.echo(f"  {line}")
    click.echo(f"{said}\n" + (f"{len(broken)} BROKEN" if broken else "nothing lost, nothing doubled"))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
