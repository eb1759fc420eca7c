"""A turn in memory comes to what it comes to on the server: transcript, usage, how it ends, and its events."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import (
    Agent,
    ApprovalPolicy,
    ApprovalRule,
    Budgets,
    Compaction,
    Delegate,
    Fallback,
    Finish,
    HookContext,
    HookRule,
    Image,
    RetryPolicy,
    RetryWithFeedback,
    ToolContext,
    Toolset,
    TurnResult,
    ask_user,
    hook,
    read_output,
    stop,
    tool,
    tool_method,
)
from perdure.client import Client
from perdure.client.requests import Content
from perdure.contracts.events import Envelope, Event, GenerationEnd
from perdure.contracts.input_requests import InputRequest
from perdure.testing import (
    ChatRequest,
    Reply,
    Said,
    Script,
    ScriptedProvider,
    answer,
    approve,
    call,
    call_in_text,
    deny,
    faults,
    run_in_memory,
    say,
)
from perdure.testing.memory_runtime import RunningTurn
from perdure.testing.provider import RecordedRequest
from perdure.testing.script import Answers
from perdure.worker.agents import with_delegates
from tests.house import WAIT_SECONDS, House
from tests.pictures import PNG

pytestmark = pytest.mark.deep

QUICK = RetryPolicy(base=timedelta(milliseconds=20), jitter=timedelta(0))


@tool
def look(at: str = "it") -> str:
    """Look at something."""
    return f"{at} looks good"


@tool(catch=True)
def fail(how: str) -> str:
    """Fail."""
    raise ValueError(how)


@tool
def crash() -> str:
    """Fail without a catch."""
    raise RuntimeError("the disk is full")


@tool(requires_approval=True)
def pay(amount: int, password: str = "") -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
def tell(length: int) -> str:
    """Tell much."""
    return "x" * length


@tool
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "never"


@tool
def key(context: ToolContext) -> str:
    """Tell the key of the call without its session."""
    return context.idempotency_key.partition("/")[2] + f" {context.data} {context.tenant}"


class Notes(Toolset):
    """Notes."""

    notes: list[str] = []  # noqa: RUF012 - pydantic copies it

    @tool_method
    def note(self, text: str) -> str:
        """Note something."""
        self.notes.append(text)
        return self.notes[-1]


@hook(GenerationEnd)
def once_more(_: GenerationEnd, context: HookContext) -> RetryWithFeedback | None:
    """Wants another answer to the first one."""
    return RetryWithFeedback(feedback="once more") if context.step == 1 else None


@hook("tool_end")
def enough(_: object) -> Finish:
    """Ends the turn behind a tool."""
    return Finish(reason="enough")


class Report(BaseModel):
    total: float


def variable(case: str) -> str:
    """The variable that holds the key of a case."""
    return f"KEY_{case.upper().replace(' ', '_')}"


@dataclass(frozen=True)
class Case:
    """A turn; ``on`` is an event's type, and what somebody does at it."""

    script: Answers
    tools: Sequence[Any] = ()
    prompt: Content = "go"
    settings: Mapping[str, Any] = field(default_factory=dict)
    people: Callable[[InputRequest], Said] | None = None
    on: tuple[str, str] | None = None
    helper: Answers | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    ends: str = "finished"

    def agent(self, name: str) -> Agent:
        slug = name.replace(" ", "-")
        # A key of its own: who is limited holds up nobody else.
        key = {"api_key": f"${{{variable(name)}}}"}
        helper = Agent(name=f"{slug}-helper", model=f"openai/{slug}-helper", tools=[look], generate_params=key)
        delegates = [Delegate(helper, background=True)] if self.helper is not None else []
        fields: dict[str, Any] = {
            "model": f"openai/{slug}",
            "retry": QUICK,
            "tools": self.tools,
            "delegates": delegates,
        }
        params = {**key, **self.settings.get("generate_params", {})}
        return Agent(**{"name": slug, **fields, **self.settings, "generate_params": params})

    def models(self, name: str) -> dict[str, Answers]:
        slug = name.replace(" ", "-")
        return {slug: self.script, f"{slug}-helper": self.helper or Script()}


def script(*replies: Reply) -> Script:
    return Script(replies=replies)


def of(case: str, query: str, **more: Any) -> tuple[str, Any]:
    """A call of the helper of that case."""
    return f"{case.replace(' ', '-')}-helper", {"query": query, **more}


LOOK, DONE = call(("look", {"at": "it"})), say("done")
ASK = call(("ask_user", {"question": "Which colour?", "options": ["red", "blue"]}), ("look", {}))


def compacting(request: ChatRequest) -> Reply:
    if "summar" in request.system.lower():
        return say("<analysis>a</analysis><summary>It was looked at.</summary>")
    seen = sum("x" * 100 in str(message.get("content")) for message in request.messages)
    tells = sum(message["role"] == "tool" for message in request.messages)
    return call(("tell", {"length": 2_000})) if tells + seen < 9 and len(request.messages) < 14 else DONE


B = "a delegate in the background"


def background(request: ChatRequest) -> Reply:
    if request.index == 0:
        return call(of(B, "slow", run_in_background=True), of(B, "quick"))
    if request.index == 1:
        told = next(
            str(message.get("content"))
            for message in request.messages
            if str(message.get("content")).startswith('{"session"')
        )
        return call(("await_delegate", {"sessions": [json.loads(told)["session"]]}))
    return say("both are there")


CASES = {
    "text": Case(script(say("hello"))),
    "tools beside each other": Case(
        script(call(("look", {"at": "a"}), ("look", {"at": "b"}), ("fail", {"how": "bad"})), DONE), [look, fail]
    ),
    "what is no tool": Case(script(call(("nothing", {}), ("look", '{"at'), ("look", {"at": 3})), DONE), [look]),
    "an error that ends": Case(script(call(("crash", {}), ("look", {}))), [crash, look], ends="error"),
    "an error fed back": Case(script(call(("crash", {})), DONE), [crash], settings={"on_tool_error": "feed_back"}),
    "a long output": Case(script(call(("tell", {"length": 40_000})), DONE), [tell, read_output]),
    "a context": Case(script(call(("key", {})), DONE), [key], request={"context": {"user": "ada"}, "tenant": "acme"}),
    "retries": Case(
        script(
            LOOK.after(faults.rate_limited(), faults.status(503), faults.close_before_reply()),
            DONE.after(faults.reset_before_reply(), faults.cut_body(), faults.garbage(), faults.empty_choices()),
        ),
        [look],
    ),
    "odd answers": Case(
        script(LOOK.after(faults.empty_answer(), faults.truncated("half"), faults.in_a_200(faults.overloaded())), DONE),
        [look],
    ),
    "a quota": Case(script(DONE.after(faults.quota_exhausted())), ends="error"),
    "a refusal": Case(script(DONE.after(faults.refusal("no"))), ends="error"),
    "a script that ends": Case(script(LOOK), [look], ends="error"),
    "a model that is told": Case(
        script(DONE.after(faults.rate_limited()), say("again")),
        settings={"retry": QUICK.model_copy(update={"on_retry": "tell_model"})},
    ),
    "a slow model": Case(
        script(DONE.after(faults.hang())),
        settings={
            "generation_timeout": timedelta(milliseconds=300),
            "retry": QUICK.model_copy(update={"max_retries": 0}),
        },
        ends="error",
    ),
    "a fallback": Case(
        script(DONE.after(*[faults.quota_exhausted()] * 2)),
        settings={"fallback_models": [Fallback(model="openai/a-fallback-helper")]},
        helper=script(say("from the other")),
    ),
    "steps used up": Case(
        Script(replies=(LOOK,), repeat=True), [look], settings={"max_steps": 2}, ends="max_steps_reached"
    ),
    "a stop condition": Case(
        Script(replies=(LOOK,), repeat=True), [look], settings={"stop_conditions": [stop.tool_use("look", 2)]}
    ),
    "feedback of a hook": Case(script(say("first"), say("second")), settings={"hooks": [once_more]}),
    "a hook that ends": Case(script(LOOK, DONE), [look], settings={"hooks": [enough]}),
    "a rule": Case(
        script(LOOK, DONE),
        [look],
        settings={"hooks": [HookRule(name="rule", on="tool_end", reaction=Finish(reason="seen"), times=1)]},
    ),
    "calls used up": Case(
        Script(replies=(LOOK,), repeat=True),
        [look],
        settings={"budgets": Budgets(llm_calls=2)},
        ends="budget_exhausted",
    ),
    "money used up": Case(
        Script(replies=(LOOK,), repeat=True),
        [look],
        settings={
            "budgets": Budgets(cost_usd=Decimal("0.002")),
            "generate_params": {"input_cost_per_token": 0.00001, "output_cost_per_token": 0.00001},
        },
        ends="budget_exhausted",
    ),
    "a delegate": Case(
        script(call(of("a delegate", "one"), of("a delegate", "two"), ("look", {})), DONE),
        [look],
        helper=script(LOOK, say("the helper has looked")),
    ),
    "a delegate that fails": Case(
        script(call(of("a delegate that fails", "one")), DONE), helper=script(LOOK.after(faults.quota_exhausted()))
    ),
    B: Case(background, helper=script(LOOK.after(faults.rate_limited()), say("looked"))),
    "a question": Case(script(ASK, DONE), [ask_user, look], people=lambda _: answer("red", by="ada")),
    "an approval": Case(
        script(call(("pay", {"amount": 7, "password": "hush-1234"}), ("look", {})), DONE),
        [pay, look],
        people=lambda _: approve(by="ada"),
    ),
    "a denial": Case(script(call(("pay", {"amount": 7})), DONE), [pay], people=lambda _: deny("too much", by="ada")),
    "an approval that expires": Case(
        script(call(("pay", {"amount": 7})), DONE),
        [pay],
        settings={"approvals": ApprovalPolicy(expires=timedelta(milliseconds=500))},
    ),
    "a rule that denies": Case(
        script(call(("look", {"at": "him"})), DONE),
        [look],
        settings={"approvals": ApprovalPolicy(rules=(ApprovalRule(tool="look", decision="deny"),))},
    ),
    "a stop for people": Case(
        script(ASK), [ask_user, look], settings={"interactive": "stop"}, ends="waiting_for_input"
    ),
    "a compaction": Case(compacting, [tell], settings={"compaction": Compaction(window=4_000, threshold=0.5, keep=2)}),
    "an output of a shape": Case(
        script(say("three"), say('{"total": 3}')), settings={"output_schema": Report, "output_corrections": 1}
    ),
    "an output of no shape": Case(
        script(say("three")), settings={"output_schema": Report, "output_corrections": 0}, ends="error"
    ),
    "todos": Case(
        script(call(("todo", {"new_titles": ["look"]})), say("not yet"), call(("attempt_completion", {}))),
        settings={"completion": "attempt_completion"},
    ),
    "a stall": Case(script(say("done")), [look], settings={"stop_conditions": [stop.tool_use("look")]}, ends="stalled"),
    "calls in text": Case(
        script(call_in_text("json-in-xml", ("look", {"at": "it"})), DONE), [look], settings={"tool_mode": "json-in-xml"}
    ),
    "a toolset": Case(script(call(("note", {"text": "a"})), call(("note", {"text": "b"})), DONE), [Notes()]),
    "anthropic": Case(script(LOOK.after(faults.overloaded()), DONE), [look], settings={"model": "anthropic/anthropic"}),
    "a price": Case(script(say("hello")), settings={"model": "openai/gpt-5-mini"}, request={}),
    "a picture": Case(script(say("a dot")), prompt=["look", Image(data=PNG)]),
    "a history": Case(
        script(DONE, say("again")),
        request={"history": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]},
    ),
    "a cancel": Case(script(call(("hang", {}))), [hang], on=("tool_start", "cancel"), ends="cancelled"),
    "a cancel of a delegate": Case(
        script(call(of("a cancel of a delegate", "one"))),
        helper=script(DONE.after(faults.hang())),
        on=("delegate_start", "cancel"),
        ends="cancelled",
    ),
    "a cancel between tries": Case(
        script(DONE.after(faults.rate_limited(headers={"retry-after": "60"}))),
        on=("generation_retry", "cancel"),
        ends="cancelled",
    ),
    "other limits": Case(
        Script(replies=(LOOK,), repeat=True),
        [look],
        on=("generation_start", "extend"),
        ends="max_steps_reached",
        settings={"max_steps": 4},
    ),
    "time used up": Case(
        script(DONE.after(faults.rate_limited(headers={"retry-after": "60"}))),
        settings={"budgets": Budgets(seconds=timedelta(seconds=1))},
        ends="budget_exhausted",
    ),
}


def without(value: Any, session: str) -> Any:
    """The value without what differs from run to run: the session's id, times, ids of nothing that is compared."""
    text = json.dumps(value, default=str).replace(session, "SESSION")
    for place, call_id in enumerate(dict.fromkeys(re.findall(r"call_[0-9a-f]{16}|toolu_[0-9a-f]{16}", text))):
        text = text.replace(call_id, f"CALL-{place}")
    text = re.sub(r"\b(file_)?[0-9a-f]{16,32}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)", "TIME", text)
    return json.loads(re.sub(r"elapsed \d+|\d+(\.\d+)? s\b", "SOME s", text))


@dataclass(frozen=True)
class Came:
    """What is compared."""

    result: Any
    transcript: Any
    events: Counter[str]
    asked: Any


def came(
    result: TurnResult,
    transcript: Sequence[Any],
    events: Sequence[Envelope],
    session: str,
    requests: Sequence[RecordedRequest],
) -> Came:
    shown = result.model_dump(mode="json")
    return Came(
        result=without(shown, session),
        transcript=without([message.model_dump(mode="json") for message in transcript], session),
        events=Counter(envelope.event.type for envelope in events),
        asked=without([made.request.messages for made in requests if "helper" not in made.request.model], session),
    )


def differences(memory: Came, served: Came) -> dict[str, tuple[Any, Any]]:
    """Each part that differs, in memory and on the server."""
    parts = {f"result.{field}": (value, served.result[field]) for field, value in memory.result.items()}
    parts |= {"events": (memory.events, served.events), "transcript": (memory.transcript, served.transcript)}
    parts["asked"] = (memory.asked, served.asked)
    return {part: both for part, both in parts.items() if both[0] != both[1]}


async def in_memory(name: str, case: Case) -> Came:
    def on_event(event: Event, turn: RunningTurn) -> None:
        if case.on is None or event.type != case.on[0]:
            return
        if case.on[1] == "cancel":
            turn.cancel("enough")
        else:
            turn.extend(max_steps=2)

    models = case.models(name) | {"gpt-5-mini": case.script}
    options: dict[str, Any] = {"models": models, "on_event": on_event, "people": case.people or (), **case.request}
    run = await run_in_memory(case.agent(name), case.prompt, **options)
    return came(run.result, await run.transcript(), await run.events(), run.session, run.requests)


async def on_the_server(client: Client, provider: ScriptedProvider, name: str, case: Case) -> Came:
    turn = await client.start(case.agent(name).name, case.prompt, **case.request)
    beside = [asyncio.create_task(work) for work in (_people(client, turn, case), _meanwhile(turn, case))]
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            result = await turn.result()
    except TimeoutError:
        raise AssertionError(f"{name}: the turn on the server does not end") from None
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    store = await client.store()
    events = await store.events(turn.session, after=0, limit=500)
    asked = [made for made in provider.requests if made.request.model == case.agent(name).model.partition("/")[2]]
    return came(result, await client.transcript(turn.session), events, turn.session, asked)


async def _people(client: Client, turn: Any, case: Case) -> None:
    while case.people is not None:
        for request in await turn.requests():
            said = case.people(request)
            if said.decision == "answered":
                await client.answer(turn.session, request.request_id, said.value, by=said.by)
            elif said.decision == "approved":
                await client.approve(turn.session, request.request_id, by=said.by)
            else:
                await client.deny(turn.session, request.request_id, by=said.by, reason=said.reason)
        await asyncio.sleep(0.05)


async def _meanwhile(turn: Any, case: Case) -> None:
    if case.on is None:
        return
    async for envelope in turn.events():
        if envelope.event.type == case.on[0]:
            if case.on[1] == "cancel":
                await turn.cancel("enough")
            else:
                await turn.extend(max_steps=2)
            return


GROUPS = [[*CASES][place::8] for place in range(8)]
"""The cases that run beside each other on the server."""


@pytest.mark.parametrize("names", GROUPS, ids=[f"{group[0]} …" for group in GROUPS])
async def test_a_turn_in_memory_comes_to_what_it_comes_to_on_the_server(house: House, names: list[str]) -> None:
    cases = {name: CASES[name] for name in names}
    models: dict[str, Answers] = {"gpt-5-mini": CASES["a price"].script}
    for name, case in cases.items():
        house.environment.setenv(variable(name), f"sk-scripted-of-{name}")
        models |= case.models(name)
    agents = {name: case.agent(name) for name, case in cases.items()}
    async with (
        ScriptedProvider(models=models) as provider,
        house.worker(*with_delegates(agents.values()).agents.values()),
    ):
        house.use(provider)
        served = await asyncio.gather(
            *(on_the_server(house.client, provider, *named_case) for named_case in cases.items())
        )
    differ: dict[str, tuple[Any, Any]] = {}
    for (name, case), expected in zip(cases.items(), served, strict=True):
        memory = await in_memory(name, case)
        assert memory.result["stop_reason"] == case.ends, (name, memory.result)
        differ |= {f"{name}: {part}": both for part, both in differences(memory, expected).items()}
    assert not differ, json.dumps(differ)
