"""Pace of a key: halved when the provider refuses a call, raised when it serves one; no clock in here.

Before the first refusal there is no limit. The pace is found as TCP finds that of a network: what is sent until the
provider refuses tells what it takes (additive increase, multiplicative decrease).
"""

import math
from collections import deque
from dataclasses import dataclass

REFUSALS = frozenset({429, 503, 529})
"""Statuses with which a provider asks for fewer calls: too many requests, no capacity, overloaded."""

LIMITED = 429
"""The status that says it of this key. 503 and 529 may be one server of many, which fails whatever the pace is."""

REMEMBERED, MANY = 20, 10
"""A 503 or 529 without Retry-After counts as a limit once so many (10) of the last calls (20) were refused.

Fewer are left to the calls' own retries. One error in seven calls, whatever the pace, would otherwise bring it down to
:data:`LEAST`: a pace that is halved so often never rises again.
"""

LEAST = 1 / 30
"""The slowest pace, in calls a second: there are keys for three calls a minute, and who was away may be back."""

MOST = 1_000.0
"""A faster pace counts as no limit: no worker sends more calls a second."""

RAISE = 0.05
"""Calls a second that a served call adds, so that the pace doubles in 14 s; at least a hundredth of it.

At most a tenth; and a tenth as long as nobody has seen where the limit is.
"""

LATE = 0.05
"""Seconds that a call may be sent late without the next ones being late too: timers are not exact."""

LONGEST_CLOSING = 120.0
"""Seconds that a provider may close a key for all calls; who asks for more is asked by each call, whose policy decides.

A call with a shorter patience ends then, or goes to a fallback, and does not wait for an hour.
"""

SPREAD = 0.1
"""Share of a closing by which it is longer at random, so that the workers of a fleet do not come back at once."""

HOPELESS = 300.0
"""Seconds without one served call after which a refusing provider is not limited but away."""

HOPELESS_WAIT = 30.0
"""Seconds that a call then waits for its turn at most: each is to hear it, and to end or go to a fallback."""

FORGET = 600.0
"""Seconds without a refusal after which the limit is lifted."""


WORTH_TELLING = 1.0
"""Seconds by which a key opens later than known, for another refusal of the same calls to be news."""


@dataclass(frozen=True)
class Sent:
    """A call on its way: when it was sent, and how many calls were in the second up to it."""

    at: float
    recent: int


class Pace:
    """The pace of one key. Times are seconds of any one clock.

    Attributes:
        rate: Calls a second; None while no limit is known.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._recent: deque[float] = deque()
        self._slot = -math.inf
        self._closed_until = -math.inf
        self._heard_at = -math.inf
        self._heard_until = -math.inf
        self._cut_at = -math.inf
        self._steady = 0.0
        self._served_since_cut = True
        self._served = False
        self._is_limited = False
        self._refused_since: float | None = None
        self._were_refused: deque[bool] = deque(maxlen=REMEMBERED)

    def compute_opening(self, now: float, waiting: int) -> float:
        """When the next of ``waiting`` calls may be sent; at most ``now`` if it may at once."""
        if self.rate is None:
            return now
        opens = max(self._closed_until, self._slot + 1 / self.rate)
        if self._refused_since is not None and now - self._refused_since > HOPELESS:
            opens = min(opens, self._slot + HOPELESS_WAIT / max(1, waiting))
        return opens

    def send(self, now: float) -> Sent:
        """Note that a call is sent."""
        while self._recent and self._recent[0] <= now - 1:
            self._recent.popleft()
        self._recent.append(now)
        step = 0.0 if self.rate is None else 1 / self.rate
        self._slot = min(max(self._slot + step, now - LATE), now)
        return Sent(at=now, recent=len(self._recent))

    def serve(self, sent: Sent, now: float) -> None:
        """Note that the provider has served a call.

        The first served call after refusals takes the pace back to where the first of them had put it.
        """
        self._refused_since = None
        self._served = True
        self._were_refused.append(False)
        if self.rate is None:
            return
        if now - self._cut_at > FORGET or self.rate > MOST:
            self.rate, self._is_limited = None, False
            return
        if sent.at > self._cut_at:
            self._served_since_cut = True
            self.rate = max(self.rate, self._steady)
        careful = max(RAISE, self.rate / 100) if self._is_limited else math.inf
        self.rate += min(careful, self.rate / 10)

    def hear(self, at: float, until: float, rate: float, now: float, jitter_sample: float) -> None:
        """Note what another worker of the fleet was told about the key.

        A worker that knows of no limit takes over the pace. One that does goes by its own refusals: if each of 30
        workers slowed down for every refusal in the fleet, the pace would be halved 30 times too often.

        Args:
            at: When its call was refused.
            until: When the key takes calls again; not after ``at`` if the provider did not say.
            rate: The pace it has taken since.
            now: The time.
            jitter_sample: A random number in [0, 1]: the workers of a fleet do not come back at once.
        """
        if at <= self._heard_at:
            return
        self._heard_at = at
        left = min(until - now, LONGEST_CLOSING)
        if left > 0:
            self._heard_until = max(self._heard_until, now + left * (1 + SPREAD * jitter_sample))
            self._closed_until = max(self._closed_until, self._heard_until)
        if self.rate is None:
            self.rate = self._steady = rate
            self._cut_at, self._is_limited = now, True

    def is_closed_for_all(self, now: float) -> bool:
        """Whether another worker was told to wait: then nobody's own policy has waited."""
        return self._heard_until > now

    def close_of(self, now: float) -> float:
        """Seconds until the key takes calls again, by what the provider asked for."""
        return max(0.0, self._closed_until - now)

    def refuse(self, sent: Sent, now: float, status: int, retry_after: float | None, jitter_sample: float) -> bool:
        """Note that the provider has refused a call; calls that were sent before the last cut do not cut again.

        Args:
            sent: The call.
            now: The time.
            status: One of :data:`REFUSALS`.
            retry_after: Seconds the provider asked for.
            jitter_sample: A random number in [0, 1].

        Returns:
            Whether it is news for the other workers: the provider has said that there is a limit, or until when.
        """
        before = self._closed_until
        if self._refused_since is None:
            self._refused_since = now
        if retry_after is not None and retry_after <= LONGEST_CLOSING:
            self._closed_until = max(self._closed_until, now + retry_after * (1 + SPREAD * jitter_sample))
        self._were_refused.append(True)
        is_said = status == LIMITED or retry_after is not None
        if sent.at <= self._cut_at or not (is_said or sum(self._were_refused) >= MANY):
            return self._closed_until > max(before, now) + WORTH_TELLING
        self._were_refused.clear()
        # What has never served a call is away; where its limit is will be seen when it is back.
        self._is_limited = self._served
        used = float(sent.recent) if self.rate is None else min(self.rate, sent.recent)
        self.rate = max(LEAST, used / 2)
        if self._served_since_cut:
            self._steady = self.rate
        self._served_since_cut = False
        self._cut_at = now
        return is_said
