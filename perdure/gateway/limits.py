"""What one tenant may take of a gateway: requests a second, open streams, running jobs."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.settings import Settings
from perdure.store import Store

IDLE_SECONDS = 60.0
"""A tenant that asked nothing for so long is forgotten."""


@dataclass
class _Bucket:
    """Requests that a tenant may still send now, refilled every second."""

    left: float
    at: float


class Limits:
    """The limits of each tenant: requests and streams of this process, jobs of all. 0 is no limit."""

    def __init__(self, settings: Settings) -> None:
        self.requests = settings.gateway_max_requests
        self.streams = settings.gateway_max_streams
        self.running = settings.gateway_max_running
        self._buckets: dict[str, _Bucket] = {}
        self._open: dict[str, int] = {}

    def take_request(self, tenant: str) -> None:
        """Count a request of the tenant.

        Raises:
            ProblemError: It has sent more than it may in this second.
        """
        if not self.requests:
            return
        now = time.monotonic()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            self._forget(now)
            bucket = self._buckets[tenant] = _Bucket(left=float(self.requests), at=now)
        bucket.left = min(float(self.requests), bucket.left + (now - bucket.at) * self.requests)
        bucket.at = now
        if bucket.left < 1:
            wait = max(1, math.ceil((1 - bucket.left) / self.requests))
            msg = f"the tenant sends more than {self.requests} requests a second; retry in {wait} s"
            raise ProblemError(429, ProblemCode.RATE_LIMITED, msg, {"Retry-After": str(wait)})
        bucket.left -= 1

    def _forget(self, now: float) -> None:
        for tenant in [name for name, bucket in self._buckets.items() if now - bucket.at > IDLE_SECONDS]:
            del self._buckets[tenant]

    @contextlib.contextmanager
    def stream(self, tenant: str) -> Iterator[None]:
        """Count a stream of the tenant as open until the block ends.

        Raises:
            ProblemError: It has as many open as it may.
        """
        count = self._open.get(tenant, 0)
        if self.streams and count >= self.streams:
            msg = f"the tenant has {count} open streams, as many as it may; close one first"
            raise ProblemError(429, ProblemCode.TOO_MANY_STREAMS, msg, {"Retry-After": "10"})
        self._open[tenant] = count + 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    async def check_running(self, store: Store, tenant: str, *, claimed: int = 0) -> None:
        """See that the tenant may start one more job, by what the store says of all gateways and other doors.

        Args:
            store: Where the jobs stand.
            tenant: Whose jobs.
            claimed: How many of those it counts are the one that is about to start.

        Raises:
            ProblemError: It has as many running as it may.
        """
        if not self.running:
            return
        count = await store.count_running(tenant) - claimed
        if count >= self.running:
            msg = f"the tenant has {count} running jobs, as many as it may; wait for one, or cancel one"
            raise ProblemError(429, ProblemCode.TOO_MANY_RUNNING, msg, {"Retry-After": "30"})
