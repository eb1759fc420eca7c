"""Jobs as a person finds them on the gateway's page: running, waiting for people, failed, finished, with delegates."""

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from perdure import Agent, Budgets, Image, RetryPolicy, ask_user, caller_tool, todo, tool
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Answers
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.bodies import Body

HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
"""What a tool may return, and a page must show as it is."""

SOON = RetryPolicy(max_retries=3, base=timedelta(milliseconds=50), jitter=timedelta(0))
LATER = RetryPolicy(max_retries=8, max_time=timedelta(hours=1), base=timedelta(minutes=10), jitter=timedelta(0))
PROMPT = "Compare the rivers of Lyon and Nantes, and say which one floods more often."


@tool
def search(query: str) -> str:
    """Search the web."""
    return f"12 results for {query!r}: the Rhône at Lyon, the Loire at Nantes, and more"


@tool
def echo(text: str) -> str:
    """Give the text back."""
    return text


@tool(requires_approval=True)
def pay(account: str, amount: float) -> str:
    """Pay an amount."""
    return f"paid {amount} to {account}"


@tool
def draw(size: int) -> Image:
    """Draw a square."""
    return Image(png(size))


@tool
def charge(account: str) -> str:
    """Charge an account."""
    msg = f"account {account} is closed since 2024"
    raise PermissionError(msg)


LOOKUP = caller_tool("lookup", "Look a customer up.", {"type": "object", "properties": {"id": {"type": "integer"}}})


def png(size: int) -> bytes:
    """A blue square."""
    rows = (b"\0" + b"\x1f\x5f\x8b" * size) * size

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


THOUGHT = {"thinking_blocks": [{"type": "thinking", "thinking": "A square has four sides.", "signature": "s"}]}

WRITTEN = "The quick brown fox jumps over the lazy dog"

HELPER = Agent(name="geographer", model="openai/geographer", description="Knows rivers.", tools=[search])


def finished(request: ChatRequest) -> Reply:
    """Todos, two tools at once, a rate limit, and the answer."""
    return (
        call(("todo", {"new_titles": ["Find both rivers", "Compare floods"]}), text="Let me plan this."),
        call(("search", {"query": "river of Lyon"}), ("search", {"query": "river of Nantes"}), text="I look both up."),
        call(("todo", {"completed": [0, 1]})).after(faults.error(429, "Rate limit reached for requests", "requests")),
        say("The Loire floods more often.\n\n  - Rhône: regulated by dams\n  - Loire: wild\n\nSources: 12."),
    )[min(request.index, 3)]


SCRIPTS: dict[str, Answers] = {
    "rivers": finished,
    "running": Script(replies=(call(("search", {"query": "floods"}), text="I search first."), call(("held", {})))),
    "approval": Script(
        replies=(call(("pay", {"account": "FR-76", "amount": 1250.0}), text="The invoice is due."), say("Paid."))
    ),
    "question": Script(
        replies=(
            call(("ask_user", {"question": "Which river do you mean?", "options": ["Rhône", "Saône"]})),
            say("The Saône, then."),
        )
    ),
    "caller": Script(
        replies=(
            call(("lookup", {"id": 7}), ("lookup", {"id": 8}), text="I look both up."),
            say("One is Ada."),
        )
    ),
    "failed": Script(
        replies=(
            call(("search", {"query": "account"})),
            call(("charge", {"account": "A-17"})),
            say("The account is closed."),
        )
    ),
    "retrying": Script(replies=(say("").after(faults.error(503, "upstream connect error")),)),
    "lead": Script(
        replies=(
            call(("geographer", {"query": "Where does Lyon lie?"}), ("geographer", {"query": "And Nantes?"})),
            call(("held", {}), text="Both are found."),
        )
    ),
    "geographer": Script(replies=(call(("search", {"query": "it"})), say("It lies at a river."))),
    "claude-painter": Script(
        replies=(call(("draw", {"size": 48})).model_copy(update={"message": THOUGHT}), say("There it is."))
    ),
    "writer": Script(replies=(say(WRITTEN),)),
    "hostile": Script(replies=(call(("echo", {"text": HOSTILE}), text=HOSTILE), say(HOSTILE))),
}
"""The model of each agent."""


def agents(body: Body) -> list[Agent]:
    """The agent of each job: it has the job's name."""

    def agent(name: str, **settings: object) -> Agent:
        return Agent(**{"name": name, "model": f"openai/{name}", **settings})  # type: ignore[arg-type]

    budgets = Budgets(cost_usd="2.5", llm_calls=40)
    return [
        agent("rivers", tools=[search, todo], retry=SOON, max_steps=20),
        agent("running", tools=[search, body.held()], max_steps=12, budgets=budgets),
        agent("approval", tools=[pay]),
        agent("question", tools=[ask_user]),
        agent("caller", tools=[LOOKUP]),
        agent("failed", tools=[search, charge]),
        agent("retrying", retry=LATER),
        agent("lead", tools=[body.held()], delegates=[HELPER]),
        agent("hostile", tools=[echo]),
        agent("writer", stream="always"),
        Agent(name="painter", model="anthropic/claude-painter", tools=[draw]),
        HELPER,
    ]


STANDING = {
    "running": "tool_start",
    "approval": "user_input_required",
    "question": "user_input_required",
    "retrying": "generation_retry",
    "lead": "delegate_end",
}
"""The event at which each job that does not end stands still, at the latest of its kind."""

TENANTS = {"approval": "garonne"}
"""The tenants of jobs that have one."""

COUNTS = {"running": 2, "lead": 2}
ENDING = ("rivers", "failed", "hostile", "painter")


@asynccontextmanager
async def prepared(house: House, body: Body) -> AsyncIterator[ScriptedProvider]:
    """All jobs on a worker of the house, each at the place where it stands still or at its end."""
    models: dict[str, Answers] = dict(SCRIPTS)
    async with ScriptedProvider(models=models) as provider, house.worker(*agents(body)):
        house.use(provider)
        for name in (*ENDING, *STANDING):
            prompts: dict[str, Any] = {
                "hostile": HOSTILE,
                "painter": ["Draw it larger.", Image(png(32), name="small.png")],
            }
            prompt = prompts.get(name, PROMPT)
            await house.client.start(name, prompt, session=name, by="ann", tenant=TENANTS.get(name, ""))
        await asyncio.gather(*(_stands(house, name) for name in STANDING), *(_ends(house, name) for name in ENDING))
        try:
            yield provider
        finally:
            for name in STANDING:
                await house.client.cancel(name)
            await asyncio.gather(*(_ends(house, name) for name in STANDING))


async def _stands(house: House, name: str) -> None:
    async def there() -> bool:
        events = [envelope.event.type for envelope in await house.store.events(name, after=0, limit=500)]
        return events.count(STANDING[name]) >= COUNTS.get(name, 1)  # type: ignore[arg-type]

    await eventually(there)


async def _ends(house: House, name: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        await house.temporal.get_workflow_handle(name).result()
