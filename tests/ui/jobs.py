"""Jobs as an operator finds them, each in another state or ended for another cause; and two that never began."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from perdure import Agent, Budgets, Compaction, RetryPolicy, tool
from perdure.client import Client
from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Answers
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.bodies import Body, happened

RETRY = RetryPolicy(max_retries=3, max_time=timedelta(hours=1), jitter=timedelta(0))
PROMPT = "Where does Lyon lie?\nAnd where Nantes?"
WAIT = {"retry-after": "1800"}
RIVER = {"type": "object", "properties": {"river": {"type": "string"}}}
LIMIT = "Rate limit reached for requests per minute"


@tool
def lookup(city: str) -> str:
    """Look a city up."""
    return f"{city} lies at a river"


@tool
def charge(account: str) -> str:
    """Charge an account."""
    msg = f"{account} of <class 'Owner'> is __closed__"  # as it stands there, and no markup
    raise PermissionError(msg)


@tool
def done() -> str:
    """The task is done."""
    return "done"


def looking_up(*after: Reply) -> Script:
    """A first step with a tool call, and then these answers."""
    return Script(replies=(call(("lookup", {"city": "Lyon"}), text="Let me see."), *after))


def outgrown(request: ChatRequest) -> Reply:
    """Three tool calls, then a refusal until the conversation is shorter."""
    first = str(request.messages[0]["content"])
    if first.startswith("You summarise"):
        return say("<summary>Lyon lies at a river.</summary>")
    if first.startswith("[Summary"):
        return say("Lyon lies at two rivers.")
    if request.index < 3:
        return call(("lookup", {"city": "Lyon"}))
    return say("").after(faults.context_overflow())


SCRIPTS: dict[str, Answers] = {
    "running": looking_up(call(("held", {}))),
    "retrying": looking_up(say("").after(faults.error(429, LIMIT, "requests").model_copy(update={"headers": WAIT}))),
    "finished": looking_up(say("Lyon lies at two rivers.")),
    "model-error": looking_up(say("").after(faults.error(401, "Incorrect API key provided", name="invalid_api_key"))),
    "tool-error": Script(replies=(call(("charge", {"account": "A-17"})),)),
    "too-long": looking_up(say("").after(*[faults.context_overflow()] * 9)),
    "wrong-json": looking_up(say('{"river": 2}')),
    "compacted": outgrown,
    "max-steps": Script(replies=looking_up().replies, repeat=True),
    "stalled": looking_up(say("I think that is all.")),
    "budget": Script(replies=looking_up().replies, repeat=True),
    "cancelled": looking_up(say("").after(faults.hang())),
    "killed": looking_up(say("").after(faults.hang())),
}
"""The model of each job."""


def agents(body: Body) -> list[Agent]:
    """The agent of each job but the one whose worker is killed."""
    changes: dict[str, dict[str, Any]] = {
        "running": {"tools": [lookup, body.held()], "max_steps": 20},
        "retrying": {"retry": RETRY},
        "tool-error": {"tools": [charge]},
        "wrong-json": {"output_schema": RIVER},
        "compacted": {"compaction": Compaction(keep=2)},
        "max-steps": {"max_steps": 3},
        "stalled": {"tools": [lookup, done], "finish_tool": "done"},
        "budget": {"budgets": Budgets(llm_calls=2)},
    }
    return [
        Agent(name=name, model=f"openai/{name}", **{"tools": [lookup], **changes.get(name, {})})
        for name in SCRIPTS
        if name != "killed"
    ]


ENDING = (
    "finished",
    "model-error",
    "tool-error",
    "too-long",
    "wrong-json",
    "compacted",
    "max-steps",
    "stalled",
    "budget",
    "refused",
)
"""The jobs that end by themselves."""

killed = Agent(name="killed", model="openai/killed", tools=[lookup])
"""Found by the worker that is killed."""


@dataclass(frozen=True)
class Jobs:
    """The prepared jobs: their ids are their names."""

    house: House
    runs: dict[str, str]

    def page(self, job: str, view: str) -> str:
        """The address of a view of a job."""
        return f"{self.house.server.ui_url}/namespaces/default/workflows/{job}/{self.runs[job]}/{view}"

    def found(self, query: str) -> str:
        """The address of the list of the jobs that a query finds."""
        return f"{self.house.server.ui_url}/namespaces/default/workflows?{urlencode({'query': query})}"


@asynccontextmanager
async def prepared(house: House) -> AsyncIterator[Jobs]:
    """The jobs, each where an operator finds it."""
    body = Body()
    async with ScriptedProvider(models=SCRIPTS) as provider:
        house.use(provider)
        async with house.worker(*agents(body)):
            for name in SCRIPTS:
                if name != "killed":
                    await _start(house.client, name)
            await _start_raw(house, "refused", {"agent": "nobody", "prompt": PROMPT})
            await _malformed(house, "malformed")
            await asyncio.gather(
                happened(body.started),
                _fails(house, "retrying", 1),
                _kill_the_worker_of(house, "killed"),
                _cancel(house, "cancelled"),
                *(_ends(house, name) for name in ENDING),
            )
            names = (*SCRIPTS, "refused", "malformed")
            runs = {name: (await house.temporal.get_workflow_handle(name).describe()).run_id for name in names}
            try:
                yield Jobs(house, runs)
            finally:
                for name in ("running", "retrying"):
                    await house.client.cancel(name)
                    await _ends(house, name)


async def _start(client: Client, name: str) -> None:
    await client.start(name, PROMPT, session=name, tenant="acme")


async def _start_raw(house: House, name: str, request: dict[str, str]) -> WorkflowHandle[Any, Any]:
    """Start a job the way another service does."""
    return await house.temporal.start_workflow(AGENT_TURN, request, id=name, task_queue=house.settings.task_queue)


async def _malformed(house: House, name: str) -> None:
    """Start a job with a slip of the pen."""
    handle = await _start_raw(house, name, {"promt": PROMPT})
    with pytest.raises(WorkflowFailureError):
        await handle.result()


async def _kill_the_worker_of(house: House, name: str) -> None:
    """Run the job on a queue of its own, whose only worker is killed while the model is asked."""
    queue = house.settings.model_copy(update={"task_queue": f"queue-of-{name}"})
    worker = house.spawn_worker("tests.ui.jobs", PERDURE_TASK_QUEUE=queue.task_queue)
    await worker.polling()
    await _start(Client(house.temporal, queue), name)
    await _second_generation(house, name)
    worker.kill()
    await _fails(house, name, 1)


async def _cancel(house: House, name: str) -> None:
    """Cancel the job while the model is asked for the second time."""
    await _second_generation(house, name)
    await house.client.cancel(name, reason="no longer needed")
    await _ends(house, name)


async def _second_generation(house: House, name: str) -> None:
    async def begun() -> bool:
        events = [envelope.event.type for envelope in await house.store.events(name, after=0, limit=500)]
        return events.count("generation_start") == 2

    await eventually(begun)


async def _fails(house: House, name: str, count: int) -> None:
    """Wait until the pending activity of the job has failed so many times and is to be tried again."""

    async def failed() -> bool:
        described = await house.temporal.get_workflow_handle(name).describe()
        pending = described.raw_description.pending_activities
        return any(activity.attempt > count and activity.HasField("last_failure") for activity in pending)

    await eventually(failed)


async def _ends(house: House, name: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        await house.temporal.get_workflow_handle(name).result()
