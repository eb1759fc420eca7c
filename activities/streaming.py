"""Reads an answer as a stream through litellm: shows the pieces as they come, and builds the whole answer at the end.

What is stored equals the answer of a call without a stream. A stream counts as an answer only if the provider itself
sent a finish reason and usage, because litellm would make up both.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import litellm

from perdure.activities.failures import cause_chain
from perdure.activities.heartbeat import note_delta
from perdure.activities.provider_http import Exchange
from perdure.activities.provider_replies import StreamCutError, UnusableReplyError, check_stream, usage_of_stream


class Shown(Protocol):
    """Takes the pieces of an answer while it is written. No method may fail or wait."""

    def begin(self, *, has_calls_in_text: bool) -> None:
        """Start over: a request is about to be sent, and the pieces of an earlier one are void.

        Args:
            has_calls_in_text: Whether the model writes its tool calls into its text.
        """

    def text(self, piece: str) -> None:
        """Take a piece of the answer's text."""

    def thinking(self, piece: str) -> None:
        """Take a piece of the model's reasoning."""

    def tool_call(self, index: int, name: str, characters: int) -> None:
        """Take a piece of a tool call: its place in the answer, the tool's name or none, characters of arguments."""


_STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def ask(arguments: Mapping[str, Any], exchange: Exchange, shown: Shown | None) -> Any:  # noqa: ANN401 - litellm's
    """Make the call and return litellm's whole answer; with ``shown``, ask for a stream and show its pieces.

    Raises:
        StreamCutError: The stream ended, broke off or went silent before the answer had ended.
        UnusableReplyError: The reply is no answer for another reason.
        Exception: Whatever litellm raises before the reply has begun.
    """
    if shown is None:
        return await litellm.acompletion(**arguments)
    stream: Any = await litellm.acompletion(**{**arguments, **_STREAM})
    try:
        async for chunk in stream:
            note_delta()
            _show(chunk, shown)
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is judged by what the provider sent
        _raise_if_cut(error, exchange)
    finally:
        await _close(stream, exchange)
    is_cut_off = exchange.stream is not None and check_stream(exchange.stream)
    response: Any = await asyncio.to_thread(_build, stream.chunks)
    if response is None or not response.choices:
        msg = "the stream ended without any piece of an answer"
        raise StreamCutError(msg)
    if is_cut_off:
        response.choices[0].finish_reason = "length"
    if exchange.stream is not None and exchange.stream.refusal:
        message = response.choices[0].message
        extra: dict[str, Any] = getattr(message, "provider_specific_fields", None) or {}
        message.provider_specific_fields = {**extra, "refusal": exchange.stream.refusal}
    return response


def _raise_if_cut(error: Exception, exchange: Exchange) -> None:
    """Raise what a failure within a stream means; return if the whole answer had come before it."""
    record = exchange.stream
    if record is None:
        raise error
    if any(isinstance(link, UnusableReplyError) for link in (error, *cause_chain(error))):
        raise error
    if record.error is not None:
        check_stream(record)
    if not record.is_whole:
        root = (error, *cause_chain(error))[-1]
        msg = f"the stream broke off without {record.missing} ({type(root).__name__})"
        raise StreamCutError(msg, usage_of_stream(record)) from error


_build = cast("Callable[[list[Any]], Any]", litellm.stream_chunk_builder)


async def _close(stream: Any, exchange: Exchange) -> None:  # noqa: ANN401 - litellm's
    """Close the stream and its connection: the provider would go on writing, and charge for it."""
    with contextlib.suppress(Exception):
        await stream.aclose()
    if exchange.open_reply is not None:
        with contextlib.suppress(Exception):
            await exchange.open_reply.aclose()


def _show(chunk: Any, shown: Shown) -> None:  # noqa: ANN401 - litellm's
    for choice in chunk.choices[:1]:
        delta = choice.delta
        if text := getattr(delta, "content", None):
            shown.text(str(text))
        if thinking := getattr(delta, "reasoning_content", None):
            shown.thinking(str(thinking))
        for call in getattr(delta, "tool_calls", None) or ():
            function = call.function
            shown.tool_call(int(call.index or 0), str(function.name or ""), len(function.arguments or ""))


def show_whole(response: Any, shown: Shown) -> None:  # noqa: ANN401 - litellm's
    """Show an answer that did not come as a stream."""
    message = response.choices[0].message if response.choices else None
    if message is not None and message.content:
        shown.text(str(message.content))
    for index, call in enumerate(getattr(message, "tool_calls", None) or ()):
        shown.tool_call(index, str(call.function.name or ""), len(call.function.arguments or ""))
