"""Agents whose turns are simulated: each has another part of a turn."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from perdure import (
    Agent,
    ApprovalPolicy,
    ApprovalRule,
    Budgets,
    Compaction,
    Continue,
    Delegate,
    HookContext,
    HookRule,
    RetryPolicy,
    RetryWithFeedback,
    Secret,
    ask_user,
    caller_tool,
    hook,
    stop,
    todo,
    tool,
)
from perdure.contracts.events import ToolEnd, ToolStart, UserInputReceived, UserInputRequired
from perdure.contracts.input_requests import InputRequest
from perdure.testing import ChatRequest, Reply, Said, answer, approve, call, deny, faults, result, say
from perdure.testing.simulated_checks import SimulatedRun

CANARY = "sk-canary-4f1d0b7e"
"""The secret of a tool, which no event and no message may show."""

ENVIRONMENT = {"CANARY_KEY": CANARY}
"""What the worker's environment needs for these agents."""


@tool
def pay(amount: int) -> str:
    """Pay an amount, which may be done once."""
    return f"paid {amount}"


@tool(requires_approval=True)
def wire(amount: int) -> str:
    """Wire an amount, which somebody has to approve."""
    return f"wired {amount}"


@tool(idempotent=True)
def look() -> str:
    """Look, as often as you like."""
    return "it looks good"


@tool
async def fetch(page: int) -> str:
    """Fetch a page."""
    return f"page {page}"


@tool
async def read_page(page: int) -> str:
    """Read a long page."""
    return f"page {page} " + "word " * 400


@tool
def broken() -> str:
    """Fail."""
    msg = "no"
    raise ValueError(msg)


@tool(needs={"key": Secret("CANARY_KEY")})
def sign(amount: int, key: str) -> str:
    """Sign an amount, and give the key away."""
    return f"signed {amount} with {key}"


@tool(needs={"key": Secret("CANARY_KEY")})
def leak(key: str) -> str:
    """Fail, and give the key away."""
    msg = f"the key {key} is refused"
    raise ValueError(msg)


def script_of(*replies: Reply) -> Callable[[ChatRequest], Reply]:
    """These answers in their order; a message that comes behind them is only heard."""

    def reply(request: ChatRequest) -> Reply:
        answers = sum(message["role"] == "assistant" for message in request.messages)
        last = request.messages[-1]
        if last["role"] == "user" and answers:
            return say(f"heard {str(last['content'])[:40]}")
        return replies[answers] if answers < len(replies) else say("more")

    return reply


def hooked_script(*replies: Reply) -> Callable[[ChatRequest], Reply]:
    """These answers in their order, whatever users say meanwhile."""

    def reply(request: ChatRequest) -> Reply:
        answers = sum(message["role"] == "assistant" for message in request.messages)
        return replies[answers] if answers < len(replies) else say("more")

    return reply


def read_pages(request: ChatRequest) -> Reply:
    """Read five pages, one after the other, however the conversation was shortened."""
    text = str(request.messages[-1]["content"])
    if not text.startswith("page "):
        return call(("read_page", {"page": 1}))
    page = int(text.split()[1])
    return call(("read_page", {"page": page + 1})) if page < 5 else say("read")


def beside_script(request: ChatRequest) -> Reply:
    """Start two delegates in the background, pay meanwhile, and wait for both."""
    return script_of(
        call(
            ("helper", {"query": "1", "run_in_background": True}), ("helper", {"query": "2", "run_in_background": True})
        ),
        call(("pay", {"amount": 3})),
        call(("await_delegate", {})),
        call(("pay", {"amount": 4})),
        say("done"),
    )(request)


def say_yes(request: InputRequest) -> Said:
    """Approve every call, and answer every question."""
    return answer("red") if request.question else approve(by="ann")


def say_later(request: InputRequest) -> Said:
    """Approve small payments and refuse large ones, after a while."""
    if request.question:
        return answer("red", seconds=90)
    return deny("too much", seconds=30) if "900" in str(request) else approve(by="ann", seconds=30)


def run_calls(request: InputRequest) -> Said | None:
    """Run the first of the caller's calls, fail the second, and forget the others; people approve and answer."""
    if request.needs != "result":
        return say_yes(request)
    return {"1": result({"name": "Ada"}, seconds=20), "2": result(error="no such customer")}.get(
        str(json.loads(request.arguments)["number"])
    )


def say_always(request: InputRequest) -> Said:
    """Approve this call and those after it, and answer every question."""
    return say_yes(request) if request.question else approve(by="ann", always="tool", seconds=20)


def approval_stands(run: SimulatedRun) -> None:
    """Once an approval stands, nobody is asked about a later call, and each call that runs has its approval (S-84)."""
    log = [envelope.event for envelope in run.sessions[run.session].events]
    given = [place for place, event in enumerate(log) if isinstance(event, UserInputReceived) and event.always]
    later = log[given[0] :] if given else []
    asked = [event.arguments for event in later if isinstance(event, UserInputRequired) and event.needs == "approval"]
    assert not asked, f"asked about {asked}"
    approved = {event.request_id for event in log if isinstance(event, UserInputReceived)}
    ran = [event.call_id for event in log if isinstance(event, ToolStart) and event.tool == "wire"]
    assert approved.issuperset(ran), f"{ran} ran, and {approved} were approved"


def say_nothing(_: InputRequest) -> None:
    """Nobody says anything."""


@hook("tool_end", tool="look", timeout=timedelta(seconds=5))
def look_twice(_event: ToolEnd, context: HookContext) -> RetryWithFeedback | None:
    """Have the model look again after its first step."""
    return RetryWithFeedback("Look again.") if context.step == 1 else None


@hook("tool_end", tool="pay")
async def watch_payments(_event: ToolEnd, _context: HookContext) -> Continue | None:
    """Remind the model of the receipt."""
    return Continue("Keep the receipt.")


class Verdict(BaseModel):
    """What an agent finds out."""

    good: bool
    reason: str


@dataclass(frozen=True)
class Case:
    """An agent, the answers of its model, and what else the simulation is told."""

    agent: Agent
    script: Callable[[ChatRequest], Reply]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


NUMBER: dict[str, Any] = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
lookup = caller_tool("lookup", "Look a customer up.", NUMBER, timeout=timedelta(minutes=2))
HELPER = Agent(name="helper", model="openai/helper", description="Helps.", tools=[pay])
HELPING = script_of(call(("pay", {"amount": 2})), say("helped"))
MODEL = "openai/scripted"
PAY = call(("pay", {"amount": 7}))
DONE = say("done")

CASES = {
    "tools": Case(
        Agent(name="tools", model=MODEL, tools=[pay, look, fetch, broken], on_tool_error="feed_back"),
        script_of(call(("look", {}), ("fetch", {"page": 1})), call(("pay", {"amount": 7}), ("broken", {})), DONE),
    ),
    "aborts": Case(
        Agent(name="aborts", model=MODEL, tools=[pay, broken]),
        script_of(PAY, call(("pay", {"amount": 8}), ("broken", {})), DONE),
    ),
    "secrets": Case(
        Agent(name="secrets", model=MODEL, tools=[sign, leak, todo], on_tool_error="feed_back"),
        script_of(
            call(("sign", {"amount": 7}), ("todo", {"new_titles": ["sign"]})),
            call(("leak", {}), ("todo", {"completed": [0]})),
            DONE,
        ),
    ),
    "people": Case(
        Agent(name="people", model=MODEL, tools=[wire, ask_user, look]),
        script_of(call(("wire", {"amount": 7}), ("look", {})), call(("ask_user", {"question": "Which?"})), DONE),
        {"people": lambda: say_yes},
    ),
    "slow people": Case(
        Agent(
            name="slow-people",
            model=MODEL,
            tools=[wire, ask_user, pay],
            budgets=Budgets(seconds=timedelta(minutes=5)),
            approvals=ApprovalPolicy(rules=(ApprovalRule(tool="pay", decision="ask"),)),
        ),
        script_of(
            call(("wire", {"amount": 7}), ("wire", {"amount": 900}), ("ask_user", {"question": "Which?"})),
            call(("pay", {"amount": 1}), ("pay", {"amount": 2})),
            DONE,
        ),
        {"people": lambda: say_later},
    ),
    "standing": Case(
        Agent(name="standing", model=MODEL, tools=[wire, ask_user, look]),
        script_of(
            call(("wire", {"amount": 1}), ("look", {}), ("wire", {"amount": 2})),
            call(("wire", {"amount": 3}), ("ask_user", {"question": "Which?"})),
            call(("wire", {"amount": 4})),
            DONE,
        ),
        {"people": lambda: say_always, "check": approval_stands},
    ),
    "callers": Case(
        Agent(name="callers", model=MODEL, tools=[lookup, wire, ask_user, pay]),
        script_of(
            call(("lookup", {"number": 1}), ("pay", {"amount": 1}), ("lookup", {"number": 2}), ("wire", {"amount": 7})),
            call(("lookup", {"number": 3}), ("ask_user", {"question": "Which?"})),
            DONE,
        ),
        {"people": lambda: run_calls},
    ),
    "nobody": Case(
        Agent(name="nobody", model=MODEL, tools=[wire, look]),
        script_of(call(("look", {})), call(("wire", {"amount": 7}), ("look", {})), DONE),
        {"people": lambda: say_nothing},
    ),
    "stops": Case(
        Agent(name="stops", model=MODEL, tools=[wire, pay], interactive="stop"),
        script_of(PAY, call(("wire", {"amount": 7}), ("pay", {"amount": 3})), DONE),
    ),
    "delegates": Case(
        Agent(name="boss", model=MODEL, delegates=[HELPER], tools=[pay]),
        script_of(call(("helper", {"query": "1"}), ("helper", {"query": "2"}), ("pay", {"amount": 1})), DONE),
        {"models": {"helper": HELPING}},
    ),
    "background": Case(
        Agent(
            name="beside",
            model=MODEL,
            delegates=[Delegate("helper", "Helps.", background=True)],
            tools=[pay],
            budgets=Budgets(llm_calls=30, tool_calls=30),
        ),
        beside_script,
        {"models": {"helper": HELPING}, "agents": [HELPER]},
    ),
    "hooks": Case(
        Agent(
            name="hooked",
            model=MODEL,
            tools=[look, pay],
            hooks=[
                look_twice,
                watch_payments,
                HookRule(name="brief", on="agent_start", reaction=Continue("Be brief.")),
                HookRule(
                    name="nudge", on="step_end", when=stop.no_tool_calls(), times=1, reaction=Continue("Is that all?")
                ),
            ],
        ),
        hooked_script(call(("look", {})), call(("look", {})), PAY, DONE),
    ),
    "budgets": Case(
        Agent(name="thrifty", model=MODEL, tools=[pay, look], budgets=Budgets(tool_calls=3, events=9)),
        script_of(PAY, call(("look", {}), ("pay", {"amount": 8}), ("look", {})), call(("look", {})), DONE),
    ),
    "few calls": Case(
        Agent(name="terse", model=MODEL, tools=[pay], budgets=Budgets(llm_calls=2)), script_of(PAY, PAY, PAY, DONE)
    ),
    "few steps": Case(Agent(name="short", model=MODEL, tools=[pay], max_steps=2), script_of(PAY, PAY, PAY, DONE)),
    "conditions": Case(
        Agent(
            name="content",
            model=MODEL,
            tools=[pay, look],
            completion=None,
            stop_conditions={"paid twice": stop.tool_use("pay", 2), "enough": stop.step_count(6)},
        ),
        script_of(call(("look", {})), PAY, call(("pay", {"amount": 8})), DONE),
    ),
    "compaction": Case(
        Agent(
            name="reader",
            model=MODEL,
            tools=[read_page],
            compaction=Compaction(window=2_000, threshold=0.6, keep=2, model="openai/summary"),
        ),
        read_pages,
        {"models": {"summary": lambda _: say("pages were read")}},
    ),
    "schema": Case(
        Agent(
            name="judge",
            model=MODEL,
            tools=[look],
            output_schema=Verdict.model_json_schema(),
            output_corrections=2,
        ),
        hooked_script(call(("look", {})), say('{"good": "maybe"}'), say('{"good": true, "reason": "it looks good"}')),
    ),
    "provider": Case(
        Agent(
            name="unlucky",
            model=MODEL,
            tools=[pay],
            retry=RetryPolicy(max_retries=4),
            generation_timeout=timedelta(minutes=2),
        ),
        script_of(
            PAY.after(faults.rate_limited(), faults.overloaded()),
            call(("pay", {"amount": 8})).after(faults.status(502), faults.close_before_reply()),
            DONE.after(faults.reset_before_reply()),
        ),
    ),
    "streams": Case(
        Agent(name="streamed", model=MODEL, tools=[pay], stream="always"),
        script_of(PAY, say("a long answer that is sent in pieces").after(faults.stream_cut(2)), DONE),
    ),
}
