"""Publishes the pieces of an answer to its followers: masked, and gathered for a moment.

Nothing here fails or delays a call. Pieces that cannot be published are published later, or never once the answer is
stored, which is whole.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from perdure.contracts.deltas import Delta, DeltaKind
from perdure.contracts.values import replace_surrogates
from perdure.security.held_text import HeldText
from perdure.store.live import Live

FLUSH_SECONDS = 0.1
"""Time between two publications of one answer. The first piece is published at once."""

SLOWEST_FLUSH_SECONDS = 0.25
"""The same in a worker with more than ``MANY_STREAMS``."""

MANY_STREAMS = 50
"""Streams of a worker above which each publishes less often."""

RETRY_SECONDS = 1.0
"""Time until what could not be published is tried again."""

FLUSH_CHARACTERS = 1_500
"""Characters that are published at once."""

LAST_FLUSH_SECONDS = 2.0
"""Longest time that a finished answer waits until its last pieces are published."""

_CALL_MARK = re.compile(r"[<{\[`]")
"""Characters that may begin a tool call in text. From there on the text is not shown: arguments may hold secrets."""

logger = logging.getLogger("perdure.worker")


@dataclass(frozen=True, kw_only=True)
class Shows:
    """The answer that is shown, and what of it may be shown.

    Attributes:
        attempt: See :class:`~perdure.contracts.deltas.Delta`.
        tools: Names of tools that are shown. Others are hidden: a model may write anything in their place.
        thinking: Whether reasoning is shown.
        secrets: Texts that are masked.
    """

    session: str
    turn: int
    step: int
    attempt: int
    tools: Collection[str] = ()
    thinking: bool = False
    secrets: Collection[str] = ()


@dataclass
class _Text:
    """One kind of text: ``shown`` may be published and is not yet, ``offset`` counts the published characters."""

    held: HeldText
    shown: str = ""
    offset: int = 0

    def take(self) -> tuple[int, str]:
        offset, text = self.offset, replace_surrogates(self.shown)
        self.shown, self.offset = "", offset + len(text)
        return offset, text


@dataclass
class _Call:
    tool: str = ""
    characters: int = 0
    is_new: bool = True


@dataclass
class _Written:
    """One request's answer so far."""

    texts: dict[DeltaKind, _Text]
    calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    has_calls_in_text: bool = False
    is_silent: bool = False


class DeltaPublisher:
    """Publishes one answer while it is written, from a task of its own; entered around the model call.

    Attributes:
        has_shown: Whether a piece has come, so that followers may have seen part of the answer.
    """

    _running = 0
    """Answers that this process publishes at the moment: they share its connection."""

    def __init__(self, live: Live, shows: Shows) -> None:
        self.has_shown = False
        self._live = live
        self._shows = shows
        self._n = 0
        self._unpublished: list[Delta] = []
        self._is_failing = False
        self._written = self._begin_anew()
        self._news = asyncio.Event()
        self._full = asyncio.Event()
        self._ends = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to publish what is shown from now on."""
        DeltaPublisher._running += 1
        self._task = asyncio.create_task(self._publish_all(), name="perdure-deltas")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the rest of an answer; after a failed call, nothing more."""
        DeltaPublisher._running -= 1
        assert self._task is not None, "it was entered"  # noqa: S101 - narrows the type
        if error is None:
            for text in self._written.texts.values():
                text.shown += text.held.close()
            self._ends = True
            self._news.set()
            self._full.set()
            await asyncio.wait([self._task], timeout=LAST_FLUSH_SECONDS)
        self._task.cancel()
        await asyncio.wait([self._task])

    def begin(self, *, has_calls_in_text: bool) -> None:
        """Start over: a request is about to be sent."""
        self._written = self._begin_anew()
        self._written.has_calls_in_text = has_calls_in_text

    def text(self, piece: str) -> None:
        """Take a piece of the answer's text. Tool calls in it are shown by their size only."""
        written, shown = self._written, piece
        if written.has_calls_in_text and not written.is_silent and (mark := _CALL_MARK.search(piece)):
            written.is_silent, shown = True, piece[: mark.start()]
        elif written.is_silent:
            shown = ""
        if shown:
            self._add("text", shown)
        if len(piece) > len(shown):
            self.tool_call(0, "", len(piece) - len(shown))

    def thinking(self, piece: str) -> None:
        """Take a piece of the model's reasoning."""
        if self._shows.thinking:
            self._add("thinking", piece)

    def tool_call(self, index: int, name: str, characters: int) -> None:
        """Take a piece of a tool call: its place in the answer, the tool's name or none, characters of arguments."""
        call = self._written.calls.setdefault(index, _Call())
        call.tool = call.tool or (name if name in self._shows.tools else "")
        call.characters += characters
        call.is_new = True
        self._note()

    def _begin_anew(self) -> _Written:
        secrets = self._shows.secrets
        return _Written({"thinking": _Text(HeldText(secrets)), "text": _Text(HeldText(secrets))})

    def _add(self, kind: DeltaKind, piece: str) -> None:
        text = self._written.texts[kind]
        text.shown += text.held.add(piece)
        if len(text.shown) >= FLUSH_CHARACTERS:
            self._full.set()
        self._note()

    def _note(self) -> None:
        self.has_shown = True
        self._news.set()

    async def _publish_all(self) -> None:
        while not self._ends:
            await self._news.wait()
            self._news.clear()
            if not self._ends:
                self._full.clear()
            pause = min(FLUSH_SECONDS * max(1.0, self._running / MANY_STREAMS), SLOWEST_FLUSH_SECONDS)
            if not await self._publish():
                self._news.set()
                pause = RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._full.wait()
        await self._publish()

    async def _publish(self) -> bool:
        """Publish what is not yet; False if that failed, and is to be tried again."""
        self._unpublished += self._take()
        try:
            if self._unpublished:
                await self._live.publish(self._unpublished)
        except Exception as error:  # noqa: BLE001 - whatever the database says, the call goes on
            if not self._is_failing:
                logger.warning("the pieces of an answer cannot be shown at the moment: %s", type(error).__name__)
            self._is_failing = True
            return False
        self._unpublished.clear()
        self._is_failing = False
        return True

    def _take(self) -> list[Delta]:
        taken: list[Delta] = []
        for kind, text in self._written.texts.items():
            offset, shown = text.take()
            if shown:
                taken.append(self._delta(kind, offset, text=shown))
        for index, call in self._written.calls.items():
            if call.is_new:
                call.is_new = False
                taken.append(self._delta("tool_call", index, tool=call.tool, characters=call.characters))
        return taken

    def _delta(self, kind: DeltaKind, offset: int, text: str = "", tool: str = "", characters: int = 0) -> Delta:
        shows, n = self._shows, self._n
        self._n += 1
        return Delta(
            session=shows.session,
            turn=shows.turn,
            step=shows.step,
            attempt=shows.attempt,
            n=n,
            kind=kind,
            offset=offset,
            text=text,
            tool=tool,
            characters=characters,
        )
