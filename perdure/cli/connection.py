"""The connection of a verb: client and store, opened and closed, and the line for each error that they announce."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import temporalio.client

from perdure.cli.errors import CliError, ExitCode, UnreachableError
from perdure.client import Client, encryption
from perdure.client.connect import connect as connect_to_temporal
from perdure.client.errors import (
    ClientError,
    EventsGoneError,
    KeysMismatchError,
    NoWorkerError,
    RequestRefusedError,
    ServerUnreachableError,
    SessionIdleError,
    StoreMismatchError,
    TemporalConfigError,
    UnknownAgentError,
    UnknownApprovalError,
    UnknownArtifactError,
    UnknownBlockError,
    UnknownScheduleError,
    UnknownSessionError,
    UnknownWebhookError,
)
from perdure.client.views import Sources, Views
from perdure.contracts.errors import KeyringError
from perdure.local_files import find
from perdure.settings import Settings, SettingsError, is_set, load_settings, temporal_file
from perdure.store import Store
from perdure.store.errors import NotFoundError, SessionErasedError, StoreConfigError, StoreError, StoreUnavailableError

Result = TypeVar("Result")


@contextlib.asynccontextmanager
async def connect(*, store: bool = True) -> AsyncIterator[Client]:
    """A client whose server answers, and its store too unless the verb does not need it.

    Raises:
        ClientError: The server does not answer.
        StoreError: The store does not answer.
    """
    settings = load_settings()
    async with await Client.connect(settings) as client:
        if store:
            _check_file(settings)
            await client.store()
        yield client


def with_client(call: Callable[[Client], Awaitable[Result]], *, store: bool = True) -> Result:
    """Run a verb that needs a client to its end; its store is opened too unless the verb does not need it."""

    async def main() -> Result:
        async with connect(store=store) as client:
            return await call(client)

    return asyncio.run(main())


def with_store(call: Callable[[Store], Awaitable[Result]]) -> Result:
    """Run a verb that needs the store alone to its end."""

    async def main() -> Result:
        async with open_store() as store:
            return await call(store)

    return asyncio.run(main())


def views_of(store: Store, client: Client | None = None) -> Views:
    """Views of this store's turns and sessions; without a client the first question to the server reaches it."""
    reached = [] if client is None else [client.temporal]

    async def reach() -> temporalio.client.Client:
        if not reached:
            reached.append(await connect_to_temporal())
        return reached[0]

    async def opened() -> Store:
        return store

    settings = load_settings() if client is None else client.settings
    return Views(Sources(store=opened, temporal=reach, queue=settings.task_queue))


def with_views(call: Callable[[Views], Awaitable[Result]]) -> Result:
    """Run a verb that shows turns or sessions to its end; it needs the store, and no server unless it asks one."""

    async def main() -> Result:
        async with open_store() as store:
            return await call(views_of(store))

    return asyncio.run(main())


def ui_page(client: Client, session: str) -> str | None:
    """The session's page in the Temporal UI, if the UI's address is known: by PERDURE_UI_URL, or of ``perdure dev``."""
    file = temporal_file()
    address = client.settings.ui_url or (file.addresses.ui_url if file is not None else None)
    return f"{address.rstrip('/')}/namespaces/{client.temporal.namespace}/workflows/{session}" if address else None


@contextlib.asynccontextmanager
async def open_store(settings: Settings | None = None) -> AsyncIterator[Store]:
    """The store alone, for verbs that need no server; ``settings`` None reads ``PERDURE_*``.

    Raises:
        StoreError: The store does not answer.
    """
    settings = settings or load_settings()
    _check_file(settings)
    store = await encryption.open_store(settings)
    try:
        yield store
    finally:
        await store.close()


def _check_file(settings: Settings) -> None:
    """Opening would make an empty store here, while the workers write to theirs somewhere else."""
    path = settings.store_path
    if path is not None and not path.exists():
        source = "from PERDURE_STORE_URL" if is_set("store_url") else "the default of this folder"
        raise UnreachableError(
            f"there is no transcript store at {path} ({source}); run 'perdure dev' in this folder, "
            "or set PERDURE_STORE_URL to the store of your workers"
        )


_UNREACHABLE = (ServerUnreachableError, NoWorkerError)
_USAGE = (
    EventsGoneError,
    UnknownSessionError,
    UnknownAgentError,
    UnknownApprovalError,
    UnknownArtifactError,
    UnknownBlockError,
    UnknownScheduleError,
    UnknownWebhookError,
    RequestRefusedError,
    SessionIdleError,
    SettingsError,
    StoreConfigError,
    StoreMismatchError,
    KeyringError,
    KeysMismatchError,
    TemporalConfigError,
)


def describe(error: Exception) -> CliError | None:
    """The error as the command line shows it; None if it is not one that is expected."""
    if isinstance(error, CliError):
        return error
    if isinstance(error, SessionErasedError):
        return CliError(str(error), ExitCode.USAGE)
    if isinstance(error, NotFoundError):
        return CliError(f"{error}; 'perdure list' names the sessions there are", ExitCode.USAGE)
    if isinstance(error, _USAGE):
        return CliError(str(error), ExitCode.USAGE)
    if isinstance(error, _UNREACHABLE):
        return CliError(str(error), ExitCode.UNREACHABLE)
    if isinstance(error, StoreUnavailableError) and error.fix:
        return CliError(f"the transcript store: {error}", ExitCode.UNREACHABLE)
    if isinstance(error, StoreError):
        hint, dev = "see PERDURE_STORE_URL; running turns wait for it, as 'perdure doctor' says", find()
        if dev is not None and not is_set("store_url"):
            hint = f"its address comes from {dev.path}, which holds no password; set PERDURE_STORE_URL"
        return CliError(f"the transcript store: {error}; {hint}", ExitCode.UNREACHABLE)
    if isinstance(error, ClientError):
        return CliError(str(error), ExitCode.ERROR)
    return None
