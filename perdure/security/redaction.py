"""Masks secrets in texts and arguments before they reach an event, a log, a trace or the Temporal history.

Two kinds of text need two kinds of masking. ``redact_text`` is for diagnostics (errors, logs): it masks known secrets
and everything that looks like a credential. ``without_known`` is for content (answers, results): it masks known secrets
only, as the model has to read the rest unchanged. Whoever writes a text masks it; the store masks nothing. Raw
arguments are kept in one place, the ledger, as long as a call can run; the commit of the turn wipes masked ones.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from perdure.contracts.values import JsonValue

MASK = "***"
"""The text in place of a secret."""

SHORTEST_SECRET = 8
"""Characters below which a secret is masked only as a whole word, since it would match everywhere."""

SHORTEST_WORD = 3
"""Characters below which a secret is not masked at all."""

SHORTEST_NUMBER = 4
"""Digits below which a masked number is not masked in other texts."""

SHORTEST_KEY = 16
"""Characters below which a single word cannot be recognised as a key by its shape."""

DEEPEST_ARGUMENTS = 100
"""Levels of nesting; arguments that are nested deeper are masked as a whole."""

_CREDENTIAL = (
    r"(?:pass(?:word|wd|phrase)|pwd|(?:client|app|webhook)[_\-]?secret|(?:access|auth|api|bearer|refresh)[_\-]?token"
    r"|api[_\-]?key|(?:private|secret|access)[_\-]?key|authori[sz]ation|credentials?)"
)
"""Words that name a credential anywhere in a name."""

_NAMES = re.compile(
    rf"{_CREDENTIAL}s?$|(?:^|[_\-.])(?:pass|secrets?|token|cookies?)$|^hash(?:es)?$"
    r"|(?:^|[_\-.])(?:ntlm|nt|lm)[_\-]?hash(?:es)?$"
    r"|pass(?:word|phrase)|api[_\-]?key|private[_\-]?key|credential",
    re.IGNORECASE,
)
"""Argument names whose values are never shown. Source: Dreadnode's masking of events and spans."""

_NOT_NAMES = re.compile(
    r"^(?:has|have|is|are|needs?|requires?|use|no|allow|show|hide)[_\-.]"
    r"|[_\-.](?:policy|policies|rules?|length|len|min|max|strength|ur[il]s?|link|path|file|filename|dir|type|kind|names?"
    r"|ids?|count|limit|field|label|hint|prompt|format|status|state|required|enabled|expir(?:ed|es|y)|ttl|age|manager"
    r"|provider|env|var)$"
    r"|(?:^|[_\-.])(?:page|next|continuation|cursor|pagination|max|min|eos|bos|pad|stop|unk|mask|sep|cls)[_\-.]token$",
    re.IGNORECASE,
)
"""Names of facts about a credential, and of tokens that are no credentials."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_FLAG = rf"--?(?:(?!(?:max|min|page|next|continuation)-)[a-z]+-)?(?:{_CREDENTIAL}|token|secret|pass)"
_HEADER = r"(?:proxy-)?authorization|(?:x-[a-z\-]{0,30}|(?:api|access|auth|private)-)(?:key|token|secret)"
_BEFORE_VALUE = re.compile(rf"{_FLAG}|{_HEADER}", re.IGNORECASE)
"""Items of a list after which the next item is a credential."""

_BEFORE_COUNT = re.compile(r"--?pass", re.IGNORECASE)
_COUNT = re.compile(r"\d{1,3}")
"""``--pass 3`` is the third pass."""

_BEFORE_USER = frozenset({"-u", "--user", "--proxy-user"})

_LABELS = ("name", "key", "header")
"""Fields with the name of a ``value``, in objects that hold name and value in two fields."""

_PREFIXED = (
    r"[spr]k[-_](?:live|test|prod|proj|ant|or|svcacct|admin|lf)[-_](?=[A-Za-z_\-]{0,60}+[\d*])[\w*\-]{8,}",
    r"[spr]k[-_](?=[\w\-]{0,60}+\*{3})[\w*\-]{8,}",  # with stars, as echoed in 401s
    # One part is random; names of tables, packages and models have none as long.
    r"[spr]k-(?=[\w\-]{0,60}?(?<![A-Za-z0-9])(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{10})[\w\-]{8,}",
    r"[spr]k_(?=[A-Za-z]{0,40}\d)(?=\d{0,40}[A-Za-z])[A-Za-z0-9]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_\-]{20,}",
    r"xox[abprs]-[A-Za-z0-9\-]{10,}",
    r"AIza[0-9A-Za-z_\-]{30,}",
    r"hf_[A-Za-z0-9]{30,}",
    # Groq, Replicate, Fireworks, npm; xAI, Perplexity, Cerebras: names have no part as long with a digit in it.
    r"(?:gsk|r8|fw|npm)_(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}",
    r"(?:xai|pplx|csk)-(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{20,}",
    # Nvidia, Together, Jina, Google, PyPI.
    r"(?:nvapi-|tgp_v1_|jina_|ya29\.|pypi-AgE)(?=[A-Za-z_\-]{0,60}+\d)[\w\-]{24,}",
    r"lsv2_(?:pt|sk)_[0-9a-f_]{30,}",  # LangSmith
    r"SG\.[\w\-]{16,80}\.[\w\-]{16,}",  # SendGrid
)

_SHAPES = (
    # Not after a hyphen: in a long row of hyphenated words the search would start at each of them.
    re.compile(rf"(?<![\w\-])(?:{'|'.join(_PREFIXED)})"),
    re.compile(r"(?<![\w\-])eyJ[A-Za-z0-9_\-]{10,}+\.[A-Za-z0-9_\-]{10,}+\.[A-Za-z0-9_\-]*"),  # JSON web tokens
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
)
"""Shapes of keys that are recognised whatever stands before them."""

_PLACEHOLDER = r"(?:string|str|text|number|integer|int|boolean|bool|object|null|none|true|false|required|optional)"
_NUMBER_ALONE = r"[\"']?\d+(?![\w\-])"

_TOLD = (
    (re.compile(r"\b([a-z][a-z0-9+.\-]{0,20}://[^\s/:@]{0,200}):[^\s/@]{1,500}@"), rf"\1:{MASK}@"),
    (
        re.compile(
            r"(?<![\w\-])((?:proxy-)?authorization\s{0,3}:\s{0,3}(?:bearer|basic|token|apikey)\s{1,3})"
            r"(?![*${<%])[^\s\"',;]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?<![\w\-])((?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?)(?=[^\s\"';=]{1,100}=)[^\r\n\"']{4,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(rf"(?<!\S)(?!--?pass[= ]\d{{1,3}}(?!\S))({_FLAG}[= ][\"']?)[^\s\"']+", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(r"(?<!\S)((?:-u|--(?:proxy-)?user)[= ][\"']?[^\s:\"'/]{1,100}:)(?!\d+(?!\S))(?![*$])[^\s\"'/]+"),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            rf"(\\{{0,3}}[\"'](?!(?:has|is)[_\-])[\w\-.]{{0,60}}{_CREDENTIAL}\\{{0,3}}[\"']\s*:\s*)"
            rf"(?P<quote>\\{{0,3}}[\"'])(?!{_PLACEHOLDER}?(?P=quote))(?s:(?!(?P=quote))(?:\\.|[^\\]))*+(?:(?P=quote))?",
            re.IGNORECASE,
        ),
        rf"\1\g<quote>{MASK}\g<quote>",
    ),
)
"""Credentials recognised by the text right before them, whatever they look like."""

_STEMS = (
    *("pass", "pwd", "secret", "token", "key", "auth", "credential", "cookie", "bearer", "basic", "sig"),
    *("://", "-u", "user"),
)
"""One of these occurs before every such credential, so a long text without any need not be searched."""

_LIKELY = (
    (
        re.compile(r"\b(bearer)\s+(?!authenti|authori)(?=[\w+/.=~\-]{0,300}?\d)[\w+/.=~\-]{8,}", re.IGNORECASE),
        rf"\1 {MASK}",
    ),
    (
        re.compile(
            r"\b((?i:basic))\s+(?=[A-Za-z0-9+/]{0,300}?[a-z][A-Z])(?=[A-Za-z0-9+/]{0,300}?[\d=])"
            r"[A-Za-z0-9+/]{8,}+={0,2}+(?![\w\-=])"
        ),
        rf"\1 {MASK}",
    ),
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
            rf"([?&](?:amp;)?(?![\w\-]{{0,40}}(?:page|next|continuation|max)[_\-]?token=)"
            rf"[\w\-]{{0,40}}(?:{_CREDENTIAL}|token|secret)=)(?![*$<{{])[^\s\"'&#<>\\)\]}},;]{{4,}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"([?&](?:amp;)?(?:[\w\-]{0,40}[_\-])?(?:key|sig|signature)=)"
            r"(?![*$<{])(?=[^\s\"'&]{0,300}\d)[^\s\"'&#<>\\)\]},;]{8,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            rf"(?<![\w$])((?:export|env|set)\s{{1,3}}\w{{0,40}}(?:{_CREDENTIAL}|secret|token(?!={_NUMBER_ALONE}))=[\"']?)"
            r"(?!\*)[^\s\"'()\[\]{}$<>;&|]{4,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?<![\w$])([A-Z0-9_]{0,60}"
            rf"(?:API_?KEY|(?:ACCESS|PRIVATE|SECRET)_?KEY|TOKEN(?!={_NUMBER_ALONE})|SECRET|PASSWORD|PASSWD)=[\"']?)"
            r"(?!\*)[^\s\"'()\[\]{}$<>;&|]{6,}(?=[\s\"';&|]|\Z)"
        ),
        rf"\1{MASK}",
    ),
)
"""Patterns that are likely enough to be credentials to be masked in a model's arguments too."""

_NAMED = (
    re.compile(
        rf"({_CREDENTIAL}[\"']?\s*[=:]\s*[\"']?)(?!bearer|basic|token\s|\*|(?:true|false|null|none)\b)"
        r"(?:[^\s\"'&,;}\]]|[}\]](?=\w)){4,}",
        re.IGNORECASE,
    ),
    rf"\1{MASK}",
)
"""``name=value`` in errors and logs. Not used for arguments, since source code is full of it."""

_STARRED = re.compile(r"(?<![\w*\-])(?=[\w*\-]*\*{4})(?=[\w*\-]*\w)[\w*\-]+")
"""A key of which a provider shows only the ends, with stars between them."""

_AROUND = " \t\n:@\\\"'"
"""Characters that may stand between a credential and the text by which it is recognised."""

_PASSES = 8
"""Times that masking is repeated until nothing changes. A text that still changes then is masked as a whole."""

_DIGITS = re.compile(r"\d")


@dataclass(frozen=True)
class Hidden:
    """Values that were masked in arguments, to be masked in other texts too.

    Attributes:
        named: Values of arguments with a credential's name, or that the tool masks: certainly secret.
        guessed: Values recognised by their shape or place in a text: perhaps ordinary words.
    """

    named: frozenset[str] = frozenset()
    guessed: frozenset[str] = frozenset()


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without known secrets and without anything that looks like a credential; for diagnostics."""
    pattern, kept = _NAMED
    return _change_until_stable(text, lambda some: _STARRED.sub(MASK, pattern.sub(kept, _without_keys(some, secrets))))


def without_hidden(text: str, hidden: Hidden, secrets: Collection[str] = ()) -> str:
    """A tool's result without known secrets and without ``hidden.named``; the model reads the rest unchanged.

    Named values shorter than ``SHORTEST_SECRET`` stay: they may be ordinary words.
    """
    return without_known(text, [*secrets, *(value for value in hidden.named if len(value) >= SHORTEST_SECRET)])


def mask_arguments(
    arguments: dict[str, JsonValue], names: Collection[str] = (), secrets: Collection[str] = ()
) -> dict[str, JsonValue]:
    """The arguments with credentials masked at any depth, recognised by name, flag, shape or value.

    Args:
        arguments: The arguments as the model wrote them.
        names: Names of further top-level arguments to mask.
        secrets: Known secrets.
    """
    return _Masking(secrets).mask_object(arguments, names, DEEPEST_ARGUMENTS)


def hidden_values_of(arguments: dict[str, JsonValue], names: Collection[str] = ()) -> Hidden:
    """The values that masking removes from the arguments: texts, and numbers of four digits or more."""
    masking = _Masking(collects=True)
    masking.mask_object(arguments, names, DEEPEST_ARGUMENTS)
    return Hidden(named=frozenset(masking.named), guessed=frozenset(masking.guessed))


class _Masking:
    """One walk through arguments; with ``collects`` it notes the values that it masks."""

    def __init__(self, secrets: Collection[str] = (), *, collects: bool = False) -> None:
        self.named: set[str] = set()
        self.guessed: set[str] = set()
        self._secrets = secrets
        self._collects = collects

    def mask_object(self, value: dict[str, JsonValue], names: Collection[str], depth: int) -> dict[str, JsonValue]:
        named = {*names, *_credentials(value)}
        shown: dict[str, JsonValue] = {}
        for name, inner in value.items():
            free = _make_free_name(self._mask_text(name), shown)
            shown[free] = self._hide(inner) if name in named else self._mask(inner, depth - 1)
        return shown

    def _mask(self, value: JsonValue, depth: int) -> JsonValue:
        if isinstance(value, str):
            return self._mask_text(value)
        if depth <= 0 and isinstance(value, dict | list):
            if self._collects:
                self.guessed |= set(_leaves(value))
            return MASK
        if isinstance(value, dict):
            return self.mask_object(value, (), depth)
        if isinstance(value, list):
            before: list[JsonValue] = [None, *value]
            return [self._mask_item(*pair, depth - 1) for pair in zip(before, value, strict=False)]
        return value

    def _mask_item(self, before: JsonValue, value: JsonValue, depth: int) -> JsonValue:
        """Mask an item of a list; the item before may say that it is a credential."""
        if not isinstance(before, str):
            return self._mask(value, depth)
        if _BEFORE_VALUE.fullmatch(before) and not (_BEFORE_COUNT.fullmatch(before) and _COUNT.fullmatch(str(value))):
            return self._hide(value)
        if before in _BEFORE_USER and isinstance(value, str):
            return self._mask_text(f"-u {value}").removeprefix("-u ")
        return self._mask(value, depth)

    def _hide(self, value: JsonValue) -> str:
        if self._collects:
            self.named |= set(_leaves(value))
        return MASK

    def _mask_text(self, text: str) -> str:
        shown = _change_until_stable(text, lambda some: _without_keys(some, self._secrets))
        if self._collects and shown != text:
            self.guessed |= set(_cut_out(text))
        return shown


def _make_free_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number after it if masking made it equal to another one."""
    numbered = (name if number == 1 else f"{name}{number}" for number in itertools.count(1))
    return next(free for free in numbered if free not in taken)


def _leaves(value: JsonValue) -> Iterator[str]:
    """The texts in a value, and its numbers of at least ``SHORTEST_NUMBER`` digits."""
    rest = [value]
    while rest:
        inner = rest.pop()
        if isinstance(inner, dict):
            rest += inner.values()
        elif isinstance(inner, list):
            rest += inner
        elif isinstance(inner, str):
            yield inner
        elif not isinstance(inner, bool) and len(_DIGITS.findall(str(inner))) >= SHORTEST_NUMBER:
            yield str(inner)


def _cut_out(text: str) -> Iterator[str]:
    """The parts of a text that are masked for their shape, or for the text before them."""
    for shape, _ in _TOLD:
        yield from (text[match.end(1) : match.end()].strip(_AROUND) for match in shape.finditer(text))
    likely = [match.group() for shape in _SHAPES for match in shape.finditer(text)]
    likely += [
        text[match.end(1) : match.end()].strip(_AROUND) for shape, _ in _LIKELY for match in shape.finditer(text)
    ]
    yield from (part for part in likely if _DIGITS.search(part))  # without any it may be a word


def _change_until_stable(text: str, change: Callable[[str], str]) -> str:
    """Apply a change until the text does not change any more, so that masking is idempotent."""
    for _ in range(_PASSES):
        changed = change(text)
        if changed == text:
            return text
        text = changed
    return MASK


def without_known(text: str, secrets: Collection[str]) -> str:
    """The text without known secrets, also in the spellings of JSON, Python and URLs, and otherwise unchanged."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for spelling in spellings(secret):
                text = text.replace(spelling, MASK)
        elif len(secret) >= SHORTEST_WORD and secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return text


def spellings(secret: str) -> tuple[str, ...]:
    """The spellings of a secret in a text: as it is, and as JSON, Python and URLs write it."""
    if secret.isalnum() and secret.isascii():
        return (secret,)
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    with contextlib.suppress(UnicodeEncodeError):  # half a character
        written |= {quote(secret), quote(secret, safe="")}
    return (secret, *sorted(written - {secret}, key=len, reverse=True))


def _without_keys(text: str, secrets: Collection[str]) -> str:
    text = without_known(text, secrets)
    if len(text) < SHORTEST_KEY and text.isidentifier():
        return text
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    folded = text.casefold()
    if any(stem in folded for stem in _STEMS):
        for shape, kept in (*_TOLD, *_LIKELY):
            text = shape.sub(kept, text)
    return text


def _is_credential(name: str) -> bool:
    name = _CAMEL.sub("_", name)
    return _NAMES.search(name) is not None and _NOT_NAMES.search(name) is None


def _credentials(value: dict[str, JsonValue]) -> set[str]:
    """The names in an object whose values are credentials."""
    named = {name for name in value if _is_credential(name)}
    if any(isinstance(label := value.get(name), str) and _is_credential(label) for name in _LABELS):
        named.add("value")
    return named
