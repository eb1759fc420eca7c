"""Every fault of a model call on both wires under every retry preset: one preset on the time-skipping server, all
cases at once, and the others in memory.

What is expected is written down here, in seconds and counts, and not taken from the code under test.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent
from perdure.cli.render import lines
from perdure.contracts.events import Envelope
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Fault, Reply, ScriptedProvider, faults, run_in_memory, say
from tests.house import House

WIRES = ("openai", "anthropic")


@dataclass(frozen=True)
class Preset:
    """A policy, and what it does by its documentation: least and most seconds of each wait.

    Attributes:
        told: The model is told of each failure, so that each uses a step.
        cap: No wait is longer.
        spread: Most that a wait may be of what the provider asks for.
    """

    policy: RetryPolicy
    waits: tuple[tuple[float, float], ...]
    cap: float = 1e9
    told: bool = False
    spread: float = 1.0


PRESETS = {
    "dreadnode": Preset(
        # With more than its 300 s, of which all waits take 263 and a busy machine the rest.
        RetryPolicy.dreadnode().model_copy(update={"max_time": timedelta(hours=1)}),
        ((1, 2), (2, 3), (4, 5), (8, 9), (16, 17), (32, 33), (64, 65), (128, 129)),
        spread=1.1,
    ),
    "dawn": Preset(RetryPolicy.dawn(), ((1, 1.5), (2, 2.5)), cap=10, spread=1.1),
    "activegraph": Preset(RetryPolicy.activegraph(), ((0.5, 0.5), (1, 1)), cap=8),
    # OpenAI's own words ask for a millisecond.
    "perstack": Preset(RetryPolicy.perstack(), ((0, 0.001),) * 5, told=True),
}


@dataclass(frozen=True)
class Fate:
    """A fault and what becomes of it.

    Attributes:
        anthropic: The code on Anthropic's wire, where it is another.
        asks: Seconds the provider asks to wait.
        slow: Only the agent's own time limit ends the call.
        sent: Whether a request reaches the provider at all.
    """

    fault: Fault
    code: str
    anthropic: str = ""
    asks: float = 0
    slow: bool = False
    sent: bool = True

    def expected(self, wire: str) -> str:
        return self.anthropic if self.anthropic and wire == "anthropic" else self.code


RETRIED = frozenset({"llm.rate_limited", "llm.network_error", "llm.timeout", "llm.empty_response", "llm.truncated"})


def _asking(seconds: float, **headers: str) -> Fate:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Fate(faults.rate_limited(headers=sent), "llm.rate_limited", asks=seconds)


FATES: dict[str, Fate] = {
    "400": Fate(faults.status(400), "llm.request_error"),
    "401": Fate(faults.status(401), "llm.auth_error"),
    "402": Fate(faults.status(402), "llm.quota_exhausted"),
    "403": Fate(faults.status(403), "llm.auth_error"),
    "404": Fate(faults.status(404), "llm.request_error"),
    "408": Fate(faults.status(408), "llm.timeout"),
    "409": Fate(faults.status(409), "llm.network_error"),
    "413": Fate(faults.status(413), "llm.request_error", anthropic="llm.context_overflow"),
    "422": Fate(faults.status(422), "llm.request_error"),
    "429": Fate(faults.status(429), "llm.rate_limited"),
    "500": Fate(faults.status(500), "llm.network_error"),
    "502": Fate(faults.page(502), "llm.network_error"),
    "503": Fate(faults.status(503), "llm.network_error"),
    "504": Fate(faults.status(504), "llm.timeout"),
    "529": Fate(faults.status(529), "llm.network_error"),
    "rate limited": Fate(faults.rate_limited(), "llm.rate_limited"),
    "rate limited for 5 s": _asking(5, retry_after="5"),
    "rate limited for 60 s": _asking(60, retry_after="60"),
    "rate limited for 1500 ms": _asking(1.5, retry_after_ms="1500"),
    "rate limited until 2020": _asking(0, retry_after="Sat, 21 Nov 2020 00:00:00 GMT"),
    "overloaded": Fate(faults.overloaded(), "llm.network_error"),
    "overloaded for 5 s": Fate(faults.overloaded(headers={"retry-after": "5"}), "llm.network_error", asks=5),
    "quota used up": Fate(faults.quota_exhausted(), "llm.quota_exhausted"),
    "context too long": Fate(faults.context_overflow(), "llm.context_overflow"),
    "content policy": Fate(faults.policy_violation(), "llm.content_filtered"),
    "refused key": Fate(faults.bad_key(), "llm.auth_error"),
    "unknown model": Fate(faults.unknown_model(), "llm.request_error"),
    "page in a 200": Fate(faults.page(200), "llm.network_error"),
    "no JSON": Fate(faults.garbage(), "llm.network_error"),
    "rate limit in a 200": Fate(faults.in_a_200(faults.rate_limited()), "llm.rate_limited"),
    "overload in a 200": Fate(faults.in_a_200(faults.overloaded()), "llm.network_error"),
    "refused key in a 200": Fate(faults.in_a_200(faults.bad_key()), "llm.auth_error"),
    "unknown error in a 200": Fate(faults.in_a_200(faults.error(500, "odd", kind="odd_error")), "llm.network_error"),
    "nobody listens": Fate(faults.hang(), "llm.network_error", sent=False),
    "closed": Fate(faults.close_before_reply(), "llm.network_error"),
    "reset": Fate(faults.reset_before_reply(), "llm.network_error"),
    "reset in the body": Fate(faults.reset_in_body(), "llm.network_error"),
    "cut": Fate(faults.cut_body(), "llm.network_error"),
    "silence": Fate(faults.hang(), "llm.timeout", slow=True),
    "silence in the body": Fate(faults.hang_in_body(), "llm.timeout", slow=True),
    "a byte now and then": Fate(faults.drip(0.05), "llm.timeout", slow=True),
    "nothing in the reply": Fate(faults.empty_choices(), "llm.empty_response"),
    "neither text nor calls": Fate(faults.empty_answer(), "llm.empty_response"),
    "text cut off": Fate(faults.truncated("half"), "llm.truncated"),
    "call cut off": Fate(faults.truncated(None, ("pay", {})), "llm.truncated"),
    "filtered": Fate(faults.filtered(), "llm.content_filtered"),
    "refused by the model": Fate(faults.refusal("I will not"), "llm.refused", anthropic="llm.content_filtered"),
}

ODD_ANSWERS: dict[str, Reply] = {
    "ids twice": Reply(calls=(("look", {}), ("look", {})), call_ids=("x", "x")),
    "ids empty": Reply(calls=(("look", {}), ("look", {})), call_ids=("", "")),
    "arguments broken": Reply(calls=(("look", '{"broken'),)),
    "arguments no object": Reply(calls=(("look", "[1]"),)),
    "tool unknown": Reply(calls=(("pay", {}),)),
    "tool no name": Reply(calls=(("no such tool!", {}), ("", {}))),
}
"""Answers that real models give and that do not fail a call; the turn goes on, and the model reads what was wrong."""

LIMITED = frozenset(name for name in FATES if re.match(r"429|503|529|rate limit|overload", name))
"""Faults behind which the calls of a key take turns: their cases have keys of their own, and wait for nobody."""

SERVED = "dawn"
"""The preset under which each fault is met over real connections; it makes few calls."""

CASES = tuple(product(FATES, WIRES, PRESETS))
ODD_CASES = tuple(product(ODD_ANSWERS, WIRES))


@dataclass
class Outcome:
    """A turn that has ended."""

    result: Mapping[str, Any]
    requests: int
    events: list[Mapping[str, Any]] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    def add(self, envelopes: Sequence[Envelope]) -> None:
        """Take the events, and what people read of them."""
        self.events.extend(envelope.line() for envelope in envelopes)
        self.rows.extend(line.text for envelope in envelopes for line in lines(envelope))

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def expected_waits(fate: Fate, preset: Preset) -> Sequence[tuple[float, float]]:
    """Least and most seconds of each wait."""
    if fate.expected("openai") not in RETRIED:
        return ()
    least, most = fate.asks, fate.asks * preset.spread
    return [(min(max(low, least), preset.cap), min(max(high, most), preset.cap)) for low, high in preset.waits]


def script(request: ChatRequest) -> Reply:
    """The answer to a case's prompt."""
    name = next(str(message["content"]) for message in request.messages if message["role"] == "user").split("|")[0]
    if name in FATES:
        return say("never").after(*[FATES[name].fault] * 20)
    return say("done") if request.index else ODD_ANSWERS[name]


def agents(provider: ScriptedProvider, nobody: ScriptedProvider) -> list[Agent]:
    """For each wire and preset one; one more whose calls are given up soon, one whose provider does not listen, and one
    for each fault that limits a key.
    """
    made: list[Agent] = []
    kinds = ("", "-slow", "-nobody", *map(kind_of, sorted(LIMITED)))
    for wire, preset, kind in product(WIRES, PRESETS, kinds):
        where = nobody if kind == "-nobody" else provider
        base = where.anthropic_url if wire == "anthropic" else where.url
        key = f"${{{variable_of(f'{wire}-{preset}{kind}')}}}"
        made.append(_agent(wire, preset, kind, {"api_base": base, "api_key": key}))
    return made


def _agent(wire: str, preset: str, kind: str, params: dict[str, JsonValue]) -> Agent:
    return Agent(
        name=f"{wire}-{preset}{kind}",
        model=f"{wire}/scripted",
        retry=PRESETS[preset].policy,
        tools=(look,),
        # Long enough that a busy machine has sent the request by then: it is counted.
        generation_timeout=timedelta(seconds=4 if kind == "-slow" else 60),
        generate_params=params,
    )


def variable_of(agent: str) -> str:
    """The variable with the key of an agent."""
    return f"MATRIX_{re.sub('[^A-Z0-9]', '_', agent.upper())}"


def look() -> str:
    """Look."""
    return "seen"


def agent_of(name: str, wire: str, preset: str) -> str:
    """The agent of a case."""
    return f"{wire}-{preset}{kind_of(name)}"


def kind_of(name: str) -> str:
    """What the name of an agent ends with that meets this fault."""
    fate = FATES.get(name)
    if name in LIMITED:
        return f"-{name.replace(' ', '-')}"
    return "" if fate is None else "-slow" if fate.slow else "" if fate.sent else "-nobody"


@asynccontextmanager
async def providers() -> AsyncIterator[tuple[ScriptedProvider, ScriptedProvider]]:
    """One that answers, and one that refuses every connection."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(ScriptedProvider(script))
        nobody = await stack.enter_async_context(ScriptedProvider())
        await nobody.refuse()
        yield provider, nobody


async def run(house: House, skipping: WorkflowEnvironment) -> dict[tuple[str, str, str], Outcome]:
    """Every case as a turn of its own."""
    return await _served(house, skipping) | {case: await _in_memory(case) for case in CASES if not _is_served(case)}


def _is_served(case: tuple[str, str, str]) -> bool:
    """Whether the case needs connections: in memory none is refused."""
    return case[2] == SERVED or not FATES[case[0]].sent


async def _in_memory(case: tuple[str, str, str]) -> Outcome:
    name, wire, preset = case
    played = await run_in_memory(_agent(wire, preset, kind_of(name), {}), "|".join(case), script)
    outcome = Outcome(played.result.model_dump(mode="json"), len(played.requests))
    outcome.add(await played.events())
    return outcome


async def _served(house: House, skipping: WorkflowEnvironment) -> dict[tuple[str, str, str], Outcome]:
    """The cases of the server, all at once; those with a short time limit by themselves, in a calm worker."""
    cases = [*filter(_is_served, CASES), *((name, wire, SERVED) for name, wire in ODD_CASES)]
    slow = [case for case in cases if agent_of(*case).endswith("-slow")]
    results: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    async with providers() as (provider, nobody):
        made = agents(provider, nobody)
        for agent in made:
            house.environment.setenv(variable_of(agent.name), f"sk-of-{agent.name}")
        async with house.worker(*made, client=skipping.client, runner=UnsandboxedWorkflowRunner()):
            results |= await _played(house, skipping, [case for case in cases if case not in slow])
            results |= await _played(house, skipping, slow)
        asked = Counter(str(seen.request.messages[0]["content"]) for seen in provider.requests)
    outcomes = {case: Outcome(result, asked["|".join(case)]) for case, result in results.items()}
    for case, outcome in outcomes.items():
        outcome.add(await house.store.events(session_of(house, case), after=0, limit=500))
    return outcomes


async def _played(
    house: House, skipping: WorkflowEnvironment, cases: Sequence[tuple[str, str, str]]
) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    handles = await asyncio.gather(*(_started(house, skipping, case) for case in cases))
    # One after the other: each wait unlocks the server's clock, and two at once would unlock it twice.
    return {case: await handle.result() for case, handle in zip(cases, handles, strict=True)}


async def _started(house: House, skipping: WorkflowEnvironment, case: tuple[str, str, str]) -> WorkflowHandle[Any, Any]:
    return await skipping.client.start_workflow(
        AGENT_TURN,
        {"agent": agent_of(*case), "prompt": "|".join(case)},
        id=session_of(house, case),
        task_queue=house.settings.task_queue,
    )


def session_of(house: House, case: tuple[str, str, str]) -> str:
    """The session of a case."""
    return f"{house.session}-{re.sub(r'[^a-z0-9]+', '-', ' '.join(case).lower())}"
