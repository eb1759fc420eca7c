"""A real Prometheus over a real fleet: no rule fires while it is well, each panel has data, a fault fires its alert.

One fleet for the whole file, whose tests run in their order: two workers and a gateway on PostgreSQL and a Temporal
server of their own. An hour of the rules is a minute here (:data:`tests.faults.prometheus.FASTER`).
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import temporalio.client

from perdure.cli.rules import read_expressions
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import Client
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.names import AGENT_TURN, Metric
from perdure.contracts.values import JsonValue
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.conftest import FAST
from tests.contract.repository import ROOT
from tests.faults.metric_causes import MOVES
from tests.faults.prometheus import PATIENT, Prometheus, faster, program_or_skip, prometheus
from tests.gateway import Door, gateway
from tests.house import House, WorkerProcess, become_a_user, eventually
from tests.postgresql import url_of

pytestmark = pytest.mark.deep

DASHBOARDS = ROOT / "deploy/grafana/dashboards"
FOR_EVER = 10_000
CALLS = 16
"""Payments under way at once, of which one of two workers has at least half: that one is killed."""

WITHIN = 60.0
"""Seconds: upper bound of each part of the load and of what provokes a fault, which are named if it is too long."""

VARIABLES = {
    "$__rate_interval": "10s",
    "$__range": "60s",
    "$agent": ".*",
    "$model": ".*",
}
"""What Grafana puts in place of the variables."""

NO_DATA: dict[str, str] = {}
"""Panels whose query gives nothing on this fleet, each with its reason."""


def answer(request: ChatRequest) -> Reply:
    """What the models say: some only fail, the others do what the prompt asks for."""
    match request.model:
        case "gpt-4.1-nano":
            return say("at last").after(*[faults.status(500)] * FOR_EVER)
        case "gpt-4.1":
            return say("at last").after(*[faults.quota_exhausted()] * FOR_EVER)
        case "away":
            return say("at last").after(*[faults.status(500)] * FOR_EVER)
        case "gpt-4o":
            return say("word " * 20_000)
    prompt = next(str(message["content"]) for message in request.messages if message["role"] == "user")
    if prompt.startswith("stumble"):
        return say("done").after(faults.rate_limited())
    if request.index % 2 == 0 and request.messages[-1]["role"] == "user":
        if prompt.startswith("write"):
            return call(("look", {"place": "home"}), ("peer__whoami", {}), ("helper", {"query": "help"}))
        if prompt.startswith("pay"):
            return call(*(("pay", argument("amount", number)) for number in range(CALLS)))
        if prompt.startswith("deafen"):
            return call(*(("deaf", argument("number", number)) for number in range(CALLS)))
        if prompt.startswith("ask"):
            return call(("ask_user", {"question": "Which colour?"}))
    return say("done")


def argument(name: str, value: int) -> JsonValue:
    """The one argument of a call."""
    return {name: value}


@dataclass
class Fleet:
    """What runs."""

    house: House
    server: EmbeddedServer
    postgresql: Any
    door: Door
    prometheus: Prometheus
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    """By their address."""
    paid: Path = Path()
    failures: dict[str, Exception] = field(default_factory=dict)
    """Why a fault could not be provoked, by its name."""

    async def start(self, agent: str, session: str, prompt: str = "go") -> None:
        """Start a turn and go on."""
        await self.house.client.start(agent, prompt, session=session)

    async def run(self, agent: str, session: str, prompt: str = "go") -> str:
        """A whole turn; how it ended."""
        turn = await self.house.client.start(agent, prompt, session=session)
        return (await turn.result()).stop_reason


@pytest.fixture(scope="module")
async def fleet(postgresql: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Everything; it is left as the last fault has left it."""
    program_or_skip("prometheus")
    folder, environment = tmp_path_factory.mktemp("fleet"), pytest.MonkeyPatch()
    async with AsyncExitStack() as stack:
        stack.callback(environment.undo)
        server = await stack.enter_async_context(
            EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=FAST))
        )
        become_a_user(environment, server.address)
        temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
        provider = await stack.enter_async_context(ScriptedProvider(answer))
        house = await stack.enter_async_context(
            House.built(name="fleet", server=server, temporal=temporal, environment=environment, folder=folder)
        )
        house.use(provider)
        postgresql.ensure_postgres_running()
        environment.setenv("PERDURE_STORE_URL", url_of(postgresql))
        environment.setenv("PAID", str(folder / "paid"))
        house.settings = Settings()
        house.store = await stack.enter_async_context(await Store.open(house.settings.store_url, upgrade=True))
        house.client = await stack.enter_async_context(await Client.connect(house.settings))
        workers = {}
        for _ in range(2):
            address = f"127.0.0.1:{find_free_port()}"
            workers[address] = house.spawn_worker("tests.faults.agents_for_alerts", PERDURE_METRICS_ADDRESS=address)
        for worker in workers.values():
            await worker.polling()
        door = await stack.enter_async_context(gateway(house))
        targets = {"perdure-worker": [*workers], "perdure-gateway": [door.url.removeprefix("http://")]}
        running = await stack.enter_async_context(prometheus(folder, targets))
        yield Fleet(house, server, postgresql, door, running, workers, folder / "paid")


async def within(what: str, awaited: Awaitable[object]) -> None:
    """Await it for its effect, and fail with its name if it does not end."""
    try:
        async with asyncio.timeout(WITHIN):
            await awaited
    except TimeoutError:
        msg = f"{what}: not done within {WITHIN:.0f} s"
        raise AssertionError(msg) from None


async def work(fleet: Fleet) -> None:
    """A turn of every kind that ends well, and requests, of which one is refused: then each series is there."""
    refused = {"agent": "nobody", "prompt": "go"}
    queue = fleet.house.settings.task_queue
    await asyncio.gather(
        within("refused", fleet.house.temporal.execute_workflow(AGENT_TURN, refused, id="refused", task_queue=queue)),
        within("writer", end_well(fleet, "writer", "write")),
        within("second", end_well(fleet, "second")),
        within("flaky", end_well(fleet, "flaky", "stumble")),
        within("reply", reply(fleet, "reply")),
        within("a request", fleet.door.http.get("/v1/sessions")),
    )
    await within("compact", compact(fleet, "writer"))
    await within("cancel", cancel(fleet, "cancel"))  # alone, so that it is quick on any machine


async def end_well(fleet: Fleet, agent: str, prompt: str = "go") -> None:
    """A whole turn in a session of the agent's name."""
    assert await fleet.run(agent, agent, prompt) != "error", agent


async def compact(fleet: Fleet, session: str) -> None:
    """A session's summary."""
    await (await fleet.house.client.compact(session)).result()


async def asked(fleet: Fleet, session: str) -> str:
    """Start a turn and wait until it asks; the id of its request."""
    await fleet.start("asks", session, "ask")
    (request,) = await eventually(lambda: fleet.house.client.inbox(session))
    return str(request.request_id)


async def reply(fleet: Fleet, session: str) -> None:
    """A turn that a person answers."""
    await fleet.house.client.answer(session, await asked(fleet, session), "red")


async def cancel(fleet: Fleet, session: str) -> None:
    """A turn that is cancelled."""
    await asked(fleet, session)
    await fleet.house.client.cancel(session)


def queries() -> Iterator[tuple[str, str]]:
    """The queries of all panels and variables, by their places, as Grafana sends them."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for expression in read_expressions(file):
            text = expression.text
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            assert "$" not in text, expression
            yield expression.place.removeprefix(f"{DASHBOARDS}/"), text


async def test_every_query_of_the_dashboards_returns_data_and_no_alert_fires(fleet: Fleet) -> None:
    """While all is well: each panel has something to show, and nobody is woken."""
    missing = {(place, query) for place, query in queries() if place not in NO_DATA}
    await work(fleet)

    async def all_seen() -> bool:
        await fleet.run("helper", "helper")  # some panels leave out what does not grow
        for place, query in sorted(missing):
            if await fleet.prometheus.query(query):
                missing.discard((place, query))
        return not missing

    with suppress(TimeoutError):
        await eventually(all_seen, WITHIN)
    assert not missing, "no data: " + "; ".join(f"{place}: {query}" for place, query in sorted(missing))
    assert await fleet.prometheus.fired() == []


Provoke = Callable[[Fleet], Awaitable[None]]


async def storm(fleet: Fleet) -> None:
    """A provider answers 500 again and again, a few times a second for as long as the tests take."""
    await asyncio.gather(*(fleet.start("storms", f"storm-{number}") for number in range(4)))


async def run_out(fleet: Fleet) -> None:
    """A provider's account is used up."""
    ends = await asyncio.gather(*(fleet.run("broke", f"broke-{number}") for number in range(4)))
    assert set(ends) == {"error"}


async def at_rest(fleet: Fleet, session: str) -> bool:
    """Whether no worker has a task of the turn: what it is sent then goes to one at once, and counts from there."""
    described = (await fleet.house.temporal.get_workflow_handle(session).describe()).raw_description
    return not (described.pending_activities or described.HasField("pending_workflow_task"))


async def stop_in_a_cancel(fleet: Fleet) -> None:
    """The workers hang while a turn is to be cancelled, for longer than a cancel may take: see ``PATIENT``."""
    await asked(fleet, "slow-cancel")
    await eventually(lambda: at_rest(fleet, "slow-cancel"))
    try:
        for worker in fleet.workers.values():
            worker.process.send_signal(signal.SIGSTOP)
        await fleet.house.client.cancel("slow-cancel")
        # A scrape that begins three seconds from now, and takes two to fail.
        silent = (fleet.prometheus.wait_for_silence(address, time.time() + 3) for address in fleet.workers)
        await asyncio.gather(*silent)
    finally:
        for worker in fleet.workers.values():
            worker.process.send_signal(signal.SIGCONT)


async def kill_in_payments(fleet: Fleet) -> None:
    """A worker is killed while it pays."""
    await fleet.start("pays", "payments", "pay")

    async def most_begun() -> str | None:
        lines = fleet.paid.read_text().splitlines() if fleet.paid.exists() else []
        pids = Counter(int(line.split()[0]) for line in lines)
        most = max(fleet.workers, key=lambda address: pids[fleet.workers[address].process.pid])
        return most if pids[fleet.workers[most].process.pid] >= CALLS // 2 else None

    fleet.workers.pop(await eventually(most_begun)).kill()


FAULTS: dict[str, tuple[Provoke, dict[str, dict[str, str]]]] = {
    "a killed worker": (
        kill_in_payments,
        {"PerdureEffectUnknown": {"tool": "pay"}, "PerdureWorkersLost": {"kind": "tool"}, "PerdureWorkerDown": {}},
    ),
    "slow cancel": (stop_in_a_cancel, {"PerdureCancelSlow": {}}),
    "errors of a provider": (storm, {"PerdureRetryStorm": {"model": "openai/gpt-4.1-nano"}, "PerdureOldestTurn": {}}),
    "a used-up account": (
        run_out,
        {
            "PerdureProviderRefuses": {"model": "openai/gpt-4.1", "reason_code": "llm.quota_exhausted"},
            "PerdureErrorBudgetFast": {"agent": "broke"},
        },
    ),
    "an answer that costs": (lambda fleet: fleet.start("spends", "spends"), {"PerdureCostBurn": {}}),
    "no price": (
        lambda fleet: fleet.start("free", "free"),
        {"PerdureUnpricedCalls": {"model": "openai/of-our-own"}},
    ),
    "nobody answers": (lambda fleet: fleet.start("asks", "asked", "ask"), {"PerdureWaitsForAPerson": {}}),
    "a tool that hears nothing": (
        lambda fleet: fleet.start("deafens", "deafens", "deafen"),
        {"PerdureToolsAbandoned": {"tool": "deaf"}},
    ),
    "an MCP server that hangs": (lambda fleet: fleet.start("opens", "opens"), {"PerdureTurnsQueued": {}}),
    "an MCP server that ends": (
        lambda fleet: fleet.start("dead", "dead"),
        {"PerdureMcpServerDown": {"server": "dead"}},
    ),
}
"""Faults that leave a fleet that works, and the alerts that each fires."""


ALONE = ("a killed worker", "slow cancel")
"""These come first, one after another: a killed worker takes along what it has counted, stopped ones do no work."""

FOLLOWS = {
    "PerdureActivityRepeats",
    "PerdureErrorBudgetSlow",
    "PerdureNoWorker",
    "PerdureTurnsStandStill",
}
"""Alerts that may follow: of the same errors and tools, and of workers that hang for a moment."""


@pytest.fixture(scope="module")
async def faulty(fleet: Fleet) -> Fleet:
    """The fleet after all faults, which are provoked at once: each alert takes its time."""

    async def provoke(fault: str) -> None:
        try:
            await within(fault, FAULTS[fault][0](fleet))
        except Exception as failure:  # noqa: BLE001 - the fault's own test raises it
            fleet.failures[fault] = failure

    for fault in ALONE:
        await provoke(fault)
    await asyncio.gather(*(provoke(fault) for fault in FAULTS if fault not in ALONE))
    return fleet


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_fires_its_alert(faulty: Fleet, fault: str) -> None:
    """The alert names what is broken."""
    if fault in faulty.failures:
        raise faulty.failures[fault]
    for name, labels in FAULTS[fault][1].items():
        await faulty.prometheus.wait_for_alert(name, **labels)


async def test_no_other_alert_fires(faulty: Fleet) -> None:
    """What is provoked, and what follows from it."""
    expected = {name for _, alerts in FAULTS.values() for name in alerts}
    assert {alert["alertname"] for alert in await faulty.prometheus.fired()} - expected <= FOLLOWS


async def test_every_metric_moves_by_its_cause(faulty: Fleet) -> None:
    """What was provoked so far, and a second turn of an agent that may have one."""
    for number in range(2):
        await faulty.start("single", f"single-{number}", "ask")
    unmoved = set(MOVES)

    async def all_moved() -> bool:
        for metric in sorted(unmoved):
            name = (
                f"{metric}_count" if await faulty.prometheus.query(f"count_over_time({metric}_count[1h])") else metric
            )
            query = f"max_over_time({name}[1h]) > 0"
            if metric == Metric.CALLS_PER_SECOND:
                query = f"min_over_time({name}[1h]) < +Inf"
            elif metric == Metric.MCP_SERVER_UP:
                query = f"(min(min_over_time({name}[1h])) == 0) and (max(max_over_time({name}[1h])) == 1)"
            if await faulty.prometheus.query(query):
                unmoved.discard(metric)
        return not unmoved

    with suppress(TimeoutError):
        await eventually(all_moved, WITHIN)
    assert {metric: MOVES[metric] for metric in unmoved} == {}


async def test_a_store_that_is_away_fires_for_workers_and_gateway_and_ends_when_it_is_back(faulty: Fleet) -> None:
    await asyncio.to_thread(faulty.postgresql.stop)

    async def ask() -> None:
        while True:
            with suppress(httpx.HTTPError):
                await faulty.door.http.get("/v1/sessions")
            await asyncio.sleep(0.1)

    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask())
            await faulty.prometheus.wait_for_alert("PerdureStoreAway")
            await faulty.prometheus.wait_for_alert("PerdureGatewayErrors")
            asking.cancel()
    finally:
        await asyncio.to_thread(faulty.postgresql.ensure_postgres_running)

    async def over() -> bool:
        return not {"PerdureStoreAway", "PerdureGatewayErrors"} & await faulty.prometheus.firing()

    await within("the alerts end", eventually(over))


async def test_a_fleet_without_workers_and_gateways_fires(faulty: Fleet) -> None:
    for worker in faulty.workers.values():
        worker.kill()
    faulty.door.server.stop()
    await asyncio.gather(*map(faulty.prometheus.wait_for_alert, ("PerdureNoWorker", "PerdureGatewayDown")))


def test_no_panel_is_excused_that_is_gone() -> None:
    assert set(NO_DATA) <= {place for place, _ in queries()}


def test_the_rules_are_shortened_and_nothing_else() -> None:
    """What the tests of this file change: windows, offsets and numbers of seconds."""
    assert faster("rate(a[5m] offset 1h) > 5 * 60 and b > 0.05 and c[1d] < 0.5 * 60") == (
        "rate(a[5000ms] offset 60000ms) > 5.0 and b > 0.05 and c[1440000ms] < 0.5"
    )
    assert faster("rate(a[30m]) > 0.5 * 60", PATIENT["PerdureCancelSlow"]) == "rate(a[30000ms]) > 3.0"
    assert json.loads((DASHBOARDS / "perdure-fleet.json").read_text())["uid"] == "perdure-fleet"
