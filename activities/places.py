"""Places of deliveries: how many may be under way at once in one worker, of one tenant and to one receiver.

A receiver that is slow, or that never answers, holds its few places, and others' messages go past it. A delivery that
finds no place gives its slot back at once, and comes again at a time that is kept for it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

PATIENCE = timedelta(seconds=15)
"""Timeout of a delivery: connection, TLS and reply together."""

SHORT_PATIENCE = timedelta(seconds=5)
"""The same to a receiver that has been silent lately, while another delivery to it has the whole patience."""

LATELY = timedelta(minutes=10)
"""Time for which a receiver's silence counts, and after which an idle receiver is forgotten."""

SHARE_OF_TENANT, SHARE_OF_RECEIVER = 4, 10
"""One in so many places of a worker may be a tenant's, or a receiver's."""

SOONEST, LATEST = timedelta(seconds=1), timedelta(minutes=1)
"""Bounds of the time after which a delivery that found no place comes again."""

MANY = 1_000
"""Tenants and receivers that are remembered before idle ones are forgotten."""


class NoPlaceError(Exception):
    """All places of a tenant or receiver are taken.

    Attributes:
        wait: Time after which to come again.
    """

    def __init__(self, message: str, wait: timedelta) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass
class _Line:
    """The deliveries of one tenant, or to one of its receivers. Times are seconds of a monotonic clock."""

    at: float
    """When it was last asked for."""
    began: list[float] = field(default_factory=list[float])
    """When those under way began, the oldest first."""
    patient: int = 0
    """Those under way that have the whole patience."""
    took: float = SOONEST.total_seconds()
    """Seconds that those which have ended took, of late."""
    kept_until: float = 0.0
    """Until when places are kept for those that come again."""
    silent_at: float | None = None
    """When the receiver last gave no answer; None if it has answered since."""

    def keep(self, now: float, most: int) -> float:
        """Keep a place for a delivery that comes again; returns in how many seconds that is."""
        takes = max(self.took, now - self.began[0])
        kept = max(now + SOONEST.total_seconds(), self.kept_until + takes / most)
        self.kept_until = min(kept, now + LATEST.total_seconds())
        return self.kept_until - now

    def end(self, began: float, now: float) -> None:
        """Free the place of a delivery that began then."""
        self.began.remove(began)
        self.took = (self.took + now - began) / 2


@dataclass
class Place:
    """The place of one delivery.

    Attributes:
        patience: Its timeout.
        answered: Whether the receiver has answered, or refused the connection; None while nothing is known.
    """

    patience: timedelta
    answered: bool | None = None


@dataclass
class Places:
    """The places of one worker.

    Args:
        most: Deliveries that the worker has under way at once.
        monotonic: The clock.
    """

    most: int
    monotonic: Callable[[], float] = time.monotonic
    _lines: dict[tuple[str, ...], _Line] = field(default_factory=dict[tuple[str, ...], _Line], init=False)

    @contextmanager
    def take(self, tenant: str, receiver: str) -> Iterator[Place]:
        """Hold a place of the tenant and of its receiver in the block, which says whether the receiver answers.

        Raises:
            NoPlaceError: All of one of them are taken.
        """
        now = self.monotonic()
        of_tenant, of_receiver = self._line(now, tenant), self._line(now, tenant, receiver)
        for line, share, whose in (
            (of_receiver, SHARE_OF_RECEIVER, receiver),
            (of_tenant, SHARE_OF_TENANT, "the tenant"),
        ):
            most = max(1, self.most // share)
            if len(line.began) >= most:
                wait = timedelta(seconds=line.keep(now, most))
                raise NoPlaceError(f"{whose} has as many messages under way as it may at once ({most})", wait)
        is_patient = not (of_receiver.patient and _is_recent(of_receiver.silent_at, now))
        place = Place(PATIENCE if is_patient else min(PATIENCE, SHORT_PATIENCE))
        of_tenant.began.append(now)
        of_receiver.began.append(now)
        of_receiver.patient += is_patient
        try:
            yield place
        finally:
            ended = self.monotonic()
            of_receiver.patient -= is_patient
            for line in (of_tenant, of_receiver):
                line.end(now, ended)
            if place.answered is not None:
                of_receiver.silent_at = None if place.answered else ended

    def _line(self, now: float, *name: str) -> _Line:
        line = self._lines.get(name)
        if line is None:
            if len(self._lines) >= MANY:
                kept = {name: line for name, line in self._lines.items() if line.began or _is_recent(line.at, now)}
                self._lines = kept
            line = self._lines[name] = _Line(now)
        line.at = now
        return line


def _is_recent(at: float | None, now: float) -> bool:
    """Whether that time is not long ago."""
    return at is not None and now - at < LATELY.total_seconds()
