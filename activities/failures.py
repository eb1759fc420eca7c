"""Vendor exceptions as plain facts: status, headers, class, cause chain, text. The decision is the engine's.

Works by names and attributes: no vendor library is imported, and none of their objects leaves this module. Request
objects down the chain hold the key, so only texts are read, and those are redacted.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime

from perdure.activities.error_replies import ErrorReply, error_object, reply_of
from perdure.contracts.errors import CUSTOM_CODE
from perdure.engine.failures import FailureFacts
from perdure.engine.outputs import head_and_tail, whole_characters
from perdure.engine.redaction import redact_text
from perdure.engine.retries import parse_retry_after

MAX_TEXT = 1_500
"""Longest text of a failure; its head and its tail are kept, as what to do often stands at the end."""

LONGEST_RAW_TEXT = 50_000
"""More of a failure's text is not even looked at."""

MAX_CAUSES = 12
"""Longest cause chain that is followed."""

_PREFIX = re.compile(
    r"\A(?:(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception)|Timeout Error): |\w+(?:Error|Exception)(?: \w+)? - )+"
)

_SUFFIX = re.compile(r"\. Handle with `litellm\.\w+`\.\Z")

_NO_REPLY = frozenset({"TransportError", "ClientConnectionError", "ClientPayloadError", "InvalidURL"})
"""Classes of httpx and aiohttp in the cause chain of a call that got no whole reply."""


_BY_WORDS = frozenset({"ContextWindowExceededError", "ContentPolicyViolationError"})
"""Classes that litellm raises by the words of a message, whatever the reply's status."""

_BAD_REQUEST = frozenset({None, 200, 400, 413, 422, 500})
"""Statuses behind which such words may mean that."""

_SAYS_NOTHING = frozenset({"", "Connection error.", "Request timed out."})
"""What the openai SDK says of a connection, whatever became of it."""

_NO_JSON = re.compile(r"\AUnable to get json response - .*?, Original Response: (?P<body>.*)\Z", re.DOTALL)
_OBJECT = re.compile(r"\s*(?:ssl:)?<[\w.]+ object at 0x[0-9a-f]+>")
_SHOWN_ERROR = re.compile(r"<\w+: (?:\d+, )?message=(['\"])(.*?)\1>\.?")
_PLACE = re.compile(r"(?:File )?\"?/[^\s\"']*/site-packages/[^\s\"']*\"?(?:, line \d+)?")
"""Objects, exceptions and places in the worker's own files, as Python writes them into a text."""


def facts_of(error: BaseException, now: datetime, secrets: Collection[str] = ()) -> FailureFacts:
    """What is known about a failed model call; ``now`` is what an HTTP date in retry-after is compared with.

    A reply's own Date header takes its place: both are the provider's clock then.
    """
    chain = (error, *cause_chain(error))
    reply = reply_of(chain)
    headers = reply.headers if reply is not None else _headers(error)
    causes = tuple(name for cause in chain[1:] for name in names(cause))
    carrier = next((link for link in chain if _own_code(link) is not None), None)
    no_reply = not headers and (carrier is not None or _NO_REPLY.intersection(causes))
    said = carrier or error
    status = None if no_reply else _status(chain, reply)
    text = redact(_text(said, chain, reply if carrier is None else None), secrets)
    return FailureFacts(
        status=status,
        retry_after_seconds=parse_retry_after(headers, now),
        class_name=type(said).__name__,
        classes=tuple(name for name in names(error) if status in _BAD_REQUEST or name not in _BY_WORDS),
        causes=causes,
        names=_provider_names(chain, reply),
        text=head_and_tail(text, MAX_TEXT),
        own_code=_own_code(said),
        own_transient=getattr(said, "transient", False) is True,
    )


def redact(text: str, secrets: Collection[str] = (), longest: int = LONGEST_RAW_TEXT) -> str:
    """The text without secrets, and without what lies behind its first 50,000 characters, or so many."""
    return redact_text(whole_characters(text[:longest]), secrets)


def _status(chain: Sequence[BaseException], reply: ErrorReply | None) -> int | None:
    """The reply's own status, from the bottom of the chain: litellm gives its exceptions one by the message's words.

    Without a reply litellm makes one up: a refused connection wears 500. An error that came in a 200 has the provider's
    name for it in place of a status, or a status as its code.
    """
    if reply is not None:
        return reply.status
    told = [link for link in chain if isinstance(getattr(link, "status_code", None), int | str)]
    if not told:
        return None
    status = getattr(told[-1], "status_code", None)
    if isinstance(status, str):
        return 200
    if status == 200:
        return error_object(str(told[-1])).status or 200
    is_made_up = status == 500 and not any(getattr(link, "headers", None) for link in chain)
    return None if is_made_up or getattr(told[-1], "status_code_is_synthesized", False) is True else status


def _provider_names(chain: Sequence[BaseException], reply: ErrorReply | None) -> tuple[str, ...]:
    """The provider's codes and types for the failure, in lower case."""
    texts = (reply.body.strip(),) if reply is not None else (_without_wrapping(str(link)) for link in chain)
    said = next((found for found in map(error_object, texts) if found.names), None)
    return tuple(name.casefold() for name in said.names) if said is not None else ()


def _headers(error: BaseException) -> Mapping[str, str]:
    """Litellm keeps the provider's headers beside the response it makes up; later releases in the response too."""
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if headers:
            return {str(name): str(value) for name, value in dict(headers).items()}
    return {}


def _own_code(error: BaseException) -> str | None:
    """The code that an agent's own provider gave its exception; litellm wraps that in one of its own."""
    code = getattr(error, "reason_code", None)
    return str(code) if isinstance(code, str) and CUSTOM_CODE.fullmatch(code) else None


def names(error: BaseException) -> tuple[str, ...]:
    """The class and its bases, the most derived first; those that say nothing are left out."""
    return tuple(base.__name__ for base in type(error).__mro__ if base not in {object, BaseException, Exception})


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """What an exception was raised from, down to the first of the chain."""
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen and len(seen) < MAX_CAUSES:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _text(said: BaseException, chain: Sequence[BaseException], reply: ErrorReply | None) -> str:
    """The provider's words, with its own code for the failure behind them; without any, what became of the call.

    litellm puts classes before them and sometimes a traceback behind, or gives the whole body of the reply.
    """
    if reply is not None:
        return reply.text()
    if isinstance(chain[-1], KeyError) and len(chain) > 1:
        return f"the reply has no {chain[-1]}"
    text = _without_wrapping(str(said))
    if text in _SAYS_NOTHING:
        text = next((deeper for link in reversed(chain) if (deeper := _without_wrapping(str(link)))), "")
    words = error_object(text).words()
    if words:
        return words
    name = f" [{code}]" if isinstance(code := getattr(said, "status_code", None), str) else ""
    no_json = _NO_JSON.match(text)
    if no_json:
        body = no_json["body"].strip()
        text = f"the reply is no JSON: {body}" if body else "the reply has an empty body"
    return f"{text}{name}".strip() or f"{type(said).__name__}, without a message"


def _without_wrapping(text: str) -> str:
    """The text without what litellm and Python put around it: classes, a traceback, objects, places in files."""
    text = text[:LONGEST_RAW_TEXT].partition("Traceback (most recent call last)")[0]
    text = _SUFFIX.sub("", _PREFIX.sub("", text.rstrip())).strip()
    return _PLACE.sub("", _SHOWN_ERROR.sub(r"\2", _OBJECT.sub("", text))).strip()
