"""Many jobs at once on one key that the provider limits: how many requests they need, and how many jobs fail.

Prints requests, refused requests, failed jobs and the time until the last job ended, beside what a client that knew
the limit would need. Ends with 1 when a job failed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.provider import answer
from benchmarks.stage import staged
from perdure.contracts.turns import TurnResult
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults

JOBS, STEPS = 100, 3
RATE, BURST = 5.0, 5.0
PATIENCE_SECONDS = 900.0
Figures = dict[str, Any]


class Limit:
    """A token bucket in front of the scripted model: a request without a token is refused with status 429."""

    def __init__(self, rate: float, burst: float, retry_after: str) -> None:
        self.times: list[float] = []
        self.refused = 0
        self._rate, self._burst, self._retry_after = rate, burst, retry_after
        self._tokens = burst

    def answer(self, request: ChatRequest) -> Reply:
        """The model's answer, or the refusal."""
        now = time.monotonic()
        since = now - self.times[-1] if self.times else 0.0
        self.times.append(now)
        self._tokens = min(self._burst, self._tokens + since * self._rate)
        if self._tokens >= 1:
            self._tokens -= 1
            return answer(request)
        self.refused += 1
        seconds = f"{(1 - self._tokens) / self._rate:.3f}" if self._retry_after == "exact" else self._retry_after
        fault = faults.rate_limited(headers={"retry-after": seconds} if seconds != "none" else None)
        return Reply(faults=(fault,) * 1_000)


async def measured(given: argparse.Namespace) -> Figures:
    """The figures of all jobs, on a stage of their own."""
    limit = Limit(given.rate, given.burst, given.retry_after)
    with tempfile.TemporaryDirectory(prefix="perdure-limited-") as folder:
        async with staged(Path(folder)) as stage, ScriptedProvider(limit.answer) as provider:
            stage.environment |= {"OPENAI_BASE_URL": provider.url, "OPENAI_API_BASE": provider.url}
            await stage.worker()
            began = time.monotonic()
            seconds: list[float] = []

            async def job(number: int) -> TurnResult:
                prompt = f"job={number} steps={given.steps}"
                turn = await stage.client.start("bench", prompt, session=f"limited-{number}")
                result = await turn.result()
                seconds.append(time.monotonic() - began)
                return result

            async with asyncio.timeout(PATIENCE_SECONDS):
                results = await asyncio.gather(*map(job, range(given.jobs)))
    needed = given.jobs * given.steps
    gaps = (later - earlier for earlier, later in zip(limit.times, limit.times[1:], strict=False))
    return {
        "jobs": given.jobs,
        "failed": sum(result.stop_reason != "finished" for result in results),
        "requests": len(limit.times),
        "requests_ideal": needed,
        "refused": limit.refused,
        "last_job_s": max(seconds),
        "median_job_s": median(seconds),
        "ideal_s": max(0.0, needed - given.burst) / given.rate,
        "longest_idle_s": max(gaps, default=0.0),
    }


def main() -> None:
    """Run the jobs, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs at once, {JOBS} by default")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"model calls of each, {STEPS} by default")
    parser.add_argument("--rate", type=float, default=RATE, help=f"requests a second, {RATE:g} by default")
    parser.add_argument("--burst", type=float, default=BURST, help=f"requests at once, {BURST:g} by default")
    parser.add_argument("--retry-after", default="none", help="none, exact, or seconds that each refusal asks for")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured(given))
    sys.stdout.write(" · ".join(f"{name} {value:,.2f}".removesuffix(".00") for name, value in figures.items()) + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(1 if figures["failed"] else 0)


if __name__ == "__main__":
    main()
