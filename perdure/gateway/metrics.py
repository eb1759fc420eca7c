"""The metrics of a gateway, for Prometheus. No tenant and no session is in them: the page needs no token."""

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest


class HttpMetrics:
    """Requests by route: the pattern and not the path, so that there are as many as routes."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        names = ("method", "route", "status")
        self._requests = Counter("perdure_http_requests_total", "Answered requests", names, registry=self.registry)
        self._seconds = Histogram(
            "perdure_http_seconds", "Seconds until the answer's end", ("route",), registry=self.registry
        )
        self.streams = Gauge("perdure_http_streams", "Open event streams", registry=self.registry)

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``route`` is empty where none took it."""
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route or "none", str(status)).inc()
        self._seconds.labels(route or "none").observe(seconds)

    def page(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


async def is_well(check: Callable[[], Awaitable[object]], seconds: float = 5.0) -> str:
    """Empty if the check passes in time; else why not, in one line."""
    try:
        async with asyncio.timeout(seconds):
            await check()
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    except Exception as error:  # noqa: BLE001 - a probe says what is wrong, whatever it is
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""
