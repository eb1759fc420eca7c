"""How every process of ours reaches Temporal: one address resolution and one data converter, for both ends."""

import asyncio
import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TypedDict, Unpack

import temporalio.client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, TLSConfig

from perdure.client.errors import ServerUnreachableError, TemporalConfigError
from perdure.client.failures import PlainFailureConverter
from perdure.client.server_errors import error_of_call, error_of_connection
from perdure.local_files import DevFile
from perdure.settings import temporal_file

DEFAULT_ADDRESS = "localhost:7233"
"""Where Temporal's own tools look for a server."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""How long a first connection may take before the server counts as unreachable."""


class ConnectOptions(TypedDict, total=False):
    """What :meth:`perdure.client.Client.connect` may be told; each option replaces its own environment variable."""

    address: str
    namespace: str
    tls: bool | TLSConfig
    api_key: str
    store_url: str
    task_queue: str


_COMPACT = PydanticPayloadConverter(ToJsonOptions(exclude_unset=True))


class CompactPayloadConverter(CompositePayloadConverter):
    """JSON by pydantic, without fields that were never set: they are their defaults on the other end too.

    The SDK makes a converter for each activation; they share one set of type adapters.
    """

    def __init__(self) -> None:
        super().__init__(*_COMPACT.converters.values())


DATA_CONVERTER = dataclasses.replace(
    DataConverter.default,
    payload_converter_class=CompactPayloadConverter,
    failure_converter_class=PlainFailureConverter,
)
"""The one data converter of workers, clients and replay."""


@functools.cache
def _quiet_runtime() -> Runtime:
    """The SDK prints warnings of its retries to the terminal; what fails for good is raised anyway."""
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(telemetry=TelemetryConfig(logging=quiet))


def load_config(**options: Unpack[ConnectOptions]) -> ClientConnectConfig:
    """Where Temporal's own environment configuration leads (``TEMPORAL_ADDRESS``, ``TEMPORAL_PROFILE``, …).

    Each option replaces what the environment says; ``tls=True`` keeps the certificates that it names. With no such
    variable and no address among the options, the address file of ``perdure dev`` in this folder leads.

    Raises:
        TemporalConfigError: It cannot be read.
        ServerUnreachableError: The address file was left by a ``perdure dev`` that was killed.
    """
    found = None if "address" in options else temporal_file()
    config = _of_environment() if found is None else _of_file(found)
    if "address" in options:
        config["target_host"] = options["address"]
    if "namespace" in options:
        config["namespace"] = options["namespace"]
    if "api_key" in options:
        config["api_key"] = options["api_key"]
    if "tls" in options and not (options["tls"] is True and config.get("tls")):
        config["tls"] = options["tls"]
    return config


def _of_environment() -> ClientConnectConfig:
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        # The first line alone: those after it quote the file, which holds keys.
        msg = f"Temporal's configuration cannot be read: {str(error).splitlines()[0]}; check the TEMPORAL_* variables"
        raise TemporalConfigError(msg) from None
    config.setdefault("target_host", DEFAULT_ADDRESS)
    return config


def _of_file(found: DevFile) -> ClientConnectConfig:
    if not found.is_live:
        msg = (
            f"the 'perdure dev' of {found.path.parent.parent} (process {found.addresses.pid}) was killed; start it "
            f"again there, set TEMPORAL_ADDRESS to another server, or remove {found.path}"
        )
        raise ServerUnreachableError(msg)
    return ClientConnectConfig(target_host=found.addresses.temporal_address, namespace=found.addresses.namespace)


def address_source() -> str:
    """Where the address of the server comes from, for people."""
    found = temporal_file()
    if found is not None:
        return f"from {found.path}"
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "from TEMPORAL_ADDRESS"
    if "target_host" in ClientConfig.load_client_connect_config():
        return "from the configuration file of Temporal"
    return "the default, as no TEMPORAL_ADDRESS is set and no 'perdure dev' runs in this folder"


async def connect(*, runtime: Runtime | None = None, **options: Unpack[ConnectOptions]) -> temporalio.client.Client:
    """Connect by Temporal's own environment configuration, or by what is named here.

    Raises:
        TemporalConfigError: The configuration cannot be read, or the address is none.
        ServerUnreachableError: Nothing answers at the address, or no Temporal server that this client can talk to.
        ServerRefusedError: The server does not accept the credentials.
    """
    config = load_config(**options)
    runtime = runtime or _quiet_runtime()
    address = config.get("target_host", DEFAULT_ADDRESS)
    try:
        return await temporalio.client.Client.connect(
            **config, data_converter=DATA_CONVERTER, runtime=runtime, connect_timeout=CONNECT_TIMEOUT
        )
    except ValueError as error:
        name = "address" if "address" in options else "TEMPORAL_ADDRESS"
        msg = f"{name}: {address!r} is no HOST:PORT ({error})"
        raise TemporalConfigError(msg) from error
    except OSError as error:
        msg = f"a file of Temporal's configuration cannot be read: {error}; check the TEMPORAL_* variables"
        raise TemporalConfigError(msg) from error
    except RPCError as error:
        raise error_of_call(error) from error
    except RuntimeError as error:
        with_tls = bool(config.get("tls", config.get("api_key")))
        told = await asyncio.to_thread(error_of_connection, error, address, with_tls=with_tls)
        source = "given by the caller" if "address" in options else address_source()
        raise type(told)(f"{told} (the address: {source})") from error


@contextlib.contextmanager
def rpc_errors() -> Iterator[None]:
    """Turn what a call to the server fails with into the client's own errors."""
    try:
        yield
    except RPCError as error:
        raise error_of_call(error) from error
