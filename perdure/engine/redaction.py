"""Secrets out of texts and arguments, before anything reaches an event, a log, a trace or the Temporal history."""

import re
from collections.abc import Collection

from perdure.contracts.values import JsonValue

MASK = "***"
"""What stands in place of a secret."""

SHORTEST_SECRET = 8
"""A shorter value of a setting is not looked for: it would match everywhere."""

_NAMES = re.compile(
    r"(^|[_\-.])(pass(word|wd|phrase)?|secrets?|token|api[_\-]?keys?|apikeys?|authori[sz]ation|credentials?"
    r"|private[_\-]?key|access[_\-]?key|secret[_\-]?key|hash(es)?|cookies?)$",
    re.IGNORECASE,
)
"""Argument names whose values are never shown. Source: Dreadnode's masking of events and spans."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_FLAG = re.compile(r"^--?(p(ass(word)?)?|token|secret|api-?key|password|authorization|credentials?)$", re.IGNORECASE)

_SHAPES = (
    re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_*\-]{8,}"),  # OpenAI, Anthropic, Stripe; also with stars, as echoed in 401s
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9\-]{10,}"),
    re.compile(r"\bAIza[0-9A-Za-z_\-]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"),  # JSON web tokens
)

_AFTER_A_NAME = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/_.=~\-]{8,}"), r"\1 " + MASK),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[_-]?key|access[_-]?token|auth[_-]?token|password|secret)(\"?\s*[=:]\s*\"?)[^\s\"'&,;]{4,}"
        ),
        r"\1\2" + MASK,
    ),
    (re.compile(r"\b([a-z][a-z0-9+.\-]*://[^\s/:@]*):[^\s/@]+@"), r"\1:" + MASK + "@"),
)


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without known secrets and without anything that has the shape of a key."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    for shape, kept in _AFTER_A_NAME:
        text = shape.sub(kept, text)
    return text


def mask_arguments(arguments: dict[str, JsonValue], names: Collection[str] = ()) -> dict[str, JsonValue]:
    """The arguments with credential-named values masked at any depth, and ``names`` at the top."""
    return {
        name: MASK if name in names or _is_credential(name) else _masked(value) for name, value in arguments.items()
    }


def is_masked(arguments: dict[str, JsonValue], names: Collection[str] = ()) -> bool:
    """Whether masking changes anything."""
    return mask_arguments(arguments, names) != arguments


def _is_credential(name: str) -> bool:
    return _NAMES.search(_CAMEL.sub("_", name)) is not None


def _masked(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return mask_arguments(value)
    if isinstance(value, list):
        return [
            MASK if index and isinstance(flag := value[index - 1], str) and _FLAG.match(flag) else _masked(item)
            for index, item in enumerate(value)
        ]
    return value
