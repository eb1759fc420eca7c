"""Limits of one tenant at a gateway: requests a second, bodies in memory, open streams, running jobs, what it keeps."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from starlette.exceptions import HTTPException

from perdure.client import Client
from perdure.client.schedules import Schedules
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.admission import OverLimit

BODIES_AT_ONCE, BODIES_OF_A_TENANT = 2.0, 1.25
"""Bodies that may be in memory, of all tenants and of one, as multiples of the longest body."""

SMALL_BODY = 64 * 1024
"""Bytes of bodies that a tenant may have in memory whatever others hold."""

LIST_SECONDS = 30.0
"""Longest time until Temporal lists a schedule."""

IDLE_SECONDS = 60.0
"""A tenant that asked nothing for so long is forgotten."""


@dataclass
class _Bucket:
    """Requests that a tenant may still send now, refilled every second."""

    left: float
    at: float


class Limits:
    """The limits of each tenant: requests and streams of this process, jobs and schedules of all. 0 means no limit."""

    def __init__(self, settings: Settings) -> None:
        self.requests = settings.gateway_max_requests
        self.streams = settings.gateway_max_streams
        self.running = settings.gateway_max_running
        self.schedules = settings.gateway_max_schedules
        self.webhooks = settings.gateway_max_webhooks
        self.pushes = settings.gateway_max_pushes
        self.blocks = settings.gateway_max_blocks
        self._buckets: dict[str, _Bucket] = {}
        self._open: dict[str, int] = {}
        self._longest_body = settings.gateway_max_body_bytes
        self._bodies: Counter[str] = Counter()
        self._added: dict[str, dict[str, float]] = {}

    @property
    def open_streams(self) -> int:
        """The open streams of all tenants."""
        return sum(self._open.values())

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

    @contextlib.contextmanager
    def body(self, tenant: str | None) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a body of the tenant as in memory until the block ends; gives what counts some more.

        Bodies without a token (None) take nobody's room: they are log-ins, which are short, one for each connection.

        Raises:
            HTTPException: With these there would be more than there may be, of the tenant or of all.
        """
        held = 0

        def count(size: int) -> None:
            nonlocal held
            if tenant is None:
                return
            own, every = self._bodies[tenant] + size, self._bodies.total() + size
            if own > self._longest_body * BODIES_OF_A_TENANT or (
                own > SMALL_BODY and every > self._longest_body * BODIES_AT_ONCE
            ):
                msg = "bodies of other requests are in memory; send large ones one after another"
                raise HTTPException(429, msg, {"Retry-After": "1"})
            held += size
            self._bodies[tenant] += size

        try:
            yield count
        finally:
            if tenant is not None:
                self._bodies[tenant] -= held
                if not self._bodies[tenant]:
                    del self._bodies[tenant]

    @asynccontextmanager
    async def begin_next(self, store: Store, tenant: str, session: str) -> AsyncIterator[None]:
        """Begin one more job of the tenant in the block, in an idle session.

        Raises:
            ProblemError: It has as many running as it may.
        """
        begun_at = await store.begin(tenant, session, self.running) if self.running else None
        if isinstance(begun_at, OverLimit):
            raise too_many_running(begun_at.running)
        async with counted_from(store, session, begun_at):
            yield

    async def check_webhooks(self, client: Client, tenant: str) -> None:
        """See that the tenant may have one more webhook; of many that are added at once, each sees those before.

        Raises:
            ProblemError: It has as many as it may.
        """
        if self.webhooks and (known := await (await client.store()).count_webhooks(tenant)) >= self.webhooks:
            raise _too_many(known, "webhooks", ProblemCode.TOO_MANY_WEBHOOKS)

    async def check_pushes(self, client: Client, tenant: str) -> None:
        """See that the open tasks of the tenant may have one more configuration of push notifications.

        Raises:
            ProblemError: They have as many as they may.
        """
        if self.pushes and (known := await (await client.store()).count_pushes(tenant)) >= self.pushes:
            raise _too_many(known, "push notifications of open tasks", ProblemCode.TOO_MANY_PUSHES)

    async def check_blocks(self, client: Client, tenant: str) -> None:
        """See that the tenant may have one more block in force.

        Raises:
            ProblemError: It has as many as it may.
        """
        if self.blocks and (known := await (await client.store()).count_blocks(tenant)) >= self.blocks:
            raise _too_many(known, "blocks in force", ProblemCode.TOO_MANY_BLOCKS)

    @asynccontextmanager
    async def add_schedule(self, schedules: Schedules, tenant: str, name: str) -> AsyncIterator[None]:
        """Add one more schedule of the tenant in the block, by what Temporal lists, and what was added here just now.

        Args:
            schedules: Those of the tenant.
            tenant: Whose they are.
            name: The id of the new one.

        Raises:
            ProblemError: It has as many as it may.
        """
        if not self.schedules:
            yield
            return
        now, added = time.monotonic(), self._added.setdefault(tenant, {})
        for known in [known for known, at in added.items() if now - at > LIST_SECONDS]:
            del added[known]
        before, made = tuple(added), name not in added
        added.setdefault(name, now)
        try:
            self._check_schedules({*before, *await schedules.names()}, name)
            yield
        except BaseException:
            if made:
                added.pop(name, None)
            raise

    def _check_schedules(self, names: Collection[str], name: str) -> None:
        if len(names) >= self.schedules and name not in names:  # which is refused in other words
            msg = f"the tenant has {len(names)} schedules, as many as it may; remove one first"
            raise ProblemError(429, ProblemCode.TOO_MANY_SCHEDULES, msg)

    def forget_schedule(self, tenant: str, name: str) -> None:
        """Count a schedule no longer, as it was removed."""
        self._added.get(tenant, {}).pop(name, None)


def _too_many(known: int, kind: str, code: ProblemCode) -> ProblemError:
    return ProblemError(429, code, f"the tenant has {known} {kind}, as many as it may; remove one first")


@asynccontextmanager
async def counted_from(store: Store, session: str, begun_at: datetime | None) -> AsyncIterator[None]:
    """Begin a turn in the block, whose session counts as running since then; if that fails, it counts no longer."""
    try:
        yield
    except Exception:
        if begun_at is not None:
            await store.forget_begun(session, begun_at)
        raise


def too_many_running(count: int) -> ProblemError:
    """The refusal of a turn of a tenant that has so many running jobs."""
    msg = f"the tenant has {count} running jobs, as many as it may; wait for one, or cancel one"
    return ProblemError(429, ProblemCode.TOO_MANY_RUNNING, msg, {"Retry-After": "30"})
