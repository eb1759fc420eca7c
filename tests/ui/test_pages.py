"""What an operator finds in the Temporal UI: of each job its state and its cause, in words, without any other tool."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ui.browser import Page
from tests.ui.jobs import SCRIPTS, Jobs

pytestmark = pytest.mark.deep

GUIDE = (Path(__file__).parents[2] / "docs/temporal-ui.md").read_text(encoding="utf-8")

LIMITED = (
    "step 2, openai/retrying: the provider limits the rate of requests (HTTP 429): "
    "Rate limit reached for requests per minute [requests]; retry 1 of 3 in 1800.0 s"
)
REFUSED_KEY = (
    "step 2, openai/model-error: the provider refused the key or what it may use (HTTP 401): Incorrect API key "
    "provided [invalid_api_key]; set a valid one in the worker's environment and start it again, or have the provider "
    "allow the model"
)
CLOSED_ACCOUNT = (
    "step 1, tool charge: PermissionError: A-17 of <class 'Owner'> is __closed__; it ended the turn, because the "
    "tool's catch does not list it and the agent's on_tool_error is 'abort'"
)
TOO_LONG = (
    "step 2, openai/too-long: the conversation is longer than the model's context window, and no more of it can be "
    "summarised (HTTP 400): This model's maximum context length is "
)
WRONG_JSON = (
    "step 2, openai/wrong-json: the answer does not fit the schema of the agent's output: at $.river: 2 is not of "
    "type 'string'."
)
BUDGET = "the turn's budget of model calls is used up: 2 of 2 model calls"


@dataclass(frozen=True)
class Shown:
    """What the views of a job's page show: as the result, in the current details, and of what is pending."""

    status: str
    result: tuple[str, ...] = ("Results will appear upon completion",)
    details: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


def ended(reason: str, code: str | None, sentence: str | None, *, steps: str, why: str = "") -> Shown:
    """A turn with this result; ``why`` is what the current details say of an end without an error."""
    named = "null" if code is None else f'"{code}"'
    told = "null" if sentence is None else f'"{sentence}"'
    headline = f"ended: {reason}" + (f" · {code}" if code else "")
    attributes = (f'"PerdureStopReason": "{reason}"', *([f'"PerdureReasonCode": {named}'] if code else []))
    return Shown(
        "COMPLETED",
        result=(f'"stop_reason": "{reason}"', f'"reason_code": {named}', f'"error": {told}'),
        details=(headline, sentence or why, steps),
        attributes=('"PerdureState": "ended"', *attributes),
    )


RUNNING = ('"PerdureState": "running"',)

SHOWN: dict[str, Shown] = {
    "running": Shown(
        "RUNNING",
        details=("now: tools: held, since ", " UTC", "2 of 20 steps · 36 tokens", "turn 1 of agent running"),
        pending=("STARTED held", "Attempt 1 /", "Last Heartbeat", "Last Worker Identity"),
        attributes=RUNNING,
    ),
    "retrying": Shown(
        "RUNNING",
        details=("now: generate, step 2, since ", "1 of 1000 steps"),
        pending=("SCHEDULED generate", "Attempt 2 /", "Next Retry", LIMITED, "llm.rate_limited"),
        attributes=RUNNING,
    ),
    "finished": ended("finished", None, None, steps="2 of 1000 steps"),
    "model-error": ended("error", "llm.auth_error", REFUSED_KEY, steps="1 of 1000 steps"),
    "tool-error": ended("error", "tool.execution_error", CLOSED_ACCOUNT, steps="1 of 1000 steps"),
    "too-long": Shown(
        "COMPLETED",
        result=('"stop_reason": "error"', '"reason_code": "llm.context_overflow"', TOO_LONG),
        details=("ended: error · llm.context_overflow", TOO_LONG, "1 of 1000 steps"),
        attributes=('"PerdureReasonCode": "llm.context_overflow"',),
    ),
    "wrong-json": ended("error", "llm.schema_violation", WRONG_JSON, steps="2 of 1000 steps"),
    "compacted": ended("finished", None, None, steps="4 of 1000 steps"),
    "max-steps": ended(
        "max_steps_reached",
        None,
        None,
        steps="3 of 3 steps",
        why="all 3 steps are used; another message to the session goes on",
    ),
    "stalled": ended(
        "stalled",
        None,
        None,
        steps="2 of 1000 steps",
        why="the model answered with text and did not call done, which ends the work",
    ),
    "budget": ended("budget_exhausted", "budget.llm_calls_exhausted", BUDGET, steps="2 of 1000 steps"),
    "cancelled": ended("cancelled", "runtime.aborted", "Operation aborted: no longer needed", steps="1 of 1000 steps"),
    "killed": Shown(
        "RUNNING",
        details=("no Current Details beside this: no worker answers", "perdure show killed"),
        pending=("SCHEDULED generate", "Attempt 2 /", "Last Worker Identity", "activity Heartbeat timeout"),
        attributes=RUNNING,
    ),
}

ALSO = {
    "too-long": ("generate • step 2 · openai/too-long", "compact • step 2 · overflow_recovery"),
    "compacted": ("compact • step 4 · overflow_recovery", "generate • step 4 · openai/compacted"),
}
"""What else the timeline of a job shows."""

CALLS = {"tool-error": 'charge • {"account": "A-17"}'}
"""The first tool call in the timeline of a job whose first tool is not ``lookup``."""


def test_every_job_is_described() -> None:
    assert set(SHOWN) == set(SCRIPTS)


@pytest.mark.parametrize("job", SHOWN)
async def test_the_page_of_a_job_names_its_cause(jobs: Jobs, page: Page, job: str) -> None:
    shown = SHOWN[job]
    await page.go(jobs.page(job, "history"))
    await page.shows(
        f"{shown.status} {job}",
        *shown.result,
        f"Summary step 1 · openai/{job}",
        CALLS.get(job, 'lookup • {"city": "Lyon"}').replace(" • ", " Summary "),
    )
    await page.picture(f"{job}-history")
    await page.go(jobs.page(job, "timeline"))
    last = shown.details[0].removeprefix("ended: ")
    await page.shows(
        f"generate • step 1 · openai/{job}",
        CALLS.get(job, 'lookup • {"city": "Lyon"}'),
        f"commit_turn • {last}" if shown.status == "COMPLETED" else "Results will appear",
        *ALSO.get(job, ()),
    )
    await page.picture(f"{job}-timeline")
    await page.go(jobs.page(job, "user-metadata"))
    await page.shows(*shown.details, f"perdure show {job}")
    await page.picture(f"{job}-details")
    await page.go(jobs.page(job, "search-attributes"))
    await page.shows(
        f'"PerdureAgent": "{job}"', f'"PerdureModel": "openai/{job}"', '"PerdureTenant": "acme"', *shown.attributes
    )
    await page.picture(f"{job}-attributes")
    if shown.pending:
        await page.go(jobs.page(job, "pending-activities"))
        await page.shows(*shown.pending)
        await page.picture(f"{job}-pending")


@pytest.mark.parametrize(
    ("job", "texts"),
    [
        (
            "refused",
            (
                "COMPLETED refused",
                "request.unknown_agent",
                "no worker that polls has an agent 'nobody'; this",
            ),
        ),
        ("malformed", ("FAILED malformed", "the input is no turn request: prompt: is needed", "request.invalid")),
    ],
)
async def test_a_job_that_never_began_says_why(jobs: Jobs, page: Page, job: str, texts: tuple[str, ...]) -> None:
    await page.go(jobs.page(job, "history"))
    await page.shows(*texts)
    await page.picture(f"{job}-history")


FOUND: dict[str, set[str]] = {
    'PerdureState = "running" AND ExecutionStatus = "Running"': {"running", "retrying", "killed"},
    'PerdureStopReason = "error"': {"model-error", "tool-error", "too-long", "wrong-json"},
    'PerdureReasonCode = "llm.auth_error"': {"model-error"},
    'PerdureReasonCode STARTS_WITH "tool."': {"tool-error"},
    'PerdureStopReason IN ("max_steps_reached", "budget_exhausted", "stalled")': {"max-steps", "budget", "stalled"},
    'PerdureStopReason = "cancelled"': {"cancelled"},
    'PerdureAgent = "finished" AND PerdureTenant = "acme"': {"finished"},
    "PerdureTokens >= 100": {"wrong-json", "compacted"},
    'WorkflowType = "AgentTurn" AND PerdureState IS NULL AND ExecutionStatus = "Completed"': {"refused"},
    'WorkflowType = "AgentTurn" AND ExecutionStatus = "Failed"': {"malformed"},
}
"""The queries of the guide, and the jobs that each finds."""


def test_the_queries_of_the_guide_are_tried() -> None:
    assert re.findall(r"^\| [^|]+ \| `((?:Perdure|WorkflowType)[^|`]+)` \|$", GUIDE, re.MULTILINE) == list(FOUND)


@pytest.mark.parametrize("query", FOUND)
async def test_the_list_shows_what_a_query_of_the_guide_finds(jobs: Jobs, page: Page, query: str) -> None:
    async def listed() -> bool:
        links = " ".join(await page.links())
        return {job for job, run in jobs.runs.items() if run in links} == FOUND[query]

    await page.go(jobs.found(query))
    await page.shows(*FOUND[query])
    await page.wait(listed)
    await page.picture("list-" + re.sub(r"\W+", "-", query).strip("-"))
