"""How every process of ours reaches Temporal: one address resolution and one data converter, for both ends."""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from datetime import timedelta

import temporalio.client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import CompositePayloadConverter, DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError

from perdure.client.errors import TemporalConfigError
from perdure.client.failures import PlainFailureConverter
from perdure.client.server_errors import error_of_call, error_of_connection

DEFAULT_ADDRESS = "localhost:7233"
"""Where Temporal's own tools look for a server."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""How long a first connection may take before the server counts as unreachable."""


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


def load_config() -> ClientConnectConfig:
    """Where Temporal's own environment configuration leads (``TEMPORAL_ADDRESS``, ``TEMPORAL_PROFILE``, …).

    Raises:
        TemporalConfigError: It cannot be read.
    """
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        # The first line alone: those after it quote the file, which holds keys.
        msg = f"Temporal's configuration cannot be read: {str(error).splitlines()[0]}; check the TEMPORAL_* variables"
        raise TemporalConfigError(msg) from None
    config.setdefault("target_host", DEFAULT_ADDRESS)
    return config


async def connect(*, runtime: Runtime | None = None) -> temporalio.client.Client:
    """Connect by Temporal's own environment configuration.

    Raises:
        TemporalConfigError: The configuration cannot be read, or the address is none.
        ServerUnreachableError: Nothing answers at the address, or no Temporal server that this client can talk to.
        ServerRefusedError: The server does not accept the credentials.
    """
    config = load_config()
    runtime = runtime or _quiet_runtime()
    address = config.get("target_host", DEFAULT_ADDRESS)
    try:
        return await temporalio.client.Client.connect(
            **config, data_converter=DATA_CONVERTER, runtime=runtime, connect_timeout=CONNECT_TIMEOUT
        )
    except ValueError as error:
        msg = f"TEMPORAL_ADDRESS: {address!r} is no HOST:PORT ({error})"
        raise TemporalConfigError(msg) from error
    except OSError as error:
        msg = f"a file of Temporal's configuration cannot be read: {error}; check the TEMPORAL_* variables"
        raise TemporalConfigError(msg) from error
    except RPCError as error:
        raise error_of_call(error) from error
    except RuntimeError as error:
        with_tls = bool(config.get("tls", config.get("api_key")))
        raise await asyncio.to_thread(error_of_connection, error, address, with_tls=with_tls) from error


@contextlib.contextmanager
def rpc_errors() -> Iterator[None]:
    """Turn what a call to the server fails with into the client's own errors."""
    try:
        yield
    except RPCError as error:
        raise error_of_call(error) from error
