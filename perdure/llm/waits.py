"""Waits that providers ask for before a call is sent again, wherever they tell them: in headers, in a body, in words.

Headers that say when a limit will be full again (OpenAI's ``x-ratelimit-reset-tokens``, Anthropic's ``…-reset``) are no
such wait: a call may be sent long before.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from perdure.contracts.values import JsonValue

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")

_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
"""OpenAI's, which Azure sends too, and that of Azure's gateways."""

_RESET, _REMAINING = "x-ratelimit-reset", "x-ratelimit-remaining"
"""OpenRouter's and others': when a window of a limit ends, in seconds from now or since 1970, or in milliseconds."""

_SINCE_1970 = 1e9
"""From this number on, a reset is a point in time, and below it a number of seconds from now."""


def wait_in_headers(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that a reply's headers ask to wait; None if they do not.

    A date is compared with the reply's own ``date`` header, so that a wrong clock does not matter; without that header
    with ``now``.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    for name in _MILLISECONDS:
        if _NUMBER.fullmatch(lower.get(name, "")):
            return float(lower[name]) / 1000
    value, clock = lower.get("retry-after", ""), _date(lower.get("date", "")) or now
    if _NUMBER.fullmatch(value):
        return float(value)
    if (until := _date(value)) is not None:
        return max(0.0, (until - clock).total_seconds())
    reset = lower.get(_RESET, "")
    if lower.get(_REMAINING) != "0" or not _NUMBER.fullmatch(reset):
        return None
    seconds = float(reset)
    if seconds >= _SINCE_1970:
        seconds = (seconds / 1000 if seconds >= _SINCE_1970 * 1000 else seconds) - clock.timestamp()
    return max(0.0, seconds)


def _date(value: str) -> datetime | None:
    """Parse an HTTP date; None if it is none."""
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_PART = r"\d{1,9}(?:\.\d{1,12})? ?(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"

_TIME = re.compile(_PART, re.IGNORECASE)

_ASKED = re.compile(
    rf"\b(?:(?:try again|retry(?:ing)?|resets?) (?:in|after)|wait(?: for)?)(?: about)?:? "
    rf"(?P<time>{_PART}(?: ?{_PART})*)",
    re.IGNORECASE,
)
"""OpenAI's, Groq's and Gemini's "try again in 1m2.5s" and "retry in 34s", Azure's "retry after 26 seconds", "wait 42
seconds" of GitHub's models, "reset after 1h" of Google's Code Assist. A number without a unit does not count."""


def wait_in_words(text: str) -> float | None:
    """Seconds that a message asks to wait; None if it does not."""
    asked = _ASKED.search(text)
    return _seconds_of(asked["time"]) if asked else None


def _seconds_of(time: str) -> float:
    return sum(_seconds_of_part(part[0]) for part in _TIME.finditer(time))


def _seconds_of_part(part: str) -> float:
    number = re.match(r"[\d.]+", part)
    assert number is not None, "the pattern begins with a number"  # noqa: S101 - narrows the type
    unit = part[number.end() :].strip().lower()
    return float(number[0]) * _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]


_SECONDS_FIELDS = ("retry_after", "retry_after_seconds", "retryAfter", "retryAfterSeconds", "retry-after")
_MILLISECONDS_FIELDS = ("retry_after_ms", "retryAfterMs", "retry-after-ms")


def headers_in_body(error: Mapping[str, JsonValue]) -> dict[str, str]:
    """The wait that an error object tells in its fields, as the headers that would say the same; empty without one.

    Google tells it in a detail of the type ``RetryInfo``, OpenRouter in the upstream provider's ``headers``, and
    proxies in fields named like the header.
    """
    metadata = error.get("metadata")
    places = (error, metadata if isinstance(metadata, dict) else {}, *_details_in(error))
    for place in places:
        for fields, header in ((_MILLISECONDS_FIELDS, "retry-after-ms"), (_SECONDS_FIELDS, "retry-after")):
            for field in fields:
                if told := _number_of(place.get(field)):
                    return {header: told}
        if isinstance(delay := place.get("retryDelay"), str) and _TIME.match(delay):
            return {"retry-after": f"{_seconds_of(delay):g}"}
        if isinstance(upstream := place.get("headers"), dict):
            return {name.lower(): str(value) for name, value in upstream.items() if isinstance(value, str | int)}
    return {}


def _number_of(value: JsonValue) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    text = str(value).strip().removesuffix("s")
    return text if _NUMBER.fullmatch(text) else ""


def _details_in(error: Mapping[str, JsonValue]) -> Iterator[Mapping[str, JsonValue]]:
    details = error.get("details")
    yield from (detail for detail in (details if isinstance(details, list) else ()) if isinstance(detail, dict))


_OF_A_DAY = re.compile(r"per.?day|daily", re.IGNORECASE)


def limits_in(error: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Google's names of the quotas that are used up, those of a day first; one of zero has ``:0`` behind its name.

    Source: google-gemini/gemini-cli, which reads ``QuotaFailure`` and ``ErrorInfo`` in the same way.
    """
    found: list[str] = []
    for detail in _details_in(error):
        metadata, violations = detail.get("metadata"), detail.get("violations")
        told = [metadata] if isinstance(metadata, dict) else []
        told += [one for one in (violations if isinstance(violations, list) else ()) if isinstance(one, dict)]
        for used_up in told:
            name = used_up.get("quotaId") or used_up.get("quota_limit")
            if isinstance(name, str) and name and " " not in name:
                value = used_up.get("quotaValue", used_up.get("quota_limit_value"))
                found.append(f"{name}:0" if str(value) == "0" else name)
    return tuple(sorted(found, key=lambda name: (not name.endswith(":0"), _OF_A_DAY.search(name) is None)))
