"""``python -m tests.chaos``: meet so many seeded faults, and say how to meet one of them again."""

import asyncio
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from tests.chaos.faults import Fault, Kind, everywhere
from tests.chaos.run import Chaos, Verdict, summary
from tests.chaos.scenarios import SCENARIOS


@click.command()
@click.option("--faults", default=200, show_default=True, help="How many; the seeds follow each other.")
@click.option("--seed", default=1, show_default=True, help="Of the first fault.")
@click.option(
    "--fault", "texts", multiple=True, help="A fault by itself, as a difference is reported; may be repeated."
)
@click.option(
    "--every",
    type=click.Choice([kind.value for kind in Kind]),
    help="This kind at every boundary of every scenario instead.",
)
@click.option("--scenario", "scenarios", type=click.Choice(sorted(SCENARIOS)), multiple=True, help="Only these.")
def main(faults: int, seed: int, texts: tuple[str, ...], every: str | None, scenarios: tuple[str, ...]) -> None:
    """Kill and compare: exits with 1 if a job did not end as the undisturbed one."""
    given = [Fault.parse(text) for text in texts]
    sys.exit(asyncio.run(_main(range(seed, seed + faults), given, every, scenarios or tuple(SCENARIOS))))


async def _main(seeds: range, given: list[Fault], every: str | None, scenarios: tuple[str, ...]) -> int:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    async with Chaos.set_up(folder) as chaos:
        await chaos.calm_down({fault.scenario for fault in given} or scenarios)
        if every is not None:
            given = everywhere(Kind(every), chaos.reached())
        named = {str(number): fault for number, fault in enumerate(given, start=1)}
        if not named:
            named = {f"seed {number}": chaos.fault_of(number) for number in seeds}
        click.echo(f"{len(named)} faults, for {len(chaos.calm)} jobs")
        verdicts = await chaos.storm(named, _teller(len(named)))
    click.echo("\n" + summary(verdicts, time.monotonic() - began))
    different = [verdict for verdict in verdicts if verdict.broken]
    if not different:
        await asyncio.to_thread(shutil.rmtree, folder)
        return 0
    click.echo(f"logs and traces of these sessions: {folder}")
    for verdict in different:
        click.echo(f"once more: {sys.executable} -m tests.chaos --fault '{verdict.fault}'")
    return 1


def _teller(total: int) -> Callable[[Verdict], None]:
    numbers = itertools.count(1)

    def tell(verdict: Verdict) -> None:
        click.echo(f"[{next(numbers):>{len(str(total))}}/{total}] {verdict.line()}")
        for broken in verdict.broken:
            click.echo(f"    {broken}")

    return tell


if __name__ == "__main__":
    main()
