"""All of perdure for a test of agents: a real Temporal server, a worker, a store and a scripted model.

The worker's modules are imported only when an environment is entered: they need the extra ``worker``.
"""

import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import temporalio.client

from perdure.agents.agent import Agent
from perdure.cli.errors import CliError
from perdure.cli.server import EmbeddedServer, ServerOptions, find_binary
from perdure.client import Client, NoWorkerError, PerdureError
from perdure.client.connect import DATA_CONVERTER
from perdure.libraries import check_sdk
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import Store
from perdure.testing.provider import AUTO, ScriptedProvider
from perdure.testing.script import Answers

SPOKEN = ("anthropic", "openai")
"""Providers whose formats the scripted model speaks."""

READY_SECONDS, POLL_SECONDS = 60.0, 0.02
"""Longest wait of an environment until the server knows of its worker, and the pause between two looks, in seconds."""

_FAST = {"history.timerProcessorMaxTimeShift": '"1ms"'}
"""Lets waits before retries be short; by default the server rounds them up."""

_KEYS = {"OPENAI_API_KEY": "sk-scripted-0123456789", "ANTHROPIC_API_KEY": "sk-ant-scripted-0123456789"}

_open: list[str] = []
"""The environment that is open in this process; a second one would take its model's address from it."""


class EnvironmentUnavailableError(PerdureError):
    """An environment for tests cannot be made here; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment of a test.

    Attributes:
        client: A client of this server and store.
        provider: The scripted model; ``provider.requests`` holds the requests it got.
        store: The transcript store, which the client reads too.
        address: Where the Temporal server listens.
        ui_url: Address of its UI; None unless ``ui=True``.
        variables: Environment variables with which another process, such as ``perdure``, finds server and store.
    """

    client: Client
    provider: ScriptedProvider
    store: Store
    address: str
    ui_url: str | None
    variables: Mapping[str, str]


@asynccontextmanager
async def environment(
    agents: Iterable[Agent],
    script: Answers | None = None,
    *,
    models: Mapping[str, Answers] | None = None,
    plays: str | None = AUTO,
    ui: bool = False,
    address: str | None = None,
) -> AsyncIterator[Environment]:
    """A Temporal server, a worker in this process, an SQLite store and a scripted model, for one test.

    While it is open, models of OpenAI and Anthropic are the script's; no key is needed and none of yours is used.

    Args:
        agents: What the worker has, with their delegates.
        script: The answers of every model: a list of replies, a script, or a function from a request to a reply.
        models: Scripts of single models, by the name after the provider's prefix.
        plays: The provider by whose rules requests are refused, as for :class:`ScriptedProvider`.
        ui: Whether Temporal's UI is started too.
        address: A server that runs already, in place of one of the environment's own; ``ui`` is then its own matter.

    Raises:
        EnvironmentUnavailableError: A package is missing, a model cannot be scripted, or another environment is open.
    """
    if _open:
        msg = "another environment is open in this process; leave it first, or give it all the agents"
        raise EnvironmentUnavailableError(msg)
    _open.append("open")
    try:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-test-")))
            provider = await stack.enter_async_context(ScriptedProvider(script, models=models, plays=plays))
            stack.enter_context(_variables(_variables_of(provider)))
            ui_url = None
            if address is None:
                server = await stack.enter_async_context(make_server(folder, ui=ui))
                address, ui_url = server.address, server.ui_url
            settings = Settings(
                store_url=f"sqlite:///{folder / 'store.db'}",
                task_queue=f"test-{uuid.uuid4().hex[:8]}",
                metrics_address="",
                recording_mode="off",
            )
            store = await stack.enter_async_context(await Store.open(settings.store_url, upgrade=True))
            temporal = await temporalio.client.Client.connect(address, data_converter=DATA_CONVERTER)
            await stack.enter_async_context(_worker(temporal, settings, store, agents))
            client = await stack.enter_async_context(Client(temporal, settings))
            await _wait_for_worker(client)
            yield Environment(
                client=client,
                provider=provider,
                store=store,
                address=address,
                ui_url=ui_url,
                variables={
                    "TEMPORAL_ADDRESS": address,
                    "TEMPORAL_CONFIG_FILE": os.devnull,
                    "PERDURE_STORE_URL": settings.store_url,
                    "PERDURE_TASK_QUEUE": settings.task_queue,
                },
            )
    finally:
        _open.clear()


def _variables_of(provider: ScriptedProvider) -> dict[str, str]:
    """Variables that lead litellm to the scripted model, also past a proxy."""
    direct = ",".join(name for name in (os.environ.get("NO_PROXY", ""), "127.0.0.1") if name)
    return {
        **_KEYS,
        "OPENAI_BASE_URL": provider.url,
        "OPENAI_API_BASE": provider.url,
        "ANTHROPIC_API_BASE": provider.anthropic_url,
        "ANTHROPIC_BASE_URL": provider.anthropic_url,
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and set them back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def make_server(folder: Path, *, ui: bool = False) -> EmbeddedServer:
    """A Temporal server for tests, not started: in memory, on free ports, with timers as short as they are asked for.

    Raises:
        EnvironmentUnavailableError: The server is not installed.
    """
    try:
        find_binary()
    except CliError as error:
        raise EnvironmentUnavailableError(error.message) from None
    ui_port = find_free_port() if ui else None
    return EmbeddedServer(
        ServerOptions(port=find_free_port(), ui_port=ui_port, log=folder / "server.log", dynamic_config=_FAST)
    )


@asynccontextmanager
async def _worker(
    temporal: temporalio.client.Client, settings: Settings, store: Store, agents: Iterable[Agent]
) -> AsyncIterator[None]:
    """A worker in this process, taken down in order."""
    check_sdk()
    try:
        from perdure.activities.secrets import secret_values  # noqa: PLC0415 - only here is the extra ``worker`` needed
        from perdure.activities.telling.metrics import Metrics  # noqa: PLC0415
        from perdure.lanes.bodies import Bodies, loops_of_process  # noqa: PLC0415
        from perdure.worker.agents import check_needs, with_delegates  # noqa: PLC0415
        from perdure.worker.app import build_pinned_worker, build_workers, open_parts  # noqa: PLC0415
        from perdure.worker.telemetry import registry  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = f"a worker needs the package {error.name}; install it with: pip install 'perdure[worker]'"
        raise EnvironmentUnavailableError(msg) from error

    loaded = with_delegates(agents)
    _check_models(loaded.agents.values())
    check_needs(loaded.agents.values(), settings.task_queue, os.environ)
    await store.register_agents([agent.definition for agent in loaded.agents.values()])
    async with AsyncExitStack() as stack:
        secrets = secret_values(loaded.agents.values(), os.environ)
        bodies = Bodies(settings.tool_threads, loops=loops_of_process())
        made = open_parts(settings, store, loaded, Metrics(registry()), secrets=secrets, bodies=bodies)
        parts = await stack.enter_async_context(made)
        pinned = build_pinned_worker(temporal, settings, parts)
        if pinned is not None:
            await stack.enter_async_context(pinned)
        for worker in build_workers(temporal, settings, parts):
            await stack.enter_async_context(worker)
        yield


async def _wait_for_worker(client: Client) -> None:
    """Wait until the server knows of the worker, which has begun to poll a moment ago."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                with contextlib.suppress(NoWorkerError):
                    return await client.check_worker()
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        msg = f"the worker has not polled within {READY_SECONDS:.0f} s; look at what it has logged"
        raise EnvironmentUnavailableError(msg) from None


def _check_models(agents: Iterable[Agent]) -> None:
    """Refuse a model that would be asked for real."""
    for agent in agents:
        used = (agent.model, agent.compaction.model, *(fallback.model for fallback in agent.fallback_models))
        strange = [model for model in used if model is not None and model.partition("/")[0] not in SPOKEN]
        if strange and "api_base" not in agent.generate_params:
            msg = (
                f"agent {agent.name!r} uses the model {strange[0]!r}, and the scripted one stands in for those of "
                "OpenAI and Anthropic only; give the environment agent.clone(model='openai/scripted')"
            )
            raise EnvironmentUnavailableError(msg)
