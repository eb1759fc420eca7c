"""PostgreSQL that takes what it is sent and says nothing: nobody waits for it for ever, and it may speak again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from perdure.store import Store, StoreUnavailableError
from perdure.store.postgresql import AnsweringConnection
from tests.house import WAIT_SECONDS

pytestmark = pytest.mark.deep


class Proxy:
    """Stands before the server; while it is silent it takes everything and passes nothing on."""

    def __init__(self, socket: Path) -> None:
        self.silent = False
        self._socket = socket
        self._passing: list[asyncio.Task[None]] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, both ways."""
        from_server, to_server = await asyncio.open_unix_connection(self._socket)
        for source, target in ((reader, to_server), (from_server, writer)):
            self._passing.append(asyncio.create_task(self._passed(source, target)))

    async def _passed(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    if not self.silent:
                        target.write(data)
        finally:
            target.close()
            with suppress(ConnectionError):
                await target.wait_closed()

    async def closed(self) -> None:
        """Wait until nothing passes any more."""
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)


@pytest.fixture
async def proxy(postgresql: Any) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy, and the store's address through it."""
    postgresql.ensure_postgres_running()
    address = make_url(postgresql.get_uri())
    proxy = Proxy(Path(str(address.query["host"])) / ".s.PGSQL.5432")
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        through = address.set(host="127.0.0.1", port=port, query={"connect_timeout": "2"})
        yield proxy, through.render_as_string(hide_password=False)
        await proxy.closed()


async def test_a_server_that_falls_silent_is_unavailable_until_it_speaks_again(
    proxy: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection that was open, and on new ones."""
    between, url = proxy
    async with asyncio.timeout(WAIT_SECONDS), await Store.open(url, upgrade=True) as store:
        before = await store.agents()  # other tests of this process write into the same database
        between.silent = True
        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(AnsweringConnection, "patience", timedelta(seconds=0.2))
                with pytest.raises(StoreUnavailableError, match="timeout expired"):
                    await store.agents()
            with pytest.raises(StoreUnavailableError, match="timeout expired"):
                await store.open_turns()
            between.silent = False
            assert await store.agents() == before
        finally:
            await between.closed()  # or else a store that waits for ever could not be closed
