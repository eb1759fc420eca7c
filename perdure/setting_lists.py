"""Settings that are lists with commas, as ``acme=5,trial=0.5``: readers of their text, by the name of the setting."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from perdure.contracts.queues import RateLimit, Role
from perdure.contracts.turn_context import VARIABLES

_WEIGHT = re.compile(r"(?P<tenant>[^=]+)=(?P<weight>\d+(?:\.\d+)?)")

_MOST = re.compile(r"(?P<tenant>[^=]+)=(?P<most>[1-9]\d{0,8})")

_OWNER = re.compile(rf"(?P<tenant>[^=]*)=(?P<variable>{VARIABLES}[A-Za-z0-9_]+)")

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000
"""Bounds of a tenant's weight, which are Temporal's."""


def parts_of(value: str) -> Iterator[str]:
    """The parts between the commas of a list, without blanks and without empty ones."""
    return filter(None, map(str.strip, value.split(",")))


def read_roles(value: str) -> list[str]:
    """The roles of a process.

    Raises:
        ValueError: One is none.
    """
    names = list(parts_of(value))
    if strange := [name for name in names if name not in set(Role)]:
        msg = f"{strange[0]} is no role; choose among {', '.join(Role)}, or set none for all in one process"
        raise ValueError(msg)
    return names


def read_rate_limits(value: str) -> tuple[RateLimit, ...]:
    """The rates of keys.

    Raises:
        ValueError: One is none, or a key has two.
    """
    limits = tuple(map(RateLimit.parse, parts_of(value)))
    _check_once([limit.key for limit in limits])
    return limits


def read_weights(value: str) -> dict[str, float]:
    """The weights of tenants.

    Raises:
        ValueError: One is none, or is out of bounds.
    """
    advice = f"is no weight; write TENANT=NUMBER, as in acme=5, from {LEAST_WEIGHT} to {MOST_WEIGHT}"
    found = _match_parts(_WEIGHT, value, advice, lambda part: LEAST_WEIGHT <= float(part["weight"]) <= MOST_WEIGHT)
    return {part["tenant"]: float(part["weight"]) for part in found}


def read_max_running(value: str) -> dict[str, int]:
    """The most turns of tenants at once.

    Raises:
        ValueError: One is none, or a tenant has two.
    """
    advice = "is no limit; write TENANT=NUMBER, as in acme=20, or *=5 for every other, from 1"
    found = list(_match_parts(_MOST, value, advice))
    _check_once([part["tenant"] for part in found])
    return {part["tenant"]: int(part["most"]) for part in found}


def read_owners(value: str) -> dict[str, frozenset[str]]:
    """The tenants of each variable.

    Raises:
        ValueError: A part names none.
    """
    advice = f"names no variable; write TENANT=VARIABLE, as in acme={VARIABLES}ACME, once for each"
    owners: dict[str, frozenset[str]] = {}
    for part in _match_parts(_OWNER, value, advice):
        owners[part["variable"]] = owners.get(part["variable"], frozenset()) | {part["tenant"]}
    return owners


READERS: Mapping[str, Callable[[str], object]] = {
    "roles": read_roles,
    "rate_limits": read_rate_limits,
    "tenant_weights": read_weights,
    "tenant_max_running": read_max_running,
    "tenant_variables": read_owners,
}
"""Readers of settings, by the field."""


def _match_parts(
    form: re.Pattern[str], value: str, advice: str, fits: Callable[[re.Match[str]], bool] = bool
) -> Iterator[re.Match[str]]:
    for part in parts_of(value):
        if (found := form.fullmatch(part)) is None or not fits(found):
            msg = f"{part!r} {advice}"
            raise ValueError(msg)
        yield found


def _check_once(keys: Sequence[str]) -> None:
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        msg = f"{twice[0]} has two limits; leave one out"
        raise ValueError(msg)
