"""Bearer tokens: the file has their hashes only, each with a name, a tenant and scopes.

A token is 32 random bytes, so a plain SHA-256 keeps it: nobody can guess the token behind a hash, which is what slow
hashes are for with passwords, and each request is checked in microseconds.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from perdure.contracts.values import Label, describe_mistake
from perdure.gateway.callers import Caller, Scope
from perdure.settings import Settings, SettingsError, read_file

PREFIX = "pdr_"
"""Prefix of tokens, so that scanners of leaked secrets find them."""


LOOK_EVERY = timedelta(seconds=1)
"""Interval at which a gateway looks at its file of tokens. What has changed counts with the second look: writing takes
time.
"""

logger = logging.getLogger("perdure.gateway")


def _is_word(name: str) -> str:
    if name != name.strip() or not name:
        msg = "is empty, or has a space at an end"
        raise ValueError(msg)
    return name


class TokenLine(BaseModel):
    """A token as the file has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[Label, AfterValidator(_is_word)]
    tenant: Label = ""
    scopes: frozenset[Scope] = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


_LINES = TypeAdapter(list[TokenLine])


def hash_of(token: str) -> str:
    """The hash of a token, as the file has it."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def make_token(name: str, tenant: str, scopes: Iterable[Scope]) -> tuple[str, str]:
    """A new token, and its line for the file.

    Raises:
        SettingsError: The name or the tenant cannot be one.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    try:
        line = TokenLine(name=name, tenant=tenant, scopes=frozenset(scopes), sha256=hash_of(token))
    except ValidationError as error:
        raise SettingsError(describe_mistake(error)) from None
    fields = {"name": line.name, "tenant": line.tenant, "scopes": sorted(line.scopes), "sha256": line.sha256}
    return token, json.dumps(fields, ensure_ascii=False)


class Tokens:
    """The tokens that a gateway knows, and who holds something open with one of them.

    Attributes:
        callers: Whose they are, by their hashes.
    """

    def __init__(self, lines: Iterable[TokenLine]) -> None:
        """Take over the lines.

        Raises:
            SettingsError: Two of them have one name, or one hash.
        """
        self.callers: Mapping[str, Caller] = {}
        callers: dict[str, Caller] = {}
        names: set[str] = set()
        for line in lines:
            if line.name in names or line.sha256 in callers:
                raise SettingsError(f"the gateway's token {line.name!r} stands there twice; take one of its lines out")
            names.add(line.name)
            callers[line.sha256] = Caller(
                name=line.name, tenant=line.tenant, scopes=line.scopes, token_hash=line.sha256
            )
        self.callers = callers
        self._holding: dict[asyncio.Event, Caller] = {}

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.callers)

    def find(self, token: str) -> Caller | None:
        """Whose the token is; None if it is nobody's. Each hash is compared, and in constant time."""
        said, found = hash_of(token), None
        for known, caller in self.callers.items():
            if hmac.compare_digest(known, said):
                found = caller
        return found

    def has(self, caller: Caller) -> bool:
        """Whether the caller's token still stands there, with the same tenant and scopes."""
        return self.callers.get(caller.token_hash) == caller

    @contextlib.contextmanager
    def hold(self, caller: Caller) -> Iterator[asyncio.Event]:
        """An event that is set once the caller's token is taken out or changed, for as long as the block lasts."""
        gone = asyncio.Event()
        self._holding[gone] = caller
        self._end_strangers()
        try:
            yield gone
        finally:
            del self._holding[gone]

    def take_over(self, other: "Tokens") -> bool:
        """Know these tokens from now on, and no others. False if they are the same."""
        if self.callers == other.callers:
            return False
        self.callers = other.callers
        self._end_strangers()
        return True

    def _end_strangers(self) -> None:
        for gone, caller in self._holding.items():
            if not self.has(caller):
                gone.set()


async def watch_tokens(tokens: Tokens, settings: Settings, count: Callable[[str], None]) -> None:
    """Read the file of tokens again whenever it has changed, until cancelled; without a file, do nothing.

    A file that cannot be used changes nothing: it is logged once, and counted with each look.

    Args:
        tokens: What takes the new ones over.
        settings: They name the file.
        count: Is told ``changed`` or ``failed``.
    """
    path, seen, said = settings.gateway_tokens_file, "", ""
    while path is not None:
        await asyncio.sleep(LOOK_EVERY.total_seconds())
        try:
            text = await asyncio.to_thread(read_file, path, _source_of(settings))
            if text != seen:
                seen = text
                continue
            if tokens.take_over(Tokens(_read_lines(text, _source_of(settings)))):
                logger.info("the gateway's tokens were read again, and are now %s", len(tokens))
                count("changed")
            said = ""
        except SettingsError as error:
            if str(error) != said:
                said = str(error)
                logger.warning("%s; the tokens stay as they were", said)
            count("failed")


def load_tokens(settings: Settings) -> Tokens | None:
    """The tokens of the settings; None if none are configured.

    Raises:
        SettingsError: They cannot be read; the message names the line and the field, and no hash.
    """
    path, text, source = settings.gateway_tokens_file, settings.gateway_tokens, _source_of(settings)
    if path is not None:
        text = read_file(path, source)
    elif not text.strip():
        return None
    lines = _read_lines(text, source)
    if not lines:
        raise SettingsError(f"{source} has no tokens; make one with 'perdure gateway token NAME --scope run'")
    return Tokens(lines)


def _source_of(settings: Settings) -> str:
    path = settings.gateway_tokens_file
    return "PERDURE_GATEWAY_TOKENS" if path is None else f"PERDURE_GATEWAY_TOKENS_FILE={path}"


def _read_lines(text: str, source: str) -> list[TokenLine]:
    try:
        return _LINES.validate_python(_rows(text))
    except json.JSONDecodeError:
        msg = f"{source}: a line is no JSON; make lines with 'perdure gateway token NAME --scope run'"
        raise SettingsError(msg) from None
    except ValidationError as error:
        raise SettingsError(f"{source}: {describe_mistake(error)}") from None


def _rows(text: str) -> list[object]:
    """The lines as JSON, empty ones and comments left out; a variable may hold one array instead."""
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    rows = (row.strip() for row in text.splitlines())
    return [json.loads(row) for row in rows if row and not row.startswith("#")]
