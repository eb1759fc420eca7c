"""Credentials, recognised by name, by shape, or by the text before them.

The tables are data; the functions at the end are all that :mod:`perdure.security.redaction` uses of them. A pattern of
a table comes with its replacement, which keeps the text by which the credential is recognised.
"""

import re
from collections.abc import Iterator, Mapping

from perdure.contracts.values import JsonValue
from perdure.security import windows

MASK = "***"
"""The text in place of a secret."""

SHORTEST_KEY = 16
"""Characters below which a single word cannot be recognised as a key by its shape."""

_CREDENTIAL = (
    r"(?:pass(?:word|wd|phrase)|pwd|(?:client|app|webhook)[_\-]?secret|(?:access|auth|api|bearer|refresh)[_\-]?token"
    r"|api[_\-]?key|(?:private|secret|access)[_\-]?key|authori[sz]ation|credentials?)"
)
"""Words that name a credential anywhere in a name."""

_NAME = re.compile(
    rf"{_CREDENTIAL}s?$|(?:^|[_\-.])(?:pass|secrets?|token|cookies?)$|^hash(?:es)?$"
    r"|(?:^|[_\-.])(?:ntlm|nt|lm)[_\-]?hash(?:es)?$"
    r"|pass(?:word|phrase)|api[_\-]?key|private[_\-]?key|credential",
    re.IGNORECASE,
)
"""Argument names whose values are never shown. Source: Dreadnode's masking of events and spans."""

_NOT_NAME = re.compile(
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

_PASS_COUNT = re.compile(r"--?pass \d{1,3}", re.IGNORECASE)
"""``--pass 3`` is the third pass."""

BEFORE_USER = frozenset({"-u", "--user", "--proxy-user"})
"""Items of a list after which the next item is ``user:password``."""

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
    r"pdr_[\w\-]{40,}",  # the gateway's
    r"whsec_[A-Za-z0-9+/]{32,}={0,2}",  # Standard Webhooks
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

_CERTAIN = (
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

_NAMED, _NAMED_KEPT = (
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

_CONTEXTS = (*_CERTAIN, *_LIKELY)

_OF_ADDRESS = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+.\-]{0,20}://[^\s/:@]{0,200}|(?<![\w/.:-])[\w.\-]{1,100}(?=:[^\s/@]{1,500}@[\w.\-]+:))"
    r":[^\s]{1,500}@",
    re.IGNORECASE,
)
"""A password behind the user of an address, or of HOST:PORT. It may hold any character, as people write it."""

_AROUND = " \t\n:@\\\"'"
"""Characters that may stand between a credential and the text by which it is recognised."""

_DIGIT = re.compile(r"\d")


def names_in(value: Mapping[str, JsonValue]) -> set[str]:
    """The names in an object whose values are credentials."""
    names = {name for name in value if _is_name(name)}
    if any(isinstance(label := value.get(name), str) and _is_name(label) for name in _LABELS):
        names.add("value")
    return names


def _is_name(name: str) -> bool:
    name = _CAMEL.sub("_", name)
    return _NAME.search(name) is not None and _NOT_NAME.search(name) is None


def is_before_credential(before: str, value: JsonValue) -> bool:
    """Whether an item of a list, such as a flag, says that the ``value`` after it is a credential."""
    if _BEFORE_VALUE.fullmatch(before) is None:
        return False
    return not (isinstance(value, str | int) and _PASS_COUNT.fullmatch(f"{before} {value}"))


def mask_credentials(text: str) -> str:
    """The text without credentials that are recognised by their shape, or by the text before them."""
    if len(text) < SHORTEST_KEY and text.isidentifier():
        return text
    for shape in _SHAPES:
        text = windows.replace(shape, MASK, text)
    folded = text.casefold()
    if any(stem in folded for stem in _STEMS):
        for pattern, replacement in _CONTEXTS:
            text = windows.replace(pattern, replacement, text)
    return text


def mask_addresses(text: str) -> str:
    """The text without passwords in addresses, also in those that nothing can read as one; otherwise unchanged."""
    return _OF_ADDRESS.sub(rf"\g<before>:{MASK}@", text)


def mask_named(text: str) -> str:
    """The text of an error or a log without ``name=value`` of a credential, and without keys that end in stars."""
    return _STARRED.sub(MASK, _NAMED.sub(_NAMED_KEPT, text))


def find_credentials(text: str) -> Iterator[str]:
    """The parts of a text that :func:`mask_credentials` takes out; only likely ones without a digit are left out."""
    for pattern, _ in _CERTAIN:
        yield from _behind(pattern, text)
    likely = [match.group() for shape in _SHAPES for match in windows.find(shape, text)]
    likely += [part for pattern, _ in _LIKELY for part in _behind(pattern, text)]
    yield from (part for part in likely if _DIGIT.search(part))  # without any it may be a word


def _behind(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the text behind the first group of each match."""
    return (text[match.end(1) : match.end()].strip(_AROUND) for match in windows.find(pattern, text))
