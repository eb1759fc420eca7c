"""Tries of requests without an Idempotency-Key: clients send them again by themselves, and mean the same job.

OpenAI's clients count their tries in a header. A retry joins the job that an earlier try began, once the connection of
that one has ended; so the gateway keeps, for as long as an answer takes, that it holds the connection.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import uuid
from datetime import timedelta

from starlette.requests import Request

from perdure.client import Client
from perdure.contracts.errors import PerdureError
from perdure.contracts.values import replace
from perdure.gateway.callers import Caller
from perdure.store.errors import StoreError
from perdure.store.tries import Try

logger = logging.getLogger(__name__)

COUNTER = "x-stainless-retry-count"
"""The header in which OpenAI's clients, and others made with the same generator, count their tries before this one."""

BEAT_SECONDS = 2.0
"""While it holds connections, a gateway says so often that it runs."""

WAIT_SECONDS = 12.0
"""Longest wait of a retry for the end of a connection: a gateway that crashed is given up before."""


class Tries:
    """The tries whose connections one gateway holds.

    Args:
        client: The gateway's client.
        within: Time after the end of a connection in which a try that is not counted joins its job; zero is never.
    """

    def __init__(self, client: Client, within: timedelta) -> None:
        self._client = client
        self._within = within
        self._gateway = uuid.uuid4().hex
        self._held: set[str] = set()
        self._ended: dict[str, bool] = {}
        self._noted_at = -BEAT_SECONDS
        self._beating: asyncio.Task[None] | None = None

    async def enter(self, caller: Caller, request: Request, action: str, body: str) -> tuple[str, Try | None]:
        """The key of a request that came without one, and its try if it is the first; an ended one is joined.

        One that is counted as the first may be a retry of a layer above the client, such as LangChain's for JavaScript:
        it joins what a gateway that stopped has told to come again, and nothing else.
        """
        counted = request.headers.get(COUNTER, "")
        number = int(counted) if counted.isascii() and counted.isdigit() and len(counted) < 4 else None
        said = hashlib.sha256(json.dumps([caller.tenant, caller.name, action, body]).encode()).hexdigest()
        one = Try(said=said, number=number, holder=self._gateway, within=self._within)
        if time.monotonic() - self._noted_at > BEAT_SECONDS:
            await self._note()
        key = await self._join(one if number != 0 else replace(one, number=None, within=timedelta()))
        first = None if key else one
        key = key or f"{uuid.uuid4().hex} of ours"  # no caller's key has a space
        self._held.add(key)
        request.state.held = key
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat(), name="perdure-tries")
        return key, first

    async def _join(self, one: Try) -> str:
        """The key of the job that a try joins; empty if it begins one.

        The end of the connection before may be on its way, or known only by the silence of its gateway.
        """
        store, until, pause = await self._client.store(), time.monotonic() + WAIT_SECONDS, 0.05
        while True:
            joined = await store.join_try(one)
            if joined is None or joined.key or time.monotonic() > until:
                return "" if joined is None else joined.key
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def refuse(self, key: str) -> None:
        """Note that nothing came of a try: its retry begins a job."""
        store = await self._client.store()
        await store.note_refused(key)

    async def leave(self, key: str, *, told: bool) -> None:
        """Note that the connection of a try has ended; ``told`` is whether its client was told to come again."""
        self._held.discard(key)
        self._ended[key] = told
        await self._note()

    async def close(self) -> None:
        """Leave what is still held, as the gateway ends."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._ended |= dict.fromkeys(self._held, True)
        if self._ended:
            await self._note()

    async def _beat(self) -> None:
        while self._held or self._ended:
            await asyncio.sleep(BEAT_SECONDS)
            await self._note()

    async def _note(self) -> None:
        """Note what has ended, or keep it for the next time if the store does not take it."""
        ended = dict(self._ended)
        try:
            store = await self._client.store()
            await store.note_alive(self._gateway, ended)
        except (PerdureError, StoreError) as error:
            logger.warning("which requests' connections have ended is noted later: %s", error)
            return
        self._noted_at = time.monotonic()
        for key in ended:
            with contextlib.suppress(KeyError):
                del self._ended[key]
