"""The list of sessions: filters that add up, and one documented JSON object a line."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.turns import StopReason
from perdure.store import Store
from tests.unit.store.given import HELPER, commit, opening

OTHER = AgentDefinition(name="assistant", model="test/other")
LIMITED = ErrorDetail(code=ReasonCode.LLM_RATE_LIMITED, title="generation", message="too fast")
KEYS = {
    *(
        "session",
        "tenant",
        "agent",
        "turn",
        "state",
        "job_status",
        "created_at",
        "updated_at",
        "started_at",
        "ended_at",
    ),
    *("stop_reason", "reason_code", "error", "stopped_by", "steps", "cost_usd", "waits_for"),
}


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, ["list", *args], prog_name="perdure")


def listed(*args: str) -> list[dict[str, Any]]:
    result = perdure("--json", *args)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def names(*args: str) -> list[str]:
    return [line["session"] for line in listed(*args)]


@pytest.fixture(autouse=True)
def _three_sessions(store_url: str) -> None:
    """One that failed, one of another agent that finished, and one that runs."""

    async def write() -> None:
        async with await Store.open(store_url, upgrade=True) as store:
            for name, definition in (("failed", HELPER), ("finished", OTHER), ("running", HELPER)):
                await store.open_turn(opening(session=name), definition)
            for name, reason, error in (
                ("failed", StopReason.ERROR, LIMITED),
                ("finished", StopReason.FINISHED, None),
            ):
                end = commit((await store.session(name)).tip or "", stop_reason=reason)
                await store.commit_turn(end.model_copy(update={"session": name, "error": error}))

    asyncio.run(write())


def test_without_a_filter_all_are_there_newest_first() -> None:
    assert names() == ["running", "finished", "failed"]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["--agent", "assistant"], ["finished"]),
        (["--state", "running"], ["running"]),
        (["--state", "ended"], ["finished", "failed"]),
        (["--stop-reason", "error"], ["failed"]),
        (["--reason-code", "llm.rate_limited"], ["failed"]),
        (["--reason-code", "llm.gpu_busy"], []),
        (["--reason-code", "exception.KeyError"], []),
        (["--since", "1h"], ["running", "finished", "failed"]),
        (["--since", "2999-01-01"], []),
        (["--limit", "2"], ["running", "finished"]),
        (["--agent", "helper", "--state", "ended", "--since", "2w", "--limit", "1"], ["failed"]),
    ],
)
def test_filters_add_up(args: list[str], found: list[str]) -> None:
    assert names(*args) == found


def test_since_takes_a_moment_in_any_zone() -> None:
    later = datetime.now(UTC) + timedelta(seconds=1)
    earlier = later - timedelta(minutes=1)
    assert names("--since", later.isoformat()) == []
    assert len(names("--since", earlier.astimezone().isoformat())) == 3
    assert len(names("--since", f"{earlier:%Y-%m-%dT%H:%M:%S}Z")) == 3


def test_json_has_every_field_whether_the_turn_has_ended_or_not() -> None:
    running, _, failed = listed()
    assert set(running) == set(failed) == KEYS
    assert (running["state"], running["stop_reason"], running["steps"], running["ended_at"]) == (
        "running",
        None,
        None,
        None,
    )
    assert (failed["state"], failed["stop_reason"], failed["reason_code"]) == ("ended", "error", "llm.rate_limited")
    assert failed["error"] == "too fast"
    assert (running["job_status"], failed["job_status"]) == ("running", "stoppedByError")


def test_a_line_for_people_names_the_reason() -> None:
    head, running, finished, failed = perdure().stdout.splitlines()
    assert head.split() == ["SESSION", "TURN", "STATE", "STEPS", "COST", "TOOK", "BEGAN", "AGENT", "PROMPT"]
    assert running.split()[:4] == ["running", "1", "running", "0"]
    assert finished.split()[:5] == ["finished", "1", "finished", "1", "$0.10"]
    assert failed.split()[:5] == ["failed", "1", "error", "(llm.rate_limited)", "1"]
    assert {row.index("helper") for row in (running, failed)} == {head.index("AGENT")}
    assert all(row[head.index("PROMPT") :] == "hello" for row in (running, finished, failed))


def test_nothing_found_is_said_and_is_no_error() -> None:
    result = perdure("--agent", "nobody")
    assert (result.exit_code, result.stdout) == (0, "no such sessions\n")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--reason-code", "llm.rate_limit"], "no reason code 'llm.rate_limit', did you mean 'llm.rate_limited'?"),
        (["--reason-code", "rate limit"], "there is no reason code 'rate limit'; 'perdure errors' lists them"),
        (["--since", "yesterday"], "'yesterday' is no time; give for example 30m"),
        (["--since", "99999w9"], "is no time"),
        (["--since", "999999w"], "is no time"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_a_filter_that_makes_no_sense_is_one_line_and_exit_2(args: list[str], part: str) -> None:
    result = perdure(*args)
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2
    assert part in line
