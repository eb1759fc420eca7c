"""A provider that is away for longer than its retries last: the alert fires, and one command goes on with every job.

The rules, their windows and the interval between scrapes are those of deploy/; only the agent's patience is shorter.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.local_ports import find_free_port
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.faults.prometheus import program_or_skip, prometheus
from tests.house import House, eventually
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep

JOBS = 6
CODE = "llm.network_error"


def answer(request: ChatRequest) -> Reply:
    """A payment, and an answer whose first call hangs until the provider goes away; each job has its own prompt."""
    if request.messages[-1]["role"] == "user":
        return call(("pay", {}))
    return say("done").after(faults.hang())


async def test_what_an_outage_has_ended_is_alerted_and_resumed_by_one_command(fleet: House, tmp_path: Path) -> None:
    program_or_skip("prometheus")
    paid, address = tmp_path / "paid", f"127.0.0.1:{find_free_port()}"
    sessions = [f"{fleet.session}-{number}" for number in range(JOBS)]

    def payments() -> list[str]:
        return sorted(paid.read_text().split()) if paid.exists() else []

    async def outcomes(*more: str) -> tuple[int, dict[str, str]]:
        code, lines = await perdure("resume", "--all", "--reason-code", CODE, "--agent", "payer", *more)
        return code, {line["session"]: line["outcome"] for line in lines}

    async with ScriptedProvider(answer) as provider:
        fleet.use(provider)
        worker = fleet.spawn_worker("tests.faults.agents_for_outages", PAID=str(paid), PERDURE_METRICS_ADDRESS=address)
        await worker.polling()
        targets = {"perdure-worker": [address], "perdure-gateway": []}
        async with prometheus(tmp_path, targets, as_deployed=True) as watching:
            handles: list[Any] = [await fleet.start("payer", session, session=session) for session in sessions]
            await provider.wait_for_requests(2 * JOBS)
            await provider.refuse()
            ended = asyncio.gather(*(handle.result() for handle in handles))
            await watching.wait_for_alert("PerdureRetryStorm", model="openai/scripted")
            assert {(result["stop_reason"], result["reason_code"]) for result in await ended} == {("error", CODE)}
        await provider.accept()
        assert await outcomes("--dry-run", "--since", "1h") == (0, dict.fromkeys(sessions, "would_resume"))
        assert await outcomes("--since", "1h") == (0, dict.fromkeys(sessions, "resumed"))

        async def finished() -> bool:
            turns = [(await fleet.store.turns(session))[-1] for session in sessions]
            return all(turn.result is not None and turn.result.output == "done" for turn in turns)

        await eventually(finished)
        assert await outcomes() == (0, {})
    assert payments() == sorted(sessions), "no job has paid twice, or not at all"
