"""The pace of a limited key, in simulated time: what many jobs need, and how each rule moves the rate."""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise

import pytest

from perdure.activities.models.pace import HEAR_SECONDS
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.llm.pace import FORGET, HOPELESS, HOPELESS_WAIT, LEAST, LONGEST_CLOSING, MANY, Pace, Sent
from perdure.llm.retries import Chain, End, decide

LATENCY = 0.03
"""Seconds until the provider has answered."""


@dataclass
class Job:
    """One job: the steps that are left, and how often the step's call was refused."""

    steps: int
    refusals: int = 0
    counted: float = 0.0


@dataclass
class Worker:
    """One worker: its pace, the calls that wait at its gate, and what it was refused last, as the others read it."""

    pace: Pace = field(default_factory=Pace)
    line: deque[Job] = field(default_factory=deque[Job])
    refusal: tuple[float, float, float] | None = None

    def opening(self, now: float) -> float:
        return self.pace.compute_opening(now, len(self.line)) if self.line else math.inf


@dataclass
class Storm:
    """Jobs on one key, as the gates of the workers let them pass: in order, at the pace.

    Attributes:
        rate: Calls a second that the provider takes, and ``burst`` at once; it answers the others with ``status``.
        errors: Share of the calls that one of its servers fails with 503, however many there are.
        workers: How many share the key. Any of them makes the next call of a job; all hear of the others every second.
    """

    rate: float
    burst: float
    seed: int
    retry_after: float | None = None
    closed_until: float = 0.0
    status: int = 429
    errors: float = 0.0
    workers: int = 1
    requests: int = 0
    refused: int = 0
    failed: int = 0
    now: float = 0.0

    def run(self, jobs: int, steps: int) -> None:
        self._random = random.Random(self.seed)
        self._tokens, self._refilled = self.burst, 0.0
        self._fleet = [Worker() for _ in range(self.workers)]
        self._left = jobs
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        for number in range(jobs):
            self._at(number * 0.01, partial(self._wait, Job(steps)))
        for number, worker in enumerate(self._fleet if self.workers > 1 else ()):
            self._at(HEAR_SECONDS * (1 + number / self.workers), partial(self._hear, worker))
        while self._left:
            self._let_pass()
            opens = min(worker.opening(self.now) for worker in self._fleet)
            due = self._agenda[0][0] if self._agenda else math.inf
            self.now = max(self.now, min(opens, due))
            if due < opens:
                heapq.heappop(self._agenda)[2]()

    def _at(self, time: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, len(self._agenda) + self._random.randrange(1_000_000), what))

    def _wait(self, job: Job) -> None:
        self._random.choice(self._fleet).line.append(job)

    def _hear(self, worker: Worker) -> None:
        told = sorted(other.refusal for other in self._fleet if other is not worker and other.refusal)
        for at, until, rate in told:
            if until > self.now or at > self.now - 10:
                worker.pace.hear(at, until, rate, self.now, self._random.random())
        self._at(self.now + HEAR_SECONDS, partial(self._hear, worker))

    def _let_pass(self) -> None:
        for worker in self._fleet:
            while worker.opening(self.now) <= self.now:
                job, sent = worker.line.popleft(), worker.pace.send(self.now)
                self.requests += 1
                self._at(self.now + LATENCY, partial(self._answered, worker, job, sent, self._answer()))

    def _answer(self) -> int:
        if self._random.random() < self.errors:
            return 503
        self._tokens = min(self.burst, self._tokens + (self.now - self._refilled) * self.rate)
        self._refilled = self.now
        if self.now < self.closed_until or self._tokens < 1:
            return self.status
        self._tokens -= 1
        return 200

    def _answered(self, worker: Worker, job: Job, sent: Sent, status: int) -> None:
        if status == 200:
            worker.pace.serve(sent, self.now)
            job.steps, job.refusals, job.counted = job.steps - 1, 0, 0.0
            if job.steps:
                self._wait(job)
            else:
                self._left -= 1
            return
        self.refused += 1
        job.refusals += 1
        if worker.pace.refuse(sent, self.now, status, self.retry_after, self._random.random()):
            worker.refusal = self.now, self.now + worker.pace.close_of(self.now), worker.pace.rate or 1.0
        chain = Chain(attempt=job.refusals, elapsed=timedelta(seconds=job.counted), retry_after=self.retry_after)
        limited = REASONS[ReasonCode.LLM_RATE_LIMITED]
        decided = decide(RetryPolicy(), limited, chain, jitter_sample=self._random.random())
        if isinstance(decided, End):
            self.failed += 1
            self._left -= 1
        else:
            wait = decided.time.total_seconds()
            job.counted += wait
            self._at(self.now + wait, partial(self._wait, job))


@pytest.mark.parametrize("seed", range(10))
def test_many_jobs_on_a_limited_key_need_little_more_than_the_ideal(seed: int) -> None:
    """300 answers at five a second take 59 s at best; each job by itself made 960 requests in 265 s."""
    storm = Storm(rate=5, burst=5, seed=seed)
    storm.run(jobs=100, steps=3)
    assert storm.failed == 0
    assert storm.requests <= 320
    assert storm.now <= 70


@pytest.mark.parametrize(
    ("storm", "jobs", "requests", "seconds"),
    [
        (Storm(rate=50, burst=50, seed=1), 1_000, 3_100, 65),
        (Storm(rate=1, burst=1, seed=1), 50, 180, 250),
        (Storm(rate=1 / 20, burst=1, seed=1), 10, 80, 1_100),
        (Storm(rate=5, burst=5, seed=1, retry_after=1), 100, 320, 75),
        (Storm(rate=5, burst=5, seed=1, retry_after=10), 100, 320, 125),
        (Storm(rate=1_000, burst=1_000, seed=1, closed_until=60), 100, 320, 120),
        (Storm(rate=1_000, burst=1_000, seed=1, closed_until=60, retry_after=20), 100, 320, 100),
    ],
    ids=["50/s", "1/s", "3/min", "asks for 1 s", "asks for 10 s", "a minute away", "a minute away and asks for 20 s"],
)
def test_no_job_fails_whatever_the_limit(storm: Storm, jobs: int, requests: int, seconds: float) -> None:
    storm.run(jobs=jobs, steps=3)
    assert storm.failed == 0
    assert storm.requests <= requests
    assert storm.now <= seconds


@pytest.mark.parametrize("retry_after", [None, 60, 600])
def test_a_provider_that_serves_nobody_ends_all_jobs_in_minutes(retry_after: float | None) -> None:
    """Waiting for a turn has no end of its own, so the line must move: each job's own policy ends it."""
    storm = Storm(rate=0, burst=0, seed=1, retry_after=retry_after)
    storm.run(jobs=100, steps=3)
    assert storm.failed == 100
    assert storm.now <= 1_000


@pytest.mark.parametrize(
    ("storm", "requests", "seconds"),
    [
        (Storm(rate=5, burst=5, seed=1, workers=3), 360, 110),
        (Storm(rate=5, burst=5, seed=1, workers=10), 420, 180),
        (Storm(rate=5, burst=5, seed=1, workers=30), 520, 180),
        (Storm(rate=5, burst=5, seed=1, workers=10, retry_after=1), 420, 180),
        (Storm(rate=5, burst=5, seed=1, status=503), 500, 100),
        (Storm(rate=5, burst=5, seed=1, status=503, workers=10), 1_000, 180),
    ],
    ids=["3 workers", "10", "30", "10, asks for 1 s", "503", "503 to 10 workers"],
)
def test_a_fleet_on_a_limited_key_needs_little_more_than_the_ideal(storm: Storm, requests: int, seconds: float) -> None:
    """59 s at best. When each refusal slowed all workers down, ten of them needed 650 to 850 s."""
    storm.run(jobs=100, steps=3)
    assert storm.failed == 0
    assert storm.requests <= requests
    assert storm.now <= seconds


@pytest.mark.parametrize("workers", [1, 3, 20])
@pytest.mark.parametrize(("errors", "seconds"), [(0.05, 60), (1 / 7, 120), (0.25, 600)])
def test_errors_of_single_servers_do_not_slow_a_fleet_down(workers: int, errors: float, seconds: float) -> None:
    """There is no limit to be found. When each 503 halved the pace, one in twenty made 6,000 calls take 2.6 hours."""
    storm = Storm(rate=10_000, burst=10_000, seed=1, errors=errors, workers=workers)
    storm.run(jobs=200, steps=30)
    assert storm.failed == 0
    assert storm.now <= seconds


def refused(pace: Pace, at: float, *, status: int = 429, retry_after: float | None = None) -> Sent:
    sent = pace.send(at)
    pace.refuse(sent, at, status, retry_after, 0.0)
    return sent


def test_before_the_first_refusal_nothing_waits() -> None:
    pace = Pace()
    for _ in range(1_000):
        assert pace.compute_opening(0.0, 1_000) == 0.0
        pace.serve(pace.send(0.0), 0.0)
    assert pace.rate is None


def test_a_refusal_halves_the_pace_once_for_all_that_was_sent_before() -> None:
    pace = Pace()
    sent = [pace.send(number / 10) for number in range(10)]
    pace.refuse(sent[-1], 1.0, 429, None, 0.0)
    assert pace.rate == 5.0
    for call in sent:
        pace.refuse(call, 1.0, 429, None, 0.0)
    assert pace.rate == 5.0
    refused(pace, 1.5)
    assert pace.rate is not None
    assert pace.rate < 5.0


def test_the_pace_spaces_calls_evenly() -> None:
    pace = Pace()
    for number in range(8):
        refused(pace, number / 100)
    rate = pace.rate
    assert rate is not None
    now, times = 10.0, list[float]()
    for _ in range(5):
        now = max(now, pace.compute_opening(now, 5))
        times.append(now)
        pace.send(now)
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([1 / rate] * 4)


def test_what_the_provider_asks_for_closes_the_key_for_all() -> None:
    pace = Pace()
    refused(pace, 0.0, retry_after=30)
    assert pace.compute_opening(1.0, 1) == 30.0


def test_a_very_long_wait_is_left_to_each_call() -> None:
    """Its own policy ends it, or asks a fallback."""
    pace = Pace()
    refused(pace, 0.0, retry_after=LONGEST_CLOSING + 1)
    assert pace.compute_opening(1.0, 1) <= 1 / LEAST


def test_fleets_come_back_one_after_the_other() -> None:
    pace = Pace()
    pace.refuse(pace.send(0.0), 0.0, 429, 100.0, 1.0)
    assert pace.compute_opening(0.0, 1) == pytest.approx(110.0)


def test_the_first_served_call_takes_the_pace_back_to_where_the_outage_began() -> None:
    pace = Pace()
    for number in range(10):
        pace.serve(pace.send(number / 10), number / 10)
    refused(pace, 1.0)
    before = pace.rate
    assert before is not None
    for number in range(20):
        refused(pace, 2.0 + number)
    assert pace.rate == LEAST
    pace.serve(pace.send(60.0), 60.0)
    assert pace.rate >= before


def test_a_provider_without_any_served_call_is_asked_by_each_waiting_call_in_time() -> None:
    pace = Pace()
    for number in range(200):
        refused(pace, float(number), retry_after=LONGEST_CLOSING)
    now = HOPELESS + 1
    assert pace.compute_opening(now, 100) <= 199 + HOPELESS_WAIT / 100


def test_a_limit_is_forgotten() -> None:
    pace = Pace()
    refused(pace, 0.0)
    pace.serve(pace.send(FORGET + 1), FORGET + 1)
    assert pace.rate is None


def test_a_worker_that_hears_of_a_refusal_waits_as_long_and_comes_back_spread_out() -> None:
    paces = [Pace() for _ in range(20)]
    for number, pace in enumerate(paces):
        pace.hear(at=0.0, until=30.0, rate=2.0, now=1.0, jitter_sample=number / 20)
    opens = [pace.compute_opening(1.0, 5) for pace in paces]
    assert min(opens) >= 30.0
    assert max(opens) > min(opens) + 2  # not at once, as a herd
    first = paces[0]
    first.send(opens[0])
    assert first.compute_opening(opens[0], 4) > opens[0] + 0.4  # and then one by one


def test_a_worker_that_knows_the_limit_goes_by_its_own_refusals() -> None:
    pace = Pace()
    pace.refuse(pace.send(10.0), 10.0, 429, None, 0.0)
    rate = pace.rate
    pace.hear(at=12.0, until=12.0, rate=5.0, now=12.5, jitter_sample=0.0)
    assert pace.rate == rate
    pace.hear(at=13.0, until=43.0, rate=5.0, now=13.5, jitter_sample=0.0)
    assert pace.compute_opening(14.0, 1) == 43.0


@pytest.mark.parametrize("status", [503, 529])
def test_an_error_that_names_no_time_is_a_limit_once_half_of_the_last_calls_met_it(status: int) -> None:
    """Other workers are not told of it: each finds out by itself, if it is so."""
    pace = Pace()
    for number in range(MANY - 1):
        pace.serve(pace.send(float(number)), number + 0.5)
        assert not pace.refuse(pace.send(number + 0.6), number + 0.7, status, None, 0.0)
        assert pace.rate is None
    assert not pace.refuse(pace.send(100.0), 100.0, status, None, 0.0)
    assert pace.rate is not None


@pytest.mark.parametrize(("status", "retry_after"), [(429, None), (429, 3.0), (503, 3.0), (529, 3.0)])
def test_a_limit_that_the_provider_names_is_one_at_once(status: int, retry_after: float | None) -> None:
    pace = Pace()
    assert pace.refuse(pace.send(1.0), 1.0, status, retry_after, 0.0)
    assert pace.rate is not None
