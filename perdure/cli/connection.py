"""What every verb that talks to a cluster shares: one connection, the store where it is, and the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

from perdure.cli.errors import UnreachableError
from perdure.client import Client
from perdure.settings import Settings, is_set, load_settings, temporal_file
from perdure.store import Store

Result = TypeVar("Result")


def run(main: Coroutine[None, None, Result]) -> Result:
    """Run a verb's coroutine to its end."""
    return asyncio.run(main)


@contextlib.asynccontextmanager
async def connected(*, store: bool = True) -> AsyncIterator[Client]:
    """A client whose server answers, and its store too unless the verb does not need it.

    Raises:
        UnreachableError: The store's file is not there.
        ClientError: The server does not answer.
        StoreError: The store does not answer.
    """
    settings = load_settings()
    async with await Client.connect(settings) as client:
        if store:
            _check_file(settings)
            await client.store()
        yield client


def ui_page(client: Client, session: str) -> str | None:
    """The session's page in the Temporal UI, if the UI's address is known: by PERDURE_UI_URL, or of ``perdure dev``."""
    file = temporal_file()
    address = client.settings.ui_url or (file.addresses.ui_url if file is not None else None)
    return f"{address.rstrip('/')}/namespaces/{client.temporal.namespace}/workflows/{session}" if address else None


@contextlib.asynccontextmanager
async def opened_store(settings: Settings | None = None) -> AsyncIterator[Store]:
    """The store alone, for verbs that need no server; ``settings`` None reads ``PERDURE_*``.

    Raises:
        UnreachableError: The store's file is not there.
        StoreError: The store does not answer.
    """
    settings = settings or load_settings()
    _check_file(settings)
    store = await Store.open(settings.store_url)
    try:
        yield store
    finally:
        await store.close()


def _check_file(settings: Settings) -> None:
    """Opening would make an empty store here, while the workers write to theirs somewhere else."""
    path = settings.store_path
    if path is not None and not path.exists():
        source = "from PERDURE_STORE_URL" if is_set("store_url") else "the default of this folder"
        msg = (
            f"there is no transcript store at {path} ({source}); run 'perdure dev' in this folder, "
            "or set PERDURE_STORE_URL to the store of your workers"
        )
        raise UnreachableError(msg)
