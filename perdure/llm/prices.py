"""Prices of answers, by an entry of litellm's map of models or by an agent's own prices.

An entry has US dollars a token, under litellm's names. Dearer rates count above a number of prompt tokens, or for a
service tier; some providers are cheaper at night. Tests compare every priced model of the map with litellm's own sum.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any, cast
from zoneinfo import ZoneInfo

Entry = Mapping[str, Any]

READ, WRITTEN = "input_cost_per_token", "output_cost_per_token"
CACHED, STORED = "cache_read_input_token_cost", "cache_creation_input_token_cost"

_TIERS: Mapping[str, str] = {
    "flex": "_flex",
    "balanced": "_balanced",
    "priority": "_priority",
    "fast": "_priority",
    "ultrafast": "_ultrafast",
}
"""Ends of the names of a service tier's rates, by what providers call the tier."""

_ABOVE = re.compile(r"_above_(?P<count>\d+)(?P<thousand>k?)_tokens(?P<tier>_\w+)?\Z")

_HALF = frozenset({"fireworks_ai"})
"""Providers that give a cached token for half of the price, where the map does not say. Source: Fireworks' prices."""

_INCLUSIVE = frozenset({"xai"})
"""Providers whose dearer rates begin at the number itself."""


@dataclass(frozen=True)
class Rates:
    """US dollars a token.

    Attributes:
        read: Of the prompt, without what a cache gave or took.
        cached: Of the prompt from the provider's cache.
        stored: Of the prompt that was put into it.
        written: Of the answer.
    """

    read: float
    cached: float
    stored: float
    written: float

    def cost(self, *, read: int, cached: int, stored: int, written: int) -> Decimal:
        """US dollars of an answer; ``read`` has the cached and the stored tokens in it."""
        rest = max(read - cached - stored, 0)
        dollars = rest * self.read + cached * self.cached + stored * self.stored + written * self.written
        return max(Decimal(f"{dollars:.15g}"), Decimal(0))  # a product of floats; further digits are noise


def rates_of(entry: Entry, *, prompt: int, now: datetime, tier: str = "") -> Rates | None:
    """The rates of an answer to so many tokens; None without a price, which is not free.

    Args:
        entry: The model's entry, or an agent's own prices.
        prompt: Tokens of the prompt, all of them.
        now: The time of the call, for rates that depend on it.
        tier: The service tier that the provider used.
    """
    if not any(_number(entry.get(name)) is not None for name in (READ, WRITTEN)) and "tiered_pricing" not in entry:
        return None
    stage = _stage(entry.get("tiered_pricing"), prompt)
    rates = _of_stage(entry, stage) if stage is not None else _of_entry(entry, prompt, _TIERS.get(tier.lower(), ""))
    off_peak = entry.get("off_peak_pricing")
    if isinstance(off_peak, Mapping) and _is_within(cast("Entry", off_peak), now):
        return _lowered(entry, rates, cast("Entry", off_peak))
    return rates


def _number(value: object) -> float | None:
    """A rate; some are written as a text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _of_entry(entry: Entry, prompt: int, tier: str) -> Rates:
    """The rates of an entry: of its tier and of the highest number of tokens that the prompt passes."""
    passed = [
        above for above, _ in sorted(_thresholds(entry, tier), key=lambda one: one[1]) if _passes(entry, prompt, above)
    ]

    def rate(name: str) -> float | None:
        found = _first(entry, f"{name}{tier}", name)
        for above in passed:
            higher = _first(entry, f"{name}{above}{tier}", f"{name}{above}")
            found = found if higher is None else higher
        return found

    read = rate(READ) or 0.0
    cached, stored = rate(CACHED), rate(STORED)
    if cached is None and entry.get("litellm_provider") in _HALF:
        cached = (_first(entry, READ) or 0.0) / 2
    return Rates(read, read if cached is None else cached, read if stored is None else stored, rate(WRITTEN) or 0.0)


def _first(entry: Entry, *names: str) -> float | None:
    return next((found for name in names if (found := _number(entry.get(name))) is not None), None)


def _thresholds(entry: Entry, tier: str) -> Iterator[tuple[str, int]]:
    """The parts of names that say above how many tokens a rate counts, with the number; each once."""
    seen: set[str] = set()
    for name in entry:
        found = _ABOVE.search(name) if name.startswith((READ, WRITTEN, CACHED, STORED)) else None
        if found is None or found["tier"] not in {None, tier or None}:
            continue
        above = f"_above_{found['count']}{found['thousand']}_tokens"
        if above not in seen:
            seen.add(above)
            yield above, int(found["count"]) * (1_000 if found["thousand"] else 1)


def _passes(entry: Entry, prompt: int, above: str) -> bool:
    found = _ABOVE.search(above)
    limit = int(found["count"]) * (1_000 if found["thousand"] else 1) if found else 0
    return prompt > limit or (prompt == limit and entry.get("litellm_provider") in _INCLUSIVE)


def _stage(stages: object, prompt: int) -> Entry | None:
    """The stage that prices all of an answer, by the size of its prompt."""
    if not isinstance(stages, Sequence) or prompt <= 0:
        return None
    ranged = [stage for stage in cast("Sequence[Entry]", stages) if "range" in stage]
    ordered = sorted(ranged, key=lambda stage: float(stage["range"][0]))
    fitting = [stage for stage in ordered if float(stage["range"][0]) < prompt <= float(stage["range"][1])]
    found: Entry = next(iter([*fitting, *ordered[-1:]]), dict[str, Any]())
    return found if READ in found else None


def _of_stage(entry: Entry, stage: Entry) -> Rates:
    read = _first(stage, READ) or 0.0
    written = _first(stage, WRITTEN) if WRITTEN in stage else _first(entry, WRITTEN)
    cached, stored = _first(stage, CACHED), _first(stage, STORED)
    return Rates(read, read if cached is None else cached, read if stored is None else stored, written or 0.0)


def _lowered(entry: Entry, rates: Rates, off_peak: Entry) -> Rates:
    """The rates of a cheap hour; a cache without a rate of its own costs what the prompt costs then."""
    read = _first(off_peak, READ)
    missing = rates.read if read is None else read
    cached = rates.cached if _has(entry, CACHED) else missing
    stored = rates.stored if _has(entry, STORED) else missing
    found = {
        name: _first(off_peak, own) for name, own in (("cached", CACHED), ("stored", STORED), ("written", WRITTEN))
    }
    lowered = replace(rates, read=missing, cached=cached, stored=stored)
    return replace(lowered, **{name: rate for name, rate in found.items() if rate is not None})


def _has(entry: Entry, name: str) -> bool:
    return _number(entry.get(name)) is not None


def _is_within(off_peak: Entry, now: datetime) -> bool:
    """Whether a time is in one of the cheap windows."""
    if _is_in(off_peak.get("hours_utc"), now):
        return True
    zone = off_peak.get("weekday_timezone")
    day = now.astimezone(ZoneInfo(zone) if isinstance(zone, str) else UTC).isoweekday()
    return any(
        _is_in(window.get("hours_utc"), now) and day in window.get("weekdays", range(1, 8))
        for window in cast("Sequence[Entry]", off_peak.get("windows") or ())
    )


def _is_in(hours: object, now: datetime) -> bool:
    """Whether a time is within hours such as ``16:30-00:30`` of UTC, or one of several."""
    windows = [hours] if isinstance(hours, str) else cast("Sequence[str]", hours or ())
    clock = now.astimezone(UTC).time()
    for window in windows:
        start, _, end = (time.fromisoformat(part.strip()) if part != "-" else part for part in window.partition("-"))
        begins, ends = cast("time", start), cast("time", end)
        if begins <= clock < ends or (begins >= ends and (clock >= begins or clock < ends)):
            return True
    return False
