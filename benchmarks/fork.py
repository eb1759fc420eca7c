"""What a fork costs at the beginning and at the end of a long turn: ``python -m benchmarks.fork``.

Forks one turn of 200 steps at step 2 and at step 199, in turns, and prints the rows and the milliseconds of each. Ends
with 1 when the rows differ or the late fork takes more than twice as long.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import create_engine, text

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.generations import Generate
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.turns import CommitTurn, Continuation, OpenTurn, StopReason
from perdure.store import StepRecord, Store

STEPS = 200
PLACES = (2, STEPS - 1)
AGENT = AgentDefinition(name="forked", model="bench/model")
TABLES = ("sessions", "turns", "steps", "tool_calls", "events", "artifacts", "definitions")
SLOWER = 2.0
"""How much longer the late fork may take: single writes of a database vary more than that of a model's answer."""


def opening(session: str, request: Continuation) -> OpenTurn:
    """The request as the activity gets it."""
    return OpenTurn(session=session, request=request, request_id=session, run_started_at=datetime.now(UTC))


async def long_turn(store: Store) -> None:
    """The turn that is forked."""
    tip = (await store.open_turn(opening("long", Continuation(prompt="go")), AGENT)).tip
    for number in range(1, STEPS + 1):
        key = Generate(session="long", turn=1, step=number, parent=tip, definition=AGENT.digest())
        answer = AssistantMessage(content="x" * 2_000)
        step = StepRecord(id=key.step_id(), session="long", turn=1, step=number, parent=tip, messages=(answer,))
        tip = (await store.finish_generation(step, [], [])).id
    reason = StopReason.FINISHED
    await store.commit_turn(CommitTurn(session="long", turn=1, tip=tip, stop_reason=reason, steps=STEPS, spent=Spent()))


async def fork(store: Store, step: int, name: str) -> float:
    """The milliseconds of one fork."""
    origin = ResumeFrom(session="long", turn=1, step=step)
    began = time.perf_counter()
    await store.open_turn(opening(name, Continuation(prompt="go on", resume_from=origin)), AGENT)
    return (time.perf_counter() - began) * 1_000


def rows(address: str) -> int:
    """All rows of the store."""
    engine = create_engine(address)
    with engine.connect() as connection:
        count: int = sum(connection.execute(text(f"select count(*) from {table}")).scalar_one() for table in TABLES)
    engine.dispose()
    return count


async def measure(forks: int) -> dict[int, tuple[int, float]]:
    """Rows and median milliseconds of a fork, by its step."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{Path(folder) / 'store.db'}"
        async with await Store.open(address, upgrade=True) as store:
            await long_turn(store)
            written = {}
            for step in PLACES:
                before = rows(address)
                await fork(store, step, f"first-{step}")
                written[step] = rows(address) - before
            taken: dict[int, list[float]] = {step: [] for step in PLACES}
            for number in range(forks):
                for step in PLACES:  # one beside the other: what else the machine does meets both
                    taken[step].append(await fork(store, step, f"{number}-{step}"))
    return {step: (written[step], statistics.median(taken[step])) for step in PLACES}


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forks", type=int, default=200, help="forks at each place")
    found = asyncio.run(measure(parser.parse_args().forks))
    for step, (count, milliseconds) in found.items():
        sys.stdout.write(f"fork at step {step:>3} of {STEPS}: {count} rows, {milliseconds:.2f} ms\n")
    (early_rows, early), (late_rows, late) = found.values()
    sys.stdout.write(f"the late one takes {late / early:.2f} times as long\n")
    return int(early_rows != late_rows or late > early * SLOWER)


if __name__ == "__main__":
    sys.exit(main())
