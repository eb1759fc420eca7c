"""Credentials among environment variables: what is secret by the variable's name, and passwords inside of addresses.

Whatever is found here is cut out of every text. So a value that texts hold for other reasons is none: a short one, an
ordinary word, a path that exists.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from perdure.contracts.agents import SHORTEST_SECRET

_ENDS = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?$")
"""The ends of words that name a credential, also without an underscore before them: ``PGPASSWORD``, ``APIKEY``."""

_NO_KEYS = re.compile(r"(?:MON|DON|TUR|HOC|JOC|WHIS|LAC|FLUN|HOT)KEYS?$")

_SURE = re.compile(
    r"\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?"
    r"|(?:DB|PG|SQL|MYSQL|REDIS|SMTP|IMAP|MAIL|FTP|SSH|LDAP|USER|ROOT|ADMIN|SUDO)?(?:PASS|PWD)"
)
"""Words that name a credential wherever they stand between underscores."""

_LIKELY = re.compile(r"(?:\w*(?:API|ACCESS|AUTH|PRIVATE|SECRET))?(?:KEY|TOKEN)S?|PAT|JWT")
"""Words that name one if the value has a digit, as keys have: ``PRIMARY_KEY_COLUMN`` holds a word."""

_ABOUT = re.compile(
    r"AGE|ALG|ALGORITHM|ALIAS|ARN|ATTEMPTS|AUDIENCE|BACKEND|CMD|COLUMN|COMMAND|COUNT|DIR|DISABLED|ENABLED|ENDPOINT"
    r"|EXPIRATION|EXPIRES|EXPIRY|FIELD|FILE|FILENAME|FOLDER|FORMAT|HEADER|HOST|INTERVAL|ISSUER|LAYOUT|LEN|LENGTH|LIMIT"
    r"|MANAGER|MAX|MIN|MODE|NAME|PATH|PATTERN|POLICY|PORT|PREFIX|PROMPT|PROVIDER|RATE|REGEX|REGION|REQUIRED|ROTATION"
    r"|SCOPES?|SERVER|SERVICE|SIZE|SOCK|SOCKET|STORE|STRATEGY|SUFFIX|TIMEOUT|TTL|TYPE|URI|URL|VERSION"
)
"""Last words of names that say something about a credential: ``AWS_WEB_IDENTITY_TOKEN_FILE``, ``TOKEN_URL``."""

_SHELL = frozenset({"PWD", "OLDPWD"})
"""The folders of a shell."""

_ORDINARY = re.compile(
    r"anonymous|automatic|changeit|changeme|database|default|development|disabled|enabled|external|internal|localhost"
    r"|optional|password|postgres|postgresql|production|required|security|standard|undefined|unlimited|username",
    re.IGNORECASE,
)
"""Words that many texts hold for other reasons."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_END_OF_ADDRESS = re.compile(r"[\s\"<>]")
_END_OF_AUTHORITY = re.compile(r"[/?#]")
_PORT = re.compile(r"\d+(?:/|$)")

_BARE = re.compile(r"[^\s:/@]+:(?P<password>\S+)@(?:[\w.\-]+(?::\d+)?/?|(?:tcp|unix)\(\S*)")
"""``user:password@host:port`` as proxies take it, and ``user:password@tcp(host)/database``."""

_SETTING = re.compile(
    r"(?:^|[\s;?&,])(?:\w*(?:password|passwd|token|secret)|pwd|(?:api|access|account|sharedaccess|ssl)_?key)\s*=\s*"
    r"(?:'(?P<quoted>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<plain>[^\s;&,#'\"]+))",
    re.IGNORECASE,
)
"""A credential in the query of an address, or in a connection string such as ``host=db password=…``."""

SHORTEST_USER = 16
"""A user without a password who has at least so many characters, with a digit among them, is a token."""

SHORTEST_PATH = 16
"""The same for the path of a webhook: clients name it without its host when they fail."""


def credentials_in(environment: Mapping[str, str]) -> frozenset[str]:
    """What no text may show of these variables."""
    return frozenset(value for name, text in environment.items() for value in _values(name, text) if _is_secret(value))


def _values(name: str, text: str) -> Iterator[str]:
    """What of a variable may be secret: all of it by its name, and what it holds."""
    if _names_credential(name, text):
        yield text
    if _is_webhook(name, text):
        yield text
        path = text.partition("://")[2].partition("/")[2]
        if len(path) >= SHORTEST_PATH and _has_digit(path):
            yield path
    for held in _held(name, text):
        yield held
        yield unquote(held)


def _names_credential(name: str, text: str) -> bool:
    name = name.upper()
    words = [word for word in re.split(r"[^A-Z0-9]+", name) if word]
    if name in _SHELL or not words:
        return False
    if _ENDS.search(name) and not _NO_KEYS.search(name):
        return True
    if _ABOUT.fullmatch(words[-1]):
        return False
    if "DSN" in words:
        return any(True for _ in _held(name, text))
    if any(_SURE.fullmatch(word) for word in words):
        return True
    return _has_digit(text) and any(_LIKELY.fullmatch(word) for word in words)


def _is_webhook(name: str, text: str) -> bool:
    return "WEBHOOK" in name.upper() and _SCHEME.match(text) is not None


def _held(name: str, text: str) -> Iterator[str]:
    """The passwords in addresses and connection strings, as they stand there."""
    schemes = list(_SCHEME.finditer(text))
    ends = [*(scheme.start() for scheme in schemes[1:]), len(text)]
    for scheme, end in zip(schemes, ends, strict=False):
        yield from _held_by_user(_END_OF_ADDRESS.split(text[scheme.end() : end])[0])
    for setting in _SETTING.finditer(text):
        yield next(value for value in setting.groups() if value is not None)
    bare = _BARE.fullmatch(text)
    if bare is not None and not schemes and (name.upper().endswith("PROXY") or "@tcp(" in text or "@unix(" in text):
        yield bare["password"]


def _held_by_user(address: str) -> Iterator[str]:
    """The password of ``user:password@host/…``, or a user that is a token."""
    authority = _END_OF_AUTHORITY.split(address)[0]
    for place in {authority, address}:  # a password that is not encoded may hold what ends an authority
        before, at, _ = place.rpartition("@")
        user, _, password = before.partition(":")
        if not at or ("@" not in authority and _PORT.match(password)):  # host:8080/path@version
            continue
        if password and password.casefold() != user.casefold():
            yield password
        if len(user) >= SHORTEST_USER and _has_digit(user) and not set(user) & set("./@"):
            yield user


def _is_secret(value: str) -> bool:
    return len(value) >= SHORTEST_SECRET and not _ORDINARY.fullmatch(value) and not is_path(value)


def is_path(value: str) -> bool:
    """Whether the value is a path that exists here."""
    try:
        return value.startswith(("/", "~", "./")) and Path(value).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)
