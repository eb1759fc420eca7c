"""``python -m benchmarks.sealing``: what the keys of sessions cost, in milliseconds and bytes of a step in the store.

Sessions with and without keys take turns in one run. A step is an answer with one call and its result of 2 KB.
"""

import argparse
import asyncio
import base64
import json
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import NewEvent, ToolEnd, ToolStart
from perdure.contracts.generations import Generate
from perdure.contracts.messages import AssistantMessage, ToolCall, ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.security.keyring import Keyring
from perdure.store import LedgerCall, StepRecord, Store

AGENT = AgentDefinition(name="bench", model="test/model")
RESULT = "x" * 2_000


async def one_step(store: Store, session: str, parent: str, step: int, before: tuple[str, ...]) -> str:
    """A generation and its call, as a turn makes them."""
    request = Generate(session=session, turn=1, step=step, parent=parent, definition=AGENT.digest(), call_ids=before)
    begun = await store.begin_generation(request, [])
    call, arguments = f"call-{step}", '{"path": "/some/where"}'
    said = AssistantMessage(content="I look.", tool_calls=(ToolCall(id=call, name="look", arguments=arguments),))
    record = StepRecord(
        id=request.step_id(),
        session=session,
        turn=1,
        step=step,
        parent=parent,
        messages=(*begun.results, said),
        calls=(PlannedCall(call_id=call, tool="look"),),
    )
    await store.finish_generation(record, [LedgerCall(call_id=call, tool="look", arguments=arguments)], [])
    started = ToolStart(call_id=call, tool="look", arguments=arguments)
    ended = ToolEnd(call_id=call, tool="look", result=RESULT[:500], seconds=0)
    begins = NewEvent(key=f"1/{call}/start", turn=1, step=step, event=started)
    await store.claim_call(session=session, turn=1, call_id=call, claimant="bench/1", events=[begins])
    await store.finish_call(
        session=session,
        turn=1,
        call_id=call,
        claimant="bench/1",
        message=ToolMessage(call_id=call, name="look", content=RESULT),
        events=[NewEvent(key=f"1/{call}/end", turn=1, step=step, event=ended)],
    )
    return record.id


async def milliseconds(store: Store, session: str, steps: int) -> float:
    """Of one step of a session."""
    opening = OpenTurn(session=session, request=Continuation(prompt="go"), request_id="r", run_started_at=_now())
    parent = (await store.open_turn(opening, AGENT)).tip
    before: tuple[str, ...] = ()
    began = time.monotonic()
    for step in range(1, steps + 1):
        parent = await one_step(store, session, parent, step, before)
        before = (f"call-{step}",)
    return (time.monotonic() - began) / steps * 1000


def _now() -> datetime:
    return datetime.now(UTC)


async def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    keyring = Keyring.parse(f"k1:{base64.b64encode(os.urandom(32)).decode()}")
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.db" for name in ("plain", "sealed")}
        async with (
            await Store.open(f"sqlite:///{files['plain']}", upgrade=True) as plain,
            await Store.open(f"sqlite:///{files['sealed']}", upgrade=True, keyring=keyring) as sealed,
        ):
            times: dict[str, list[float]] = {"plain": [], "sealed": []}
            for number in range(asked.rounds):
                for name, store in (("plain", plain), ("sealed", sealed)):
                    times[name].append(await milliseconds(store, f"s{number}", asked.steps))
        for name, file in files.items():
            size = file.stat().st_size / asked.steps / asked.rounds
            figures[name] = {"ms_per_step": round(statistics.median(times[name]), 3), "bytes_per_step": round(size)}
    print(json.dumps(figures, indent=2))  # noqa: T201 - a command


if __name__ == "__main__":
    asyncio.run(main())
