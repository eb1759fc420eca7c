"""How every process of ours reaches Temporal: one address resolution and one data converter, for both ends."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from datetime import timedelta

import temporalio.client
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.errors import ServerRefusedError, ServerUnreachableError

CONNECT_TIMEOUT = timedelta(seconds=5)
"""How long a first connection may take before the server counts as unreachable."""


class CompactPayloadConverter(PydanticPayloadConverter):
    """JSON by pydantic, without fields that were never set: they are their defaults on the other end too."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


DATA_CONVERTER = dataclasses.replace(DataConverter.default, payload_converter_class=CompactPayloadConverter)
"""The one data converter of workers, clients and replay."""


@functools.cache
def _quiet_runtime() -> Runtime:
    """The SDK prints warnings of its retries to the terminal; what fails for good is raised anyway."""
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(telemetry=TelemetryConfig(logging=quiet))


async def connect(*, runtime: Runtime | None = None) -> temporalio.client.Client:
    """Connect by Temporal's own environment configuration (``TEMPORAL_ADDRESS``, ``TEMPORAL_PROFILE``, …).

    Raises:
        ServerUnreachableError: Nothing answers at the address.
    """
    config = ClientConfig.load_client_connect_config()
    runtime = runtime or _quiet_runtime()
    address = config.setdefault("target_host", "localhost:7233")
    try:
        return await temporalio.client.Client.connect(
            **config, data_converter=DATA_CONVERTER, runtime=runtime, connect_timeout=CONNECT_TIMEOUT
        )
    except (RuntimeError, RPCError) as error:
        msg = (
            f"no Temporal server answers at {address}; start one with 'perdure dev', "
            "or set TEMPORAL_ADDRESS to the address of yours"
        )
        raise ServerUnreachableError(msg) from error


UNREACHABLE = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
"""What a call fails with when the server is gone or does not answer."""


@contextlib.contextmanager
def rpc_errors() -> Iterator[None]:
    """Turn what a call to the server fails with into the client's own errors."""
    try:
        yield
    except RPCError as error:
        if error.status in UNREACHABLE:
            msg = f"the Temporal server does not answer ({error.message}); check TEMPORAL_ADDRESS and try again"
            raise ServerUnreachableError(msg) from error
        msg = f"the Temporal server refused the call ({error.status.name}): {error.message}"
        raise ServerRefusedError(msg) from error
