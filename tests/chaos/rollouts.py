"""Rollouts, roll-backs, drains and a restore on a fleet under load, with every effect counted, as one table.

``python -m tests.chaos.rollouts`` takes a quarter of an hour. Release B of the agents has a tool, an agent and a
delegate that A lacks (:mod:`tests.chaos.agents_of_releases`). A job's prompt is its plan, so that what it is to do is
known before: each word is a call, and each call has one effect, named after the job and the word.
"""

import asyncio
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from perdure.contracts.errors import ReasonCode
from perdure.contracts.messages import ToolMessage
from perdure.testing import ChatRequest, Reply, call, faults, say
from tests.chaos.agents import EFFECTS
from tests.chaos.fleet import PATIENCE, Fleet, Job, Member
from tests.faults.prometheus import Prometheus, prometheus
from tests.house import eventually
from tests.temporal_cli import carry_out, make_current

AGENTS = "tests.chaos.agents_of_releases"
THINKING = 0.3
"""Seconds of each answer of the model; ``think=S`` in a plan takes S of them."""

OLD = "pay ship=6 put pay ship=6 put pay"
"""Plan of a job that both releases can carry out; about 16 seconds."""

NEW = "pay ship=8 put ship=8 pay ship=8 refund courier pay"
"""Plan of a job that comes to need B, half a minute after its start."""

OF_THE_OLD, OF_THE_NEW = ({"RELEASE": release, "PERDURE_BUILD_ID": release} for release in "AB")
LENGTH = 8.0
"""Seconds of each call that a drain meets."""

SEEN_WITHIN = 90.0
"""Seconds, at most, until an operator is told of turns that stand still."""

NOTE, LEFT = "was restored from an older copy", "somebody has to look at what was done"
_PLAN = re.compile(r"job ([\d/]+): (.+)")


def play(request: ChatRequest) -> Reply:
    """Go through the plan by what the conversation shows as done; who is told that it shows not all does no more."""
    told = [str(message.get("content")) for message in request.messages if message["role"] != "assistant"]
    if any(NOTE in text for text in told):
        return say(LEFT)
    found = next(plan for text in told if (plan := _PLAN.search(text)))
    job, words = found[1], found[2].split()
    at = sum(bool(message.get("tool_calls")) for message in request.messages)
    if at >= len(words):
        return say(f"done {job}").after(faults.delay(THINKING))
    name, _, seconds = words[at].partition("=")
    order = f"{job}/{at}"
    match name:
        case "courier":
            made = call(("courier", {"query": f"job {order}: pay"}))
        case "ship":
            made = call(("ship", {"order": order, "seconds": float(seconds)}))
        case "think":
            return call(("pay", {"order": order})).after(faults.delay(float(seconds)))
        case _:
            made = call((name, {"order": order}))
    return made.after(faults.delay(THINKING))


def effects_of(job: str, plan: str) -> Iterator[str]:
    """What a job has done once its plan is done."""
    for at, word in enumerate(plan.split()):
        name = word.partition("=")[0]
        order = f"{job}/{at}"
        yield f"pay {order}/0" if name == "courier" else f"{'pay' if name == 'think' else name} {order}"


@dataclass
class Account:
    """What became of the jobs of a run.

    Attributes:
        expected: Effects of all plans.
        seen: Those of them that were had.
        doubled: Effects of plain tools that were had more than once.
        left: Expected ones that a job left to somebody, as it was told that its conversation does not show everything.
        lost: The other expected ones that were not had.
        unknown: Calls whose effect the model was told to be unknown.
        paid_twice: Answers that the model was asked for once more.
        stand_still: Longest time in seconds between two events of a job, and between all of them.
        saw: What the operator saw, and when.
        wrong: Anything else that should not be.
    """

    name: str
    jobs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    expected: int = 0
    seen: int = 0
    doubled: list[str] = field(default_factory=list)
    left: int = 0
    lost: list[str] = field(default_factory=list)
    unknown: int = 0
    paid_twice: int = 0
    stand_still: tuple[float, float] = (0.0, 0.0)
    saw: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def row(self) -> str:
        """A row of the table."""
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        effects = " / ".join(
            map(str, (self.expected, self.seen, len(self.doubled), len(self.lost), self.unknown, self.left))
        )
        still = f"{self.stand_still[0]:.0f} s; {self.stand_still[1]:.0f} s"
        saw, wrong = ("; ".join(said) or "nothing" for said in (self.saw, self.wrong))
        return f"| {self.name} | {self.jobs} | {ends} | {effects} | {self.paid_twice} | {still} | {saw} | {wrong} |"


HEAD = (
    "| run | jobs | turns | effects expected / seen / doubled / lost / unknown / left | answers asked for again "
    "| longest without an event: one job; all | the operator saw | wrong |\n|---|---|---|---|---|---|---|---|"
)


@dataclass
class Stage:
    """A fleet and what is known of its jobs before they run."""

    fleet: Fleet
    watching: Prometheus
    account: Account
    plans: dict[str, str] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)

    async def begin(self, count: int, plan: str, agent: str = "chaos") -> list[Job]:
        """Start so many jobs with this plan."""
        jobs = []
        for _ in range(count):
            number = str(next(self.fleet.numbers))
            self.plans[number] = plan
            jobs.append(await self.fleet.begin(f"job-{number}", agent, f"job {number}: {plan}"))
        return jobs

    async def opened(self, jobs: Sequence[Job]) -> None:
        """Wait until each has had an answer of the model."""

        async def so() -> bool:
            steps = await self.fleet.store.last_seqs([job.session for job in jobs])
            return all(steps.get(job.session, 0) > 2 for job in jobs)

        await eventually(so, PATIENCE)

    async def ended(self, jobs: Sequence[Job]) -> None:
        """See each to its end."""
        await asyncio.gather(*(self.fleet.see_end(job) for job in jobs))

    async def deploy(self, workers: Sequence[Member], **changes: str) -> None:
        """Replace these workers in place, one after the other, by some with this change of their environment."""
        for worker in workers:
            worker.environment.update(changes)
            self.replaced.append(await worker.replace(self.fleet.http))

    async def perdure(self, *arguments: str) -> str:
        """What a command of an operator prints."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.cli", *arguments),
            env=self.fleet.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return output.decode()

    async def standing(self) -> dict[str, Any]:
        """The waits of the turns that need a version, by their sessions."""
        lines = (await self.perdure("list", "--needs-version", "--json")).splitlines()
        return {line["session"]: line["waits_for"] for line in map(json.loads, lines)}

    async def sees_all_standing(self, jobs: Sequence[Job]) -> None:
        """Wait until the list, the doctor and the alert tell of exactly these jobs, and note how long each took."""
        began, wanted = time.monotonic(), sorted(job.session for job in jobs)
        said: dict[str, object] = {}

        async def listed() -> bool:
            said["list"] = sorted(await self.standing())
            return said["list"] == wanted

        async def fires() -> bool:
            said["alert"] = await self.watching.firing()
            return "PerdureTurnsNeedVersion" in await self.watching.firing()

        async def told() -> bool:
            said["doctor"] = await self.perdure("doctor")
            names = {line.split()[2] for line in str(said["doctor"]).splitlines() if line.startswith("✗ turns: job-")}
            more = f"{len(jobs) - len(names)} more turns stand still"
            return names <= {*wanted} and (len(names) == len(jobs) or more in str(said["doctor"]))

        for name, condition in (("list", listed), ("alert", fires), ("doctor", told)):
            try:
                await eventually(condition, SEEN_WITHIN)
            except TimeoutError:
                self.account.wrong.append(f"{name} does not tell of {wanted}: {said[name]}")
            else:
                self.account.saw.append(f"{name}: all {len(jobs)} after {time.monotonic() - began:.0f} s")


Run = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A run, and what its processes have in their environment."""

    play: Run
    environment: dict[str, str]


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, **environment: str) -> Callable[[Run], Run]:
    """Register a run; one function may be registered with several environments."""

    def register(made: Run) -> Run:
        SCENARIOS[name] = Scenario(made, {"PERDURE_SHUTDOWN_GRACE": "30", **environment})
        return made

    return register


@scenario("A to B in place, and back")
async def _in_place(stage: Stage) -> None:
    """Jobs begun under each; those that need B stand still after the roll-back, and one worker of B carries them on."""
    workers = [*stage.fleet.workers]
    before = await stage.begin(8, OLD)
    await stage.opened(before)
    await stage.deploy(workers, **OF_THE_NEW)
    within = await stage.begin(8, NEW)
    await stage.opened(within)
    await stage.deploy(workers, **OF_THE_OLD)
    after = await stage.begin(4, OLD)
    await stage.ended([*before, *after])
    await stage.sees_all_standing(within)
    stage.fleet.hire(**OF_THE_NEW)
    await stage.ended(within)


@scenario("a new agent in a mixed fleet, and its roll-back")
async def _new_agent(stage: Stage) -> None:
    """One worker of three has it: every start and message that was accepted is carried out, also after it has gone."""
    newest = stage.fleet.workers[0]
    await stage.deploy([newest], **OF_THE_NEW)
    jobs = await stage.begin(16, "pay put pay", agent="courier")
    for job in jobs[::2]:
        await stage.fleet.send(job, "and then?")
    await stage.ended(jobs)
    stage.account.wrong += [f"{name} fires in a mixed fleet" for name in await stage.watching.firing()]
    standing = await stage.begin(4, " ".join(["put"] * 24), agent="courier")
    await stage.opened(standing)
    await stage.deploy([newest], **OF_THE_OLD)
    await stage.fleet.send(standing[0], "and then?")
    await stage.sees_all_standing(standing)
    stage.fleet.hire(**OF_THE_NEW)
    await stage.ended(standing)


async def _versions(stage: Stage) -> None:
    """B beside A, made current and undone; what then stands still goes on by the advice, and B drains."""
    fleet = stage.fleet
    make = partial(make_current, fleet.temporal, fleet.environment["PERDURE_TASK_QUEUE"], "storm")
    await make("A")
    before = await stage.begin(6, OLD)
    await stage.opened(before)
    of_the_new = [fleet.hire(**OF_THE_NEW) for _ in range(2)]
    await fleet.ready()
    await make("B")
    within = await stage.begin(6, NEW)
    await stage.opened(within)
    await make("A")
    after = await stage.begin(4, OLD)
    await stage.ended([*before, *after])
    moved = set[str]()

    async def over() -> bool:
        for session, wait in (await stage.standing()).items():
            if session not in moved:
                await carry_out(wait["advice"], fleet.server.address)
                moved.add(session)
        turns = [await fleet.store.turns(job.session) for job in within]
        return all(turn.result for found in turns for turn in found)

    await eventually(over, PATIENCE)
    await stage.ended(within)
    stage.account.saw.append(f"list --needs-version: {len(moved)} of {len(within)}, each moved by its advice as it is")
    await eventually(lambda: _drained(fleet, "B"))
    stage.replaced += [await worker.stop() for worker in of_the_new]
    told = [line for line in (await stage.perdure("doctor")).splitlines() if "deployment versions:" in line]
    stage.account.saw += [f"doctor: {line}" for line in told]


for _mode in ("auto_upgrade", "rotate", "pinned"):
    scenario(
        f"versions with {_mode}, there and back",
        PERDURE_DEPLOYMENT="storm",
        PERDURE_VERSIONING=_mode,
    )(_versions)


async def _drained(fleet: Fleet, build: str) -> bool:
    query = f"TemporalWorkerDeploymentVersion = 'storm:{build}' AND ExecutionStatus = 'Running'"
    return (await fleet.temporal.count_workflows(query)).count == 0


async def _drain(stage: Stage) -> None:
    """All workers are told to stop at once, amid ten long calls of plain tools and ten long calls of the model."""
    jobs = await stage.begin(10, f"ship={LENGTH} put") + await stage.begin(10, f"think={LENGTH} put")

    async def at_work() -> bool:
        asked = {_asked(request.request)[0] for request in stage.fleet.provider.requests}
        return len(asked) == len(jobs) and len(_effects(stage.fleet)) == len(jobs) // 2

    await eventually(at_work)
    began = time.monotonic()
    await asyncio.gather(*(stage.deploy([worker]) for worker in stage.fleet.workers))
    stage.account.saw.append(f"new workers ready after {time.monotonic() - began:.0f} s")
    cut_off = [line for file in stage.fleet.folder.glob("worker-*.log") for line in _cut_off(file)]
    stage.account.saw.append(f"{len(cut_off)} lines of calls that the drain has cut off")
    await stage.ended(jobs)


scenario("drain at 20 calls, grace longer than each")(_drain)
scenario("drain at 20 calls, grace shorter than each", PERDURE_SHUTDOWN_GRACE="2")(_drain)


def _cut_off(log: Path) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if "the drain has cut off" in line]


@scenario("a restore of an older copy")
async def _restore(stage: Stage) -> None:
    """Work goes on after the copy; who is asked to go on behind it is told, and does nothing again."""
    fleet, copy = stage.fleet, stage.fleet.folder / "copy"
    ended = await stage.begin(6, "pay put")
    await stage.ended(ended)
    running = await stage.begin(4, OLD) + await stage.begin(4, " ".join([OLD] * 3))
    await stage.opened(running)
    await fleet.databases.dump(fleet.store_url, copy)
    for job in ended[:3]:
        await fleet.send(job, "and then?")
    newer = await stage.begin(4, "pay put")
    await stage.ended([*ended, *running[:4], *newer])
    stopped = await asyncio.gather(*(member.stop() for member in fleet.members))
    stage.account.wrong += [f"a process ended with {code}" for code in stopped if code]
    await fleet.databases.restore(fleet.store_url, copy)
    stage.account.saw += [line.strip() for line in (await stage.perdure("doctor")).splitlines() if "older" in line]
    done = (await stage.perdure("store", "reconcile")).splitlines()
    said = Counter(line.partition(":")[0] for line in done)
    stage.account.saw.append(f"store reconcile: {dict(said)}")
    for member in fleet.members:
        member.start()
    await fleet.ready()
    # Nothing of the sessions that are missing can be had; what they have done stays done.
    fleet.jobs = [job for job in fleet.jobs if job not in newer]
    await eventually(lambda: _all_ended(fleet), PATIENCE)
    await asyncio.gather(*(_go_on(stage, job) for job in fleet.jobs))


async def _all_ended(fleet: Fleet) -> bool:
    turns = [await fleet.store.turns(job.session) for job in fleet.jobs]
    return all(turn.result for found in turns for turn in found)


async def _go_on(stage: Stage, job: Job) -> None:
    """Ask a job to go on; its turns are those that the store knows."""
    job.turns, job.seen, job.may_end = (
        len(await stage.fleet.store.turns(job.session)),
        [],
        frozenset({"finished", "error"}),
    )
    await stage.fleet.send(job, "go on")
    await stage.fleet.see_end(job)


def _asked(request: ChatRequest) -> tuple[str, int]:
    texts = (str(message.get("content")) for message in request.messages if message["role"] == "user")
    found = next(plan for text in texts if (plan := _PLAN.search(text)))
    users = sum(message["role"] == "user" for message in request.messages)
    return f"{found[1]}, message {users}", request.index


def _effects(fleet: Fleet) -> list[str]:
    """What was done, in order, without the keys."""
    file = fleet.folder / EFFECTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [" ".join(line.split()[:2]) for line in lines]


async def _left(stage: Stage, effect: str) -> bool:
    """Whether the job of an effect has left it to somebody."""
    job = effect.split()[1].partition("/")[0]
    turns = await stage.fleet.store.turns(f"job-{job}")
    return bool(turns) and turns[-1].result is not None and turns[-1].result.output == LEFT


async def settle(stage: Stage) -> None:
    """Fill in the account, once every job has ended."""
    account, fleet = stage.account, stage.fleet
    expected = {effect for job, plan in stage.plans.items() for effect in effects_of(job, plan)}
    done = Counter(_effects(fleet))
    account.jobs = len(stage.plans)
    account.expected, account.seen = len(expected), len(expected & set(done))
    account.doubled = [effect for effect, times in done.items() if times > 1 and not effect.startswith("put ")]
    left = {effect for effect in expected - set(done) if await _left(stage, effect)}
    account.left, account.lost = len(left), sorted(expected - set(done) - left)
    account.wrong += [f"{effect} was in no plan" for effect in sorted(set(done) - expected)]
    asked = Counter(_asked(request.request) for request in fleet.provider.requests)
    account.paid_twice = asked.total() - len(asked)
    account.wrong += [f"a replaced worker ended with {code}" for code in stage.replaced if code]
    moments: list[float] = []
    for job in fleet.jobs:
        turns = await fleet.store.turns(job.session)
        results = [turn.result for turn in turns]
        account.ends.update(str(result and (result.reason_code or result.stop_reason.value)) for result in results)
        at = [event.at.timestamp() for event in await fleet.store.events(job.session, limit=10_000)]
        moments += at
        longest = max((later - earlier for earlier, later in pairwise(at)), default=0.0)
        account.stand_still = max(account.stand_still[0], longest), 0.0
        account.unknown += sum(
            isinstance(message, ToolMessage)
            and message.error is not None
            and message.error.code == ReasonCode.TOOL_EFFECT_UNKNOWN
            for message in await fleet.store.transcript(job.session)
        )
    moments.sort()
    account.stand_still = account.stand_still[0], max(later - earlier for earlier, later in pairwise(moments))
    account.wrong += [said async for said in fleet.broken_jobs()]


async def run(name: str, folder: Path) -> Account:
    """Play one run on a fleet of its own."""
    made = SCENARIOS[name]
    async with Fleet.running(folder, play, AGENTS, **OF_THE_OLD, **made.environment) as fleet:
        targets = {
            "perdure-worker": [member.url.removeprefix("http://") for member in fleet.workers],
            "perdure-gateway": [member.url.removeprefix("http://") for member in fleet.gateways],
        }
        (folder / "prometheus").mkdir()
        async with prometheus(folder / "prometheus", targets, as_deployed=True) as watching:
            stage = Stage(fleet, watching, Account(name))
            await made.play(stage)
            await settle(stage)
            return stage.account


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="This run; may be repeated.")
def main(only: tuple[str, ...]) -> None:
    """Have rollouts and a restore on a fleet; exits with 1 if anything was lost, doubled or wrong."""
    click.echo(HEAD)
    bad = False
    for name in only or SCENARIOS:
        folder = Path(tempfile.mkdtemp(prefix="perdure-rollouts-"))
        click.echo(f"logs: {folder}", err=True)
        account = asyncio.run(run(name, folder))
        click.echo(account.row())
        bad = bad or bool(account.doubled or account.lost or account.wrong)
    sys.exit(bad)


if __name__ == "__main__":
    main()
