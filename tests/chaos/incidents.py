"""What an operator meets, on a fleet under load with the alerts of deploy/ on a real Prometheus, as one table.

``python -m tests.chaos.incidents`` takes the better part of an hour: durations and rules are those of production. For
each incident it says which alerts fired and when, how long after its end the work went on and the last of its jobs
ended, how its turns ended, what was lost or done twice, and whether the gateway's list agreed with the store.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import click

from perdure.contracts.errors import ReasonCode
from perdure.contracts.messages import ToolMessage
from perdure.contracts.turns import StopReason
from perdure.testing import ChatRequest, Reply, call, faults, say
from tests.chaos.agents import EFFECTS
from tests.chaos.agents_on_duty import CHANGED
from tests.chaos.fleet import PATIENCE, Fleet, Job
from tests.chaos.recording import Times, record
from tests.chaos.storm import STEPS
from tests.faults.prometheus import Prometheus, prometheus

AT_ONCE = 8
WATCH = 15.0
"""Seconds of load before an incident, in which no alert may fire."""

BEFORE_A_RECORDING = 90.0
"""The same if its series are recorded: rules that look back a minute see a fleet that is well."""


@dataclass
class World:
    """What is wrong with the provider at the moment."""

    is_away: bool = False
    is_poisonous: bool = False

    def answer(self, request: ChatRequest) -> Reply:
        """Jobs of some seconds: payments and puts; while it is away, 503."""
        if self.is_away:
            return say("").after(*[faults.status(503)] * 1_000)
        prompt = next(str(message["content"]) for message in request.messages if message["role"] == "user")
        job, at = int(prompt.split()[-1]), request.index
        if at % STEPS == STEPS - 1:
            return say(f"done {job}").after(faults.delay(1))
        if self.is_poisonous and at % STEPS == 2 and job % 5 == 0:
            return call(("poison", {}))
        pay, put = ("pay", {"amount": at}), ("put", {"text": str(at)})
        return call(*((pay,), (put,), (pay, put))[(job + at) % 3]).after(faults.delay(1))


WORLD = World()

Incident = Callable[[Fleet], AbstractAsyncContextManager[None]]
INCIDENTS: dict[str, tuple[float, Incident]] = {}


def incident(name: str, seconds: float) -> Callable[[Incident], Incident]:
    """Register what an incident does, and for how long."""

    def register(made: Incident) -> Incident:
        INCIDENTS[name] = seconds, made
        return made

    return register


@incident("a worker is killed, as for memory", 30)
@asynccontextmanager
async def _killed(fleet: Fleet) -> AsyncIterator[None]:
    fleet.workers[0].end(signal.SIGKILL)
    yield


@incident("a worker is frozen", 58)
@asynccontextmanager
async def _frozen(fleet: Fleet) -> AsyncIterator[None]:
    pid = fleet.workers[0].end(signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


@incident("PostgreSQL is down", 78)
@asynccontextmanager
async def _without_store(fleet: Fleet) -> AsyncIterator[None]:
    with fleet.databases.away(fleet.store_url):
        yield


@incident("PostgreSQL is read-only", 60)
@asynccontextmanager
async def _read_only(fleet: Fleet) -> AsyncIterator[None]:
    with fleet.databases.read_only(fleet.store_url):
        yield


@incident("PostgreSQL is out of connections", 60)
@asynccontextmanager
async def _crowded(fleet: Fleet) -> AsyncIterator[None]:
    with fleet.databases.crowded(fleet.store_url):
        yield


@incident("PostgreSQL's disk is full", 60)
@asynccontextmanager
async def _full(fleet: Fleet) -> AsyncIterator[None]:
    with fleet.databases.full(fleet.store_url):
        yield


@incident("a tool kills its worker", 40)
@asynccontextmanager
async def _poisoned(fleet: Fleet) -> AsyncIterator[None]:
    del fleet
    WORLD.is_poisonous = True
    try:
        yield
    finally:
        WORLD.is_poisonous = False


@incident("Temporal is away", 72)
@asynccontextmanager
async def _without_temporal(fleet: Fleet) -> AsyncIterator[None]:
    os.kill(fleet.server.pid or 0, signal.SIGKILL)
    await fleet.server.wait()
    yield
    await fleet.server.start()


@incident("a gateway is killed under its followers", 30)
@asynccontextmanager
async def _without_gateway(fleet: Fleet) -> AsyncIterator[None]:
    fleet.gateways[0].end(signal.SIGKILL)
    yield


@incident("every worker is replaced", 60)
@asynccontextmanager
async def _replaced(fleet: Fleet) -> AsyncIterator[None]:
    for worker in fleet.workers:
        await worker.replace(fleet.http)
    yield


@incident("a deploy changes a tool, and is rolled back", 90)
@asynccontextmanager
async def _changed(fleet: Fleet) -> AsyncIterator[None]:
    async def deploy(version: str) -> None:
        for worker in fleet.workers:
            worker.environment["INCIDENT"] = version
            await worker.replace(fleet.http)

    await deploy(CHANGED)
    yield
    await deploy("")


@incident("a worker has no key of the model", 60)
@asynccontextmanager
async def _keyless(fleet: Fleet) -> AsyncIterator[None]:
    worker = fleet.workers[0]
    key = worker.environment.pop("OPENAI_API_KEY")
    await worker.replace(fleet.http)
    yield
    worker.environment["OPENAI_API_KEY"] = key
    await worker.replace(fleet.http)


@incident("a worker has a namespace that does not exist", 60)
@asynccontextmanager
async def _lost_worker(fleet: Fleet) -> AsyncIterator[None]:
    worker = fleet.workers[0]
    worker.environment["TEMPORAL_NAMESPACE"] = "nowhere"
    worker.end(signal.SIGTERM)
    yield
    del worker.environment["TEMPORAL_NAMESPACE"]
    await worker.ready(fleet.http)


@incident("the provider is away", 480)
@asynccontextmanager
async def _without_provider(fleet: Fleet) -> AsyncIterator[None]:
    del fleet
    WORLD.is_away = True
    try:
        yield
    finally:
        WORLD.is_away = False


@dataclass
class Account:
    """What became of one incident.

    Attributes:
        alerts: Seconds from the beginning of the incident until each alert fired.
        went_on: Seconds from its end until the next step was stored.
        over: Seconds from its end until the last job that it met had ended.
        resumed: How many turns that an error had ended go on by one request after it.
        ends: How many turns ended in which way.
        wrong: What was lost, doubled or listed falsely.
    """

    name: str
    seconds: float
    alerts: dict[str, float] = field(default_factory=dict)
    went_on: float = 0.0
    over: float = 0.0
    resumed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def row(self) -> str:
        """A row of the table."""
        alerts = ", ".join(f"{name} {after:.0f} s" for name, after in self.alerts.items()) or "none"
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        wrong = "; ".join(self.wrong) or "nothing"
        times = f"{self.went_on:.0f} s; {self.over:.0f} s"
        return f"| {self.name} ({self.seconds:.0f} s) | {alerts} | {times} | {ends} | {self.resumed} | {wrong} |"


HEAD = (
    "| incident | alerts, and when | went on; over | turns | resumed | lost, doubled or listed falsely |\n"
    "|---|---|---|---|---|---|"
)


async def meet(fleet: Fleet, watching: Prometheus, name: str, recorded_in: Path | None = None) -> Account:
    """Load the fleet, have one incident, and see every job to its end."""
    seconds, strike = INCIDENTS[name]
    account, first, enough = Account(name, seconds), len(fleet.jobs), asyncio.Event()
    loading = asyncio.create_task(fleet.load(AT_ONCE, enough))
    start = time.time()
    await asyncio.sleep(BEFORE_A_RECORDING if recorded_in else WATCH)
    before = await _alerts(watching)
    began, began_at = time.monotonic(), time.time()
    noting = asyncio.create_task(_note_alerts(watching, account, before, began))
    try:
        async with strike(fleet):
            await asyncio.sleep(seconds)
        ended, ended_at = time.monotonic(), time.time()
        account.went_on = await _next_step(fleet, first) - ended
        enough.set()
        await loading
        account.over = time.monotonic() - ended
        account.resumed = await _resume(fleet, fleet.jobs[first:])
        await asyncio.sleep(30)  # for alerts on what the incident has left
        if recorded_in:
            times = Times(start=start, began=began_at, ended=ended_at, end=time.time())
            click.echo(f"recorded: {await record(watching, name, recorded_in, times)}", err=True)
    finally:
        enough.set()
        loading.cancel()
        noting.cancel()
        await asyncio.gather(loading, noting, return_exceptions=True)
    await _judge(fleet, fleet.jobs[first:], account)
    return account


async def _note_alerts(watching: Prometheus, account: Account, before: set[str], began: float) -> None:
    while True:
        for name in await _alerts(watching) - before:
            account.alerts.setdefault(name, time.monotonic() - began)
        await asyncio.sleep(1)


async def _alerts(watching: Prometheus) -> set[str]:
    """The alerts that fire, each with the causes or instances for which it does."""
    labels = ("cause", "reason", "instance")
    return {
        " ".join([alert["alertname"], *(f"({alert[label]})" for label in labels if label in alert)])
        for alert in await watching.alerts()
    }


async def _resume(fleet: Fleet, jobs: list[Job]) -> int:
    """Go on with what an error has ended, by one request to a gateway, until it has ended again; how many turns."""
    asked = {"dry_run": False, "limit": 500, "per_second": 100}
    reply = await fleet.http.post(f"{fleet.gateways[1].url}/v1/resume", json=asked)
    sessions = {item["session"] for item in reply.raise_for_status().json()["items"] if item["outcome"] == "resumed"}
    resumed = [job for job in jobs if job.session in sessions]
    for job in resumed:
        job.turns += 1
    await asyncio.gather(*(fleet.see_end(job) for job in resumed))
    return len(resumed)


async def _next_step(fleet: Fleet, first: int) -> float:
    """When a step of a job was stored for the next time."""

    async def steps() -> int:
        with contextlib.suppress(Exception):
            return sum((await fleet.store.last_seqs([job.session for job in fleet.jobs[first:]])).values())
        return -1

    async with asyncio.timeout(PATIENCE):
        while (known := await steps()) < 0:
            await asyncio.sleep(0.2)
        while await steps() <= known:
            await asyncio.sleep(0.2)
    return time.monotonic()


async def _judge(fleet: Fleet, jobs: list[Job], account: Account) -> None:
    effects = Counter((fleet.folder / EFFECTS).read_text(encoding="utf-8").splitlines())
    for job in jobs:
        turns = await fleet.store.turns(job.session)
        results = [turn.result for turn in turns]
        account.ends.update(
            "open" if result is None else result.reason_code or result.stop_reason.value for result in results
        )
        if len(turns) != job.turns or None in results:
            account.wrong.append(f"{job.session}: {job.turns} messages, {len(turns)} turns")
        if not all(b == a + 1 for a, b in pairwise([0, *job.seen])):
            account.wrong.append(f"{job.session}: a follower saw {job.seen}")
        listed = (await fleet.http.get(f"{fleet.gateways[1].url}/v1/sessions/{job.session}")).json()
        last = results[-1] if results else None
        if last is not None and last.stop_reason is StopReason.ERROR:
            account.wrong.append(
                f"{job.session}: its last turn ended with {last.reason_code}, also once it was resumed"
            )
        if last is not None and listed["stop_reason"] != last.stop_reason.value:
            account.wrong.append(
                f"{job.session}: ended with {last.stop_reason.value}, listed as {listed['stop_reason']}"
            )
        for message in await fleet.store.transcript(job.session):
            if not isinstance(message, ToolMessage):
                continue
            if message.error and message.error.code == ReasonCode.TOOL_EFFECT_UNKNOWN:
                account.ends["call told as unknown"] += 1
            elif not message.error and not any(effect.endswith(f"/{message.call_id}") for effect in effects):
                account.wrong.append(f"{job.session}: {message.call_id} is told as done and had no effect")
    twice = [effect for effect, times in effects.items() if times > 1 and effect.startswith(("pay ", "poison "))]
    ours = [effect for effect in twice if any(f" {job.session}/" in effect for job in jobs)]
    account.wrong += [f"{effect} was done {effects[effect]} times" for effect in ours]


async def run(names: list[str], folder: Path, recorded_in: Path | None = None) -> list[Account]:
    """The incidents one after another, on one fleet."""
    async with Fleet.running(folder, WORLD.answer, "tests.chaos.agents_on_duty") as fleet:
        targets = {
            "perdure-worker": [member.url.removeprefix("http://") for member in fleet.workers],
            "perdure-gateway": [member.url.removeprefix("http://") for member in fleet.gateways],
        }
        (folder / "prometheus").mkdir()
        async with prometheus(folder / "prometheus", targets, as_deployed=True) as watching:
            accounts: list[Account] = []
            click.echo(HEAD)
            for name in names:
                accounts.append(await meet(fleet, watching, name, recorded_in))
                click.echo(accounts[-1].row())
    return accounts


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(INCIDENTS)), help="This incident; may be repeated.")
@click.option(
    "--record",
    "recorded_in",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Also write the series of each incident into this folder.",
)
def main(only: tuple[str, ...], recorded_in: Path | None) -> None:
    """Have incidents on a fleet; exits with 1 if something was lost, doubled or listed falsely."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-incidents-"))
    click.echo(f"logs: {folder}", err=True)
    accounts = asyncio.run(run(list(only) or list(INCIDENTS), folder, recorded_in))
    sys.exit(any(account.wrong for account in accounts))


if __name__ == "__main__":
    main()
