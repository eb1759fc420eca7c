"""One HTTP exchange with a provider: bounded, checked, and its answer read.

A redirect is refused, as it would take the conversation and sometimes the key to another origin; a lost connection is
told and not repeated, as the provider may have done the work.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from perdure.activities.faults import mark_answered
from perdure.activities.models.failures import ProviderError
from perdure.activities.models.provider_packets import HttpReply, Patience, lost_connections, read_error
from perdure.activities.models.provider_reading import LARGEST_ERROR, receive
from perdure.activities.models.provider_replies import RedirectedError
from perdure.activities.models.wires import Wire
from perdure.activities.models.wires.reply import Answered, Shown
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue

ENCODINGS = "gzip, deflate"
"""Encodings that are decompressed here, within bounds. Providers are asked for no other."""

Send = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class StandIn:
    """Answers in place of all providers. No key is needed then, and nothing leaves the process.

    Attributes:
        answer: Returns a chat completion in OpenAI's format for the arguments of a call, or None to have an HTTP
            request made.
        send: Returns the reply to that HTTP request.
    """

    answer: Callable[[AgentDefinition, Mapping[str, Any]], Awaitable[dict[str, JsonValue] | None]]
    send: Send


stand_in: ContextVar[StandIn | None] = ContextVar("perdure_stand_in", default=None)
"""The stand-in for the model calls of this task and of the tasks that it starts."""


def to_reply(response: httpx.Response) -> HttpReply:
    """The reply in a response whose body has not been read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    stream: Any = response.stream
    return HttpReply(response.status_code, headers, stream, response.aclose, str(response.request.url))


async def exchange(
    wire: Wire,
    url: str,
    ask: Callable[[], Awaitable[HttpReply]],
    shown: Shown | None,
    patience: Patience = Patience(),  # noqa: B008 - it is frozen
) -> Answered:
    """The answer to one request.

    Args:
        wire: The format of the answer.
        url: Where the request goes.
        ask: Sends it.
        shown: Takes the pieces of the answer; None if no stream is asked for.
        patience: How long the provider may be silent in its answer.

    Raises:
        NoReplyError: The connection was not made, or was lost.
        UnusableReplyError: The reply is not an answer.
        ProviderError: It is an error.
    """
    with lost_connections():
        reply = await ask()
    try:
        return await _answer_of(wire, url, reply, shown, patience)
    except Exception as error:
        mark_answered(error)
        raise
    finally:
        await reply.close()


async def _answer_of(wire: Wire, url: str, reply: HttpReply, shown: Shown | None, patience: Patience) -> Answered:
    location = reply.headers.get("location")
    if 300 <= reply.status < 400 and location:
        raise RedirectedError(_origin(url, location))
    if not 200 <= reply.status < 300:
        raise ProviderError(reply.error(await read_error(reply, patience, LARGEST_ERROR)))
    return await receive(wire, reply, shown, patience)


def _origin(asked: str, location: str) -> str:
    """The origin of a redirect's target. The rest may not be shown: its path may hold a key."""
    try:
        target = urlsplit(urljoin(asked, location))
        port = f":{target.port}" if target.port else ""
    except ValueError:
        return "an address that is no URL"
    return f"{target.scheme}://{target.hostname}{port}"
