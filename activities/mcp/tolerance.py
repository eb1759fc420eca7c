"""The streams between the SDK and a transport, through which a server's answers are read as ``reading`` mends them."""

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from contextvars import Context, ContextVar
from typing import Any, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

from perdure.activities.mcp.reading import NO_ID, mend_answer, reread_message

OLDER = "2025-11-25"
"""The version by which answers are read if a request names none: those of the older generation do not."""

MOST_ASKED = 10_000
"""Requests without an answer that are remembered."""

_asking: ContextVar[RequestId | None] = ContextVar("mcp_asking", default=None)
"""The request in whose HTTP exchange a message came. The SDK hands the context of a sender on."""


class _Asked:
    """Requests that have no answer yet: the method and the version of each."""

    def __init__(self) -> None:
        self._open: OrderedDict[RequestId, tuple[str, str]] = OrderedDict()

    def note(self, message: object) -> RequestId | None:
        """Note what is about to be sent; the id, if it is a request."""
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._open.pop(cast("Any", (message.params or {}).get("requestId")), None)
        if not isinstance(message, JSONRPCRequest):
            return None
        meta = cast("dict[str, Any]", (message.params or {}).get("_meta") or {})
        self._open[message.id] = (message.method, str(meta.get(PROTOCOL_VERSION_META_KEY, OLDER)))
        if len(self._open) > MOST_ASKED:
            self._open.popitem(last=False)
        return message.id

    def settle(self, item: SessionMessage | Exception, context: Context | None) -> SessionMessage | Exception:
        """Message that the SDK reads in place of ``item``."""
        if isinstance(item, ValidationError):
            item = _reread(item)
        if isinstance(item, Exception) or not isinstance(item.message, JSONRPCResponse | JSONRPCError):
            return item
        answer = item.message
        if (owner := self._owner(answer, context)) is None:
            return item
        method, version = self._open.pop(owner)
        answer = answer.model_copy(update={"id": owner})
        if isinstance(answer, JSONRPCResponse):
            answer = mend_answer(answer, method, version)
        return SessionMessage(answer, item.metadata)

    def _owner(self, answer: JSONRPCResponse | JSONRPCError, context: Context | None) -> RequestId | None:
        """The request that the message answers; servers leave its id out of errors, or write it in another way."""
        asking = context.get(_asking) if context is not None else None
        said: RequestId | None = answer.id
        if isinstance(said, str) and said.isdecimal():
            said = int(said)
        if asking in self._open:
            return asking
        if said in self._open:
            return said
        return next(iter(self._open)) if answer.id in {None, NO_ID} and len(self._open) == 1 else None


def _reread(error: ValidationError) -> SessionMessage | Exception:
    """The message that the SDK could not read, if it can be mended."""
    try:
        return SessionMessage(reread_message(error))
    except ValidationError:
        return error


class _Read:
    """The SDK's stream of what comes, with each message mended."""

    def __init__(self, inner: Any, asked: _Asked) -> None:  # noqa: ANN401 - the SDK's own, which is private
        self._inner = inner
        self._asked = asked

    @property
    def last_context(self) -> Context | None:
        return cast("Context | None", getattr(self._inner, "last_context", None))

    async def receive(self) -> SessionMessage | Exception:
        return self._asked.settle(await self._inner.receive(), self.last_context)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> "_Read":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> "_Read":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _without_held_questions(item: SessionMessage) -> SessionMessage:
    """The message; a greeting of the older generation without the offer to answer questions.

    Such a server would hold its connection open until somebody has answered, and nobody may for days.
    """
    message = item.message
    if not isinstance(message, JSONRPCRequest) or message.method != "initialize":
        return item
    params = dict(message.params or {})
    offered = cast("dict[str, Any]", params.get("capabilities") or {})
    params["capabilities"] = {name: value for name, value in offered.items() if name != "elicitation"}
    return SessionMessage(message.model_copy(update={"params": params}), item.metadata)


class _Written:
    """The SDK's stream of what is sent, with each request noted."""

    def __init__(self, inner: Any, asked: _Asked) -> None:  # noqa: ANN401
        self._inner = inner
        self._asked = asked

    async def send(self, item: SessionMessage) -> None:
        token = _asking.set(self._asked.note(item.message))
        try:
            await self._inner.send(_without_held_questions(item))
        finally:
            _asking.reset(token)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> "_Written":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@contextlib.asynccontextmanager
async def tolerating(transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """A transport of the SDK whose messages are mended."""
    asked = _Asked()
    async with transport as (read, write):
        yield _Read(read, asked), _Written(write, asked)
