"""Facts about a failed model call: status, headers, class, cause chain, text. ``perdure.llm.failures`` judges them.

The facts are read by names and attributes: no vendor library is imported, and none of its objects leaves this module.
Request objects in the cause chain hold the key, so only texts are read, and those are redacted. litellm wraps a
provider's reply in exceptions of its own, and picks their class and status by the words of the message. So the reply is
taken from the bottom of the cause chain.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlsplit

from perdure.activities.errors import LONGEST_RAW_TEXT, redact_and_cut
from perdure.activities.faults import find_fault, place_of_fault, words_of_fault
from perdure.activities.models.error_objects import NOTHING_SAID, ErrorObject, error_object
from perdure.activities.models.provider_replies import BrokenOffReplyError
from perdure.contracts.errors import CUSTOM_CODE, ReasonCode
from perdure.contracts.exceptions import kind_of, text_of, words_of
from perdure.llm.failures import FailureFacts, class_of_status
from perdure.llm.tool_output import head_and_tail
from perdure.llm.waits import wait_in_headers, wait_in_words

_EMPTY = frozenset({"", "{}", "[]", "null", '""'})


@dataclass(frozen=True)
class ErrorReply:
    """A reply with an error status."""

    status: int
    headers: Mapping[str, str]
    body: str
    address: str

    def text(self) -> str:
        """The provider's message, or else the body; a sentence if that is empty."""
        body = self.body.strip()
        if body in _EMPTY:
            return f"the reply has an empty body, from {self.address}"
        return self.said.words() or body

    @property
    def said(self) -> ErrorObject:
        """The error object in the body."""
        return error_object(self.body.strip())


class NoReplyError(Exception):
    """The provider sent no whole reply; the cause says what happened to the connection."""


class ProviderError(Exception):
    """The provider answered with an error, whatever litellm makes of it.

    Attributes:
        reply: The provider's reply.
    """

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.text())
        self.reply = reply


def reply_of(chain: Sequence[BaseException]) -> ErrorReply | None:
    """The provider's reply, from the bottom of the cause chain: the exceptions above it carry one that litellm made."""
    for link in reversed(chain):
        if isinstance(link, ProviderError):
            return link.reply
        response = cast("Any", getattr(link, "response", None))
        if response is None or "HTTPStatusError" not in {base.__name__ for base in type(link).__mro__}:
            continue
        address = urlsplit(str(response.request.url))
        return ErrorReply(
            status=int(response.status_code),
            headers=dict(response.headers),
            body=bytes(response.content).decode("utf-8", "replace"),
            address=f"{address.scheme}://{address.hostname}{f':{address.port}' if address.port else ''}",
        )
    return None


MAX_TEXT = 1_500
"""Longest text of a failure; its head and its tail are kept, as what to do often stands at the end."""

MAX_CAUSES = 12
"""Longest cause chain that is followed."""

_PREFIX = re.compile(
    r"\A(?:"
    r"(?:[\w-]+Error(?: \w+)?|[\w-]+ ?Exception(?: (?:\w+ ){0,3}\w+)?) - (?:Request timed out\. Error_str: )?"
    r"|[\w-]+Exception: (?:Authentication|Context Window|Rate Limit|Timeout) Err+or - "
    r"|[\w-]+Exception: Invalid Model/Model not loaded - "
    r"|(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception)|Timeout Error): "
    r")+"
)
"""Prefix that litellm writes before a provider's words: classes, and the provider's name, which may have a hyphen."""

_SUFFIX = re.compile(r"\. Handle with `litellm\.\w+`\.\Z")

_NO_REPLY = frozenset({"TransportError", "ClientConnectionError", "ClientPayloadError", "InvalidURL"})
"""Classes of httpx and aiohttp in the cause chain of a call that got no whole reply."""


_BY_WORDS = frozenset({"ContextWindowExceededError", "ContentPolicyViolationError"})
"""Classes that litellm raises by the words of a message, whatever the reply's status."""

_BAD_REQUEST = frozenset({None, 200, 400, 413, 422, 500})
"""Statuses of replies for which litellm's class is believed."""

_SAYS_NOTHING = frozenset({"", "Connection error.", "Request timed out."})
"""The openai SDK's messages about a connection; they do not say what happened to it."""

_NO_JSON = re.compile(r"\AUnable to get json response - .*?, Original Response: (?P<body>.*)\Z", re.DOTALL)
_OBJECT = re.compile(r"\s*(?:ssl:)?<[\w.]+ object at 0x[0-9a-f]+>")
_SHOWN_ERROR = re.compile(r"<\w+: (?:\d+, )?message=(['\"])(.*?)\1>\.?")
_PLACE = re.compile(r"(?:File )?\"?/[^\s\"']*/site-packages/[^\s\"']*\"?(?:, line \d+)?")
"""Objects, exceptions and places in the worker's own files, as Python writes them into a text."""


def facts_of(error: BaseException, now: datetime, secrets: Collection[str] = ()) -> FailureFacts:
    """The facts about a failed model call.

    An HTTP date in ``retry-after`` is compared with the reply's ``Date`` header, so that both are by the provider's
    clock; ``now`` is used if that header is missing. An exception that cannot be read is a fault of its author's code.
    """
    try:
        return _read_facts(error, now, secrets)
    except BaseException:  # noqa: BLE001 - the edge: its attributes are the code of a custom provider
        return FailureFacts(
            class_name=kind_of(error),
            fault=(kind_of(error),),
            fault_place=place_of_fault(error),
            text=redact_and_cut(text_of(error), secrets),
            own_code=ReasonCode.RUNTIME_INTERNAL,
        )


def _read_facts(error: BaseException, now: datetime, secrets: Collection[str]) -> FailureFacts:
    chain = (error, *cause_chain(error))
    reply = reply_of(chain)
    broken = next((link for link in chain if isinstance(link, BrokenOffReplyError)), None)
    told = reply or broken
    headers = _headers(error) if told is None else told.headers
    told_error = NOTHING_SAID if told is None else told.said
    causes = tuple(name for cause in chain[1:] for name in names(cause))
    carrier = next((link for link in chain if _own_code_of(link) is not None), None)
    no_reply = not headers and (carrier is not None or _NO_REPLY.intersection(causes))
    said = carrier or error
    status = None if no_reply else _status_of(chain, reply)
    fault = find_fault(chain) if status is None and carrier is None else None
    if fault is None:
        text = _words_of(said, chain, reply if carrier is None else None)
    else:
        said, text = fault, words_of_fault(fault, _without_wrapping(words_of(fault)))
    words = redact_and_cut(text, secrets)
    return FailureFacts(
        status=status,
        retry_after_seconds=_wait_told(headers, told_error, words, now),
        class_name=_class_name(said),
        classes=tuple(name for name in names(fault or error) if status in _BAD_REQUEST or name not in _BY_WORDS),
        fault=names(fault) if fault is not None else (),
        fault_place=place_of_fault(fault) if fault is not None else "",
        causes=causes,
        names=_provider_names(chain, told_error),
        text=" ".join(head_and_tail(words, MAX_TEXT).split()),  # an error is one line
        own_code=_own_code_of(said),
        own_transient=getattr(said, "transient", False) is True,
    )


def _status_of(chain: Sequence[BaseException], reply: ErrorReply | None) -> int | None:
    """The status of the provider's reply; None without a reply.

    litellm's own status is not used: it is picked by the words of the message, and a refused connection gets 500. An
    error inside a reply of status 200 has a status only if its code is one.
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
        return error_object(words_of(told[-1])).status or 200
    is_made_up = status == 500 and not any(getattr(link, "headers", None) for link in chain)
    return None if is_made_up or getattr(told[-1], "status_code_is_synthesized", False) is True else status


def _wait_told(headers: Mapping[str, str], said: ErrorObject, words: str, now: datetime) -> float | None:
    """Seconds that the provider asks to wait, wherever it tells them."""
    clock = {name: value for name, value in headers.items() if name.lower() == "date"}
    waits = (wait_in_headers(headers, now), wait_in_headers({**said.headers, **clock}, now), wait_in_words(words))
    return next((wait for wait in waits if wait is not None), None)


def _class_name(said: BaseException) -> str:
    """The class of a failure for people: the usual one of its status, if a provider has answered with one."""
    if isinstance(said, ProviderError):
        return class_of_status(said.reply.status)
    if isinstance(said, BrokenOffReplyError) and said.said.status is not None:
        return class_of_status(said.said.status)
    return type(said).__name__


def _provider_names(chain: Sequence[BaseException], told: ErrorObject) -> tuple[str, ...]:
    """The provider's codes and types for the failure, in lower case."""
    texts = (_without_wrapping(words_of(link)) for link in chain)
    said = told.names or next((found.names for found in map(error_object, texts) if found.names), ())
    # litellm may keep no more of an error object in a 200 than its code, in place of the status.
    codes = (code for link in chain if isinstance(code := getattr(link, "status_code", None), str))
    return tuple(name.casefold() for name in said or codes)


def _headers(error: BaseException) -> Mapping[str, str]:
    """The provider's headers. litellm keeps them beside the response that it makes up; later releases also in it."""
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if headers:
            return {str(name): str(value) for name, value in dict(headers).items()}
    return {}


def _own_code_of(error: BaseException) -> str | None:
    """The reason code that the author of a custom provider gave the exception, if it has one."""
    code = getattr(error, "reason_code", None)
    return str(code) if isinstance(code, str) and CUSTOM_CODE.fullmatch(code) else None


def names(error: BaseException) -> tuple[str, ...]:
    """Names of the exception's class and its bases, the most derived first, without those of every exception."""
    return tuple(base.__name__ for base in type(error).__mro__ if base not in {object, BaseException, Exception})


def cause_chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and, one after the other, the exceptions that it was raised from."""
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen and len(seen) < MAX_CAUSES:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _words_of(said: BaseException, chain: Sequence[BaseException], reply: ErrorReply | None) -> str:
    """The provider's message with its code for the failure; without a message, what happened to the call.

    litellm puts class names before the message and sometimes a traceback after it, or gives the reply's whole body.
    """
    if reply is not None:
        return reply.text()
    if isinstance(chain[-1], KeyError) and len(chain) > 1:
        return f"the reply has no {chain[-1]}"
    text = _without_wrapping(words_of(said))
    if text in _SAYS_NOTHING:
        text = next((deeper for link in reversed(chain) if (deeper := _without_wrapping(words_of(link)))), "")
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
    """The text without what litellm and Python add: class names, a traceback, object addresses, places in files."""
    text = text[:LONGEST_RAW_TEXT].partition("Traceback (most recent call last)")[0]
    text = _SUFFIX.sub("", _PREFIX.sub("", text.rstrip())).strip()
    return _PLACE.sub("", _SHOWN_ERROR.sub(r"\2", _OBJECT.sub("", text))).strip()
