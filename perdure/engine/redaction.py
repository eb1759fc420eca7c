"""Secrets out of texts and arguments, before anything reaches an event, a log, a trace or the Temporal history."""

import contextlib
import json
import re
from collections.abc import Collection, Iterator
from urllib.parse import quote

from perdure.contracts.values import JsonValue

MASK = "***"
"""What stands in place of a secret."""

SHORTEST_SECRET = 8
"""A shorter secret is looked for as a whole word only: it would match everywhere."""

SHORTEST_WORD = 3
"""And what is shorter than this, not at all."""

DEEPEST_ARGUMENTS = 100
"""Arguments nested deeper than this are masked whole."""

_CREDENTIAL = (
    r"(?:pass(?:word|wd|phrase)|pwd|(?:client|app|webhook)[_\-]?secret|(?:access|auth|api|bearer|refresh)[_\-]?token"
    r"|api[_\-]?key|(?:private|secret|access)[_\-]?key|authori[sz]ation|credentials?)"
)
"""Words that name a credential wherever they stand."""

_NAMES = re.compile(
    rf"{_CREDENTIAL}s?$|(?:^|[_\-.])(?:pass|secrets?|token|hash(?:es)?|cookies?)$"
    r"|pass(?:word|phrase)|api[_\-]?key|private[_\-]?key|credential",
    re.IGNORECASE,
)
"""Argument names whose values are never shown. Source: Dreadnode's masking of events and spans."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_FLAG = rf"--?(?:[a-z]+-)?(?:{_CREDENTIAL}|token|secret|pass)"
_HEADER = r"(?:proxy-)?authorization|(?:x-[a-z\-]{0,30}|(?:api|access|auth|private)-)(?:key|token|secret)"
_BEFORE_VALUE = re.compile(rf"{_FLAG}|{_HEADER}", re.IGNORECASE)
"""What alone in a list says that the next one is a credential."""

_LABELS = ("name", "key", "header")
"""What ``value`` belongs to, in objects that hold a name and its value apart."""

_SHAPES = (
    re.compile(r"\b(?:sk|pk|rk)[-_](?=[A-Za-z_\-]{0,60}+[\d*])[\w*\-]{8,}"),  # also with stars, as echoed in 401s
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_\-]{20,}"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9\-]{10,}"),
    re.compile(r"\bAIza[0-9A-Za-z_\-]{30,}"),
    re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]*"),  # JSON web tokens
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
)
"""What a key looks like, whatever stands before it."""

_IN_PLACE = (
    (re.compile(r"\b(bearer)\s+(?!authenti|authori)[\w+/.=~\-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\b(basic)\s+(?=[^\s\d]{0,300}[\d=])[\w+/.=~\-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\b([a-z][a-z0-9+.\-]{0,20}://[^\s/:@]{0,200}):[^\s/@]{1,500}@"), rf"\1:{MASK}@"),
    (
        re.compile(
            rf"(?<![\w\-])((?:{_HEADER})\s{{0,3}}:\s{{0,3}}(?:(?:token|bearer|basic|apikey)\s)?)"
            r"(?!\*)(?=[^\s\"',;]{0,300}\d)[^\s\"',;]{6,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?<![\w$])([A-Z0-9_]{0,60}(?:API_?KEY|(?:ACCESS|PRIVATE|SECRET)_?KEY|TOKEN|SECRET|PASSWORD|PASSWD)=[\"']?)"
            r"(?!\*)[^\s\"'()\[\]{}$<>;&|]{6,}(?=[\s\"';&|]|\Z)"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(rf"(?<!\S)({_FLAG}[= ][\"']?)[^\s\"']+", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(rf"([\"'][\w\-.]{{0,60}}{_CREDENTIAL}[\"']\s*:\s*)(\"[^\"]*\"?|'[^']*'?)", re.IGNORECASE),
        rf'\1"{MASK}"',
    ),
)
"""Credentials told by what stands right before them; sure enough to change what a model wrote."""

_NAMED = (
    re.compile(rf"({_CREDENTIAL}[\"']?\s*[=:]\s*[\"']?)(?!bearer|basic|token\s|\*)[^\s\"'&,;]{{4,}}", re.IGNORECASE),
    rf"\1{MASK}",
)
"""``name=value`` in messages of errors and logs. Too unsure for arguments: source code is full of it."""


_STARRED = re.compile(r"(?<![\w*\-])(?=[\w*\-]*\*{4})(?=[\w*\-]*\w)[\w*\-]+")
"""A key of which a provider shows the ends; what a person writes may have as many stars."""

_AROUND = " \t\n:@\"'"
"""What may stand between a credential and what tells it."""


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without known secrets and without anything that has the shape of a key."""
    pattern, kept = _NAMED
    return _STARRED.sub(MASK, pattern.sub(kept, _without_keys(without_known(text, secrets))))


def mask_arguments(
    arguments: dict[str, JsonValue], names: Collection[str] = (), secrets: Collection[str] = ()
) -> dict[str, JsonValue]:
    """The arguments as they may be seen: credentials masked at any depth, told by name, flag, shape or value.

    Args:
        arguments: What the model wrote.
        names: Further arguments to mask, at the top.
        secrets: Values known to be secret, which no text may hold.
    """
    named = {*names, *_credentials(arguments)}
    return {
        name: MASK if name in named else _masked(value, secrets, DEEPEST_ARGUMENTS) for name, value in arguments.items()
    }


def is_masked(arguments: dict[str, JsonValue], names: Collection[str] = (), secrets: Collection[str] = ()) -> bool:
    """Whether masking changes anything."""
    return mask_arguments(arguments, names, secrets) != arguments


def hidden_values(arguments: dict[str, JsonValue], names: Collection[str] = ()) -> frozenset[str]:
    """The texts that masking takes out of the arguments, so that they can be taken out of other texts too."""
    return frozenset(_hidden(arguments, mask_arguments(arguments, names)))


def _hidden(value: JsonValue, shown: JsonValue) -> Iterator[str]:
    if value == shown or value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        yield value
        yield from _cut_out(value)
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _hidden(inner, shown[name] if isinstance(shown, dict) else MASK)
    else:
        for index, inner in enumerate(value):
            yield from _hidden(inner, shown[index] if isinstance(shown, list) else MASK)


def _cut_out(text: str) -> Iterator[str]:
    """What masking takes out of a text by its shape, or by what stands before it."""
    for shape in _SHAPES:
        yield from (match.group() for match in shape.finditer(text))
    for shape, _ in _IN_PLACE:
        yield from (text[match.end(1) : match.end()].strip(_AROUND) for match in shape.finditer(text))


def without_known(text: str, secrets: Collection[str]) -> str:
    """The text without the known secrets, also as JSON, Python and URLs write them, and otherwise as it is."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for spelling in _spellings(secret):
                text = text.replace(spelling, MASK)
        elif len(secret) >= SHORTEST_WORD and secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return text


def _spellings(secret: str) -> tuple[str, ...]:
    if secret.isalnum() and secret.isascii():
        return (secret,)
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    with contextlib.suppress(UnicodeEncodeError):  # half a character
        written |= {quote(secret), quote(secret, safe="")}
    return (secret, *sorted(written - {secret}, key=len, reverse=True))


def _without_keys(text: str) -> str:
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    for shape, kept in _IN_PLACE:
        text = shape.sub(kept, text)
    return text


def _is_credential(name: str) -> bool:
    return _NAMES.search(_CAMEL.sub("_", name)) is not None


def _masked(value: JsonValue, secrets: Collection[str], depth: int) -> JsonValue:
    if isinstance(value, str):
        return _without_keys(without_known(value, secrets))
    if depth == 0 and isinstance(value, dict | list):
        return MASK
    if isinstance(value, dict):
        named = _credentials(value)
        return {name: MASK if name in named else _masked(inner, secrets, depth - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [
            MASK if index and _announces(value[index - 1]) else _masked(inner, secrets, depth - 1)
            for index, inner in enumerate(value)
        ]
    return value


def _credentials(value: dict[str, JsonValue]) -> set[str]:
    """The names in an object whose values are credentials."""
    named = {name for name in value if _is_credential(name)}
    if any(isinstance(label := value.get(name), str) and _is_credential(label) for name in _LABELS):
        named.add("value")
    return named


def _announces(value: JsonValue) -> bool:
    return isinstance(value, str) and _BEFORE_VALUE.fullmatch(value) is not None
