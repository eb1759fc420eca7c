"""Connections of every process to Temporal: one address resolution, one data converter, errors that name a fix.

Long, because each way in which a connection fails has its own cause, and its own sentence with the fix.
"""

import asyncio
import contextlib
import dataclasses
import functools
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Literal, TypedDict, TypeVar, Unpack

import temporalio.client
from pydantic_core import SchemaSerializer
from pydantic_core.core_schema import any_schema
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
    PayloadConverter,
)
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.exceptions import ApplicationError
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from perdure.client.encryption import EncryptionCodec, load_keyring
from perdure.client.errors import ClientError, ServerRefusedError, ServerUnreachableError, TemporalConfigError
from perdure.contracts.errors import DecryptionError, UnknownKeyError
from perdure.contracts.values import PublicValue
from perdure.local_files import DevFile
from perdure.security.keyring import Keyring
from perdure.settings import load_settings, temporal_file

Result = TypeVar("Result")

_AWAY = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
"""Status of a call when the server is gone or does not answer."""

_BROKEN_CONNECTION = re.compile(r"transport error|h2 protocol|connection|broken pipe", re.IGNORECASE)
"""Texts of the SDK, with the status UNKNOWN, when the server goes while a call is open for some seconds."""

_CREDENTIALS = "set TEMPORAL_API_KEY, or the api_key of the profile, to a key that is valid now"
_NAMESPACE = "set TEMPORAL_NAMESPACE to one that is there"
_NOT_TEMPORAL = "set TEMPORAL_ADDRESS to the gRPC port of the server, usually 7233, not to that of its UI"

_STATUS = re.compile(r'Status { code: ([A-Za-z]+)(?:, message: "((?:[^"\\]|\\.)*)")?')
"""Status of a call within the SDK's text of a failed connection."""

_HTTP_STATUS = re.compile(r"response with status: (\d{3})")
"""Status of an HTTP response other than gRPC within the SDK's message."""

_HTTP_AWAY = frozenset({"502", "503", "504"})
"""Statuses of a proxy while the server behind it is away."""

_BEHIND = "look at the server behind it, and wait until it is back"

_HTTP_REFUSALS = {"401": RPCStatusCode.UNAUTHENTICATED, "403": RPCStatusCode.PERMISSION_DENIED}

_CERTIFICATES = {
    "InvalidCertificate(UnknownIssuer": (
        "its certificate is signed by an authority that is not trusted here",
        "set TEMPORAL_TLS_SERVER_CA_CERT_PATH to the certificate of that authority",
    ),
    "InvalidCertificate(NotValidForName": (
        "its certificate is for another name",
        "set TEMPORAL_ADDRESS to the name in it, or TEMPORAL_TLS_SERVER_NAME",
    ),
    "InvalidCertificate(Expired": ("its certificate has expired", "renew it on the server"),
    "InvalidCertificate(": ("its certificate cannot be used", "check it on the server"),
}
"""Texts of the TLS library about a server's certificate: the cause, and the fix."""

_CLIENT_CERTIFICATE = "set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH to a valid one"

PROBE_SECONDS = 2.0
"""Longest time for an address to say whether it speaks TLS."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""First bytes of every HTTP/2 connection: the magic words, and a frame of settings."""

_FRAME_BYTES, _SETTINGS = 9, 4
"""The length of a frame's head, and the type in its fourth byte that a server's first frame has."""

Speaks = Literal["nothing", "HTTP/2", "TLS", "TLS with certificates", "no word", "something else"]


def is_away(error: RPCError) -> bool:
    """Whether the call failed because the server is gone or does not answer; the same call may succeed later."""
    if error.status in _AWAY:
        return True
    return error.status is RPCStatusCode.UNKNOWN and _BROKEN_CONNECTION.search(error.message) is not None


def is_unknown_namespace(error: RPCError) -> bool:
    """Whether the server does not know the namespace; a NOT_FOUND of anything else does not count."""
    return _namespace_of(error) is not None


def is_missing(error: RPCError) -> bool:
    """Whether the server does not know the execution that the call is about."""
    return error.status is RPCStatusCode.NOT_FOUND and not is_unknown_namespace(error)


def error_of_call(error: RPCError) -> ClientError:
    """Error for the caller of a call that failed."""
    if is_away(error):
        msg = f"the Temporal server does not answer ({error.message}); check TEMPORAL_ADDRESS and try again"
        return ServerUnreachableError(msg)
    namespace = _namespace_of(error)
    if namespace is not None:
        create = f"create it with 'temporal operator namespace create --namespace {namespace}'"
        return ServerRefusedError(f"the Temporal server has no namespace {namespace}; {_NAMESPACE}, or {create}")
    return _refusal(error.status, error.message)


def error_of_connection(error: Exception, address: str, *, with_tls: bool) -> ClientError:
    """Error for the caller of a failed first connection; asks the address whether it speaks TLS if need be.

    The SDK raises one class for all of them and says in its text what happened.
    """
    text = str(error)
    about_tls = _tls_error(text, address)
    if about_tls is not None:
        return about_tls
    status = _STATUS.search(text)
    if status is not None:
        code, message = _status_named(status[1]), status[2] or ""
        if code not in {*_AWAY, RPCStatusCode.UNKNOWN, RPCStatusCode.INTERNAL} or _HTTP_STATUS.search(message):
            return _refusal(code, message)
        if code not in {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED} and "Timeout" not in message:
            told = _error_of_broken(address, with_tls=with_tls)
            if told is not None:
                return told
    msg = (
        f"no Temporal server answers at {address}; start one with 'perdure dev', "
        "or set TEMPORAL_ADDRESS to your server's HOST:PORT"
    )
    return ServerUnreachableError(msg)


def _refusal(status: RPCStatusCode, message: str) -> ClientError:
    said = " ".join(message.split())[:300]
    http = _HTTP_STATUS.search(said)
    if http is not None and http[1] in _HTTP_AWAY:
        return ServerUnreachableError(
            f"a proxy answers in place of the Temporal server, which is away (HTTP status {http[1]}); {_BEHIND}"
        )
    if http is not None and http[1] not in _HTTP_REFUSALS:
        return ServerUnreachableError(f"what answers is no Temporal server (HTTP status {http[1]}); {_NOT_TEMPORAL}")
    if http is not None:
        status, said = _HTTP_REFUSALS[http[1]], f"HTTP status {http[1]}"
    if status is RPCStatusCode.UNAUTHENTICATED:
        return ServerRefusedError(f"the Temporal server did not accept the credentials (401, {said}); {_CREDENTIALS}")
    if status is RPCStatusCode.PERMISSION_DENIED:
        fix = f"ask for a role that may use the namespace, {_NAMESPACE}, or TEMPORAL_API_KEY to another key"
        return ServerRefusedError(f"the Temporal server forbids this to the credentials in use (403, {said}); {fix}")
    return ServerRefusedError(f"the Temporal server refused the call ({status.name}): {said}")


def _tls_error(text: str, address: str) -> ClientError | None:
    """The error of a TLS handshake that the other end, or its certificate, did not pass."""
    if "InvalidContentType" in text:
        fix = "set TEMPORAL_TLS=false, or TEMPORAL_ADDRESS to a port that does; an API key alone turns TLS on"
        return ServerUnreachableError(f"the server at {address} does not speak TLS, and this client does; {fix}")
    for said, (cause, fix) in _CERTIFICATES.items():
        if said in text:
            return ServerUnreachableError(f"the server at {address} is not trusted: {cause}; {fix}")
    alert = re.search(r"AlertReceived\((\w+)\)", text)
    if alert is None:
        return None
    if "Certificate" in alert[1]:
        return _certificate_wanted(address)
    msg = f"the server at {address} ended the TLS handshake ({alert[1]}); check the TEMPORAL_TLS variables"
    return ServerUnreachableError(msg)


def _error_of_broken(address: str, *, with_tls: bool) -> ClientError | None:
    """The error of a connection that was taken and then broke, by what the address speaks; None of a real server."""
    spoken = _probe(address)
    if spoken in {"HTTP/2", "nothing"} or (spoken == "TLS" and with_tls):
        return None
    if spoken == "no word":
        msg = f"what answers at {address} takes connections and says nothing, as a proxy does whose server is away"
        return ServerUnreachableError(f"{msg}; {_BEHIND}, or set TEMPORAL_ADDRESS to the gRPC port of another one")
    if spoken == "something else":
        return ServerUnreachableError(f"what answers at {address} is no Temporal server; {_NOT_TEMPORAL}")
    if with_tls:
        return _certificate_wanted(address)
    fix = "set TEMPORAL_TLS=true, or tls in the profile"
    return ServerUnreachableError(f"the server at {address} speaks TLS, and this client does not; {fix}")


def _certificate_wanted(address: str) -> ClientError:
    msg = f"the server at {address} did not accept the TLS certificate of this client, or wants one"
    return ServerUnreachableError(f"{msg}; {_CLIENT_CERTIFICATE}")


def _probe(address: str) -> Speaks:
    """Protocol of an address, by the beginning of a connection without TLS, and then of one that trusts everybody."""
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    head = b""
    try:
        with socket.create_connection(place, timeout=PROBE_SECONDS) as plain, contextlib.suppress(OSError):
            plain.sendall(_PREFACE)
            head = plain.recv(_FRAME_BYTES)
            if len(head) == _FRAME_BYTES and head[3] == _SETTINGS:
                return "HTTP/2"
        with socket.create_connection(place, timeout=PROBE_SECONDS) as plain:
            spoken = _probe_tls(plain, place[0])
            return "no word" if spoken == "something else" and not head else spoken
    except OSError:
        return "nothing"


def _probe_tls(plain: socket.socket, host: str) -> Speaks:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        secured = context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLError as error:
        return "TLS with certificates" if "CERTIFICATE" in str(error.reason) else "something else"
    except OSError:
        return "something else"
    with secured:
        try:  # with TLS 1.3 a server says, or shows by leaving, only now that it wants a certificate
            return "TLS" if secured.recv(1) else "TLS with certificates"
        except TimeoutError:
            return "TLS"
        except OSError:
            return "TLS with certificates"


def _namespace_of(error: RPCError) -> str | None:
    """The namespace that the server does not know, by the error's details."""
    unknown = NamespaceNotFoundFailure()
    if any(detail.Unpack(unknown) for detail in error.grpc_status.details):
        return unknown.namespace
    return None


def _status_named(name: str) -> RPCStatusCode:
    """The status of its name in the SDK's text, such as ``PermissionDenied``."""
    upper = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    return RPCStatusCode.__members__.get(upper, RPCStatusCode.UNKNOWN)


class PlainFailureConverter(DefaultFailureConverter):
    """As the SDK writes them; but of a failure that carries its reason, the sentence without a stack trace.

    Such a trace shows how the reason came through Temporal and perdure; in the UI it hides the sentence. What stands
    behind the failure, such as the exception of a tool, keeps its own.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception into a failure."""
        super().to_failure(exception, payload_converter, failure)
        if _has_reason(exception):
            failure.ClearField("stack_trace")


_ENCODED = "Encoded failure"
"""Text in place of an encoded message; Temporal's own word, which its UI knows."""


class EncodedFailureConverter(PlainFailureConverter):
    """The same, with message and stack trace moved to where the codec encrypts them, as the SDK's own does it.

    Also of causes: one that an activity without keys has written carries its message in plain text.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception into a failure."""
        super().to_failure(exception, payload_converter, failure)
        link: Failure | None = failure
        while link is not None:
            if link.message != _ENCODED or not link.HasField("encoded_attributes"):
                hidden = {"message": link.message, "stack_trace": link.stack_trace}
                link.encoded_attributes.CopyFrom(payload_converter.to_payloads([hidden])[0])
                link.message, link.stack_trace = _ENCODED, ""
            link = link.cause if link.HasField("cause") else None


def _has_reason(exception: BaseException) -> bool:
    """Whether its type is the reason code of its detail, an error's or a turn's result.

    The sandbox has classes of its own for details, so their attributes are looked at.
    """
    if not isinstance(exception, ApplicationError) or exception.type is None:
        return False
    codes = [getattr(detail, name, None) for detail in exception.details for name in ("code", "reason_code")]
    return exception.type in codes


DEFAULT_ADDRESS = "localhost:7233"
"""Address at which Temporal's own tools look for a server."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""Longest time for a first connection before the server counts as unreachable."""


class ConnectOptions(TypedDict, total=False):
    """Options of :meth:`perdure.client.Client.connect`; each replaces its own environment variable."""

    address: str
    namespace: str
    tls: bool | TLSConfig
    api_key: str
    store_url: str
    task_queue: str


_ANY_VALUE = SchemaSerializer(any_schema())


class CompactJsonConverter(PydanticJSONPlainPayloadConverter):
    """JSON by pydantic, without the fields that have their defaults: a reader of ours fills them in."""

    def to_payload(self, value: object) -> Payload:
        """Write a value."""
        data = _ANY_VALUE.to_json(value, exclude_defaults=not isinstance(value, PublicValue))
        return Payload(metadata={"encoding": self.encoding.encode()}, data=data)


_CONVERTERS = tuple(
    CompactJsonConverter() if isinstance(converter, JSONPlainPayloadConverter) else converter
    for converter in DefaultPayloadConverter.default_encoding_payload_converters
)


class CompactPayloadConverter(CompositePayloadConverter):
    """The SDK's converters with compact JSON. The SDK makes one for each activation; all share the type adapters."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)


DATA_CONVERTER = dataclasses.replace(
    DataConverter.default,
    payload_converter_class=CompactPayloadConverter,
    failure_converter_class=PlainFailureConverter,
)
"""The one data converter of workers, clients and replay, where nothing is encrypted."""


def make_converter(
    keyring: Keyring | None, *, failed: Callable[[UnknownKeyError | DecryptionError], None] | None = None
) -> DataConverter:
    """The data converter with these keys; without any, one that says which key it lacks for what is encrypted.

    Args:
        keyring: The keys.
        failed: Is told of each payload that they do not open.
    """
    codec = EncryptionCodec(keyring) if failed is None else EncryptionCodec(keyring, failed=failed)
    failures = EncodedFailureConverter if keyring is not None and keyring.encrypts else PlainFailureConverter
    return dataclasses.replace(DATA_CONVERTER, payload_codec=codec, failure_converter_class=failures)


@functools.cache
def _quiet_runtime() -> Runtime:
    """The SDK prints warnings of its retries to the terminal; what fails for good is raised anyway."""
    quiet = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    return Runtime(telemetry=TelemetryConfig(logging=quiet))


def load_config(**options: Unpack[ConnectOptions]) -> ClientConnectConfig:
    """Load Temporal's own environment configuration (``TEMPORAL_ADDRESS``, ``TEMPORAL_PROFILE``, …).

    Each option replaces what the environment says; ``tls=True`` keeps the certificates that it names. With no such
    variable and no address among the options, the address file of ``perdure dev`` in this folder leads.

    Raises:
        TemporalConfigError: It cannot be read.
        ServerUnreachableError: The address file was left by a ``perdure dev`` that was killed.
    """
    found = None if "address" in options else temporal_file()
    config = _read_environment() if found is None else _read_file(found)
    if "address" in options:
        config["target_host"] = options["address"]
    if "namespace" in options:
        config["namespace"] = options["namespace"]
    if "api_key" in options:
        config["api_key"] = options["api_key"]
    if "tls" in options and not (options["tls"] is True and config.get("tls")):
        config["tls"] = options["tls"]
    return config


def _read_environment() -> ClientConnectConfig:
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        # The first line alone: those after it quote the file, which holds keys.
        msg = f"Temporal's configuration cannot be read: {str(error).splitlines()[0]}; check the TEMPORAL_* variables"
        raise TemporalConfigError(msg) from None
    config.setdefault("target_host", DEFAULT_ADDRESS)
    return config


def _read_file(found: DevFile) -> ClientConnectConfig:
    if not found.is_live:
        raise ServerUnreachableError(
            f"the 'perdure dev' of {found.path.parent.parent} (process {found.addresses.pid}) was killed; start it "
            f"again there, set TEMPORAL_ADDRESS to another server, or remove {found.path}"
        )
    return ClientConnectConfig(target_host=found.addresses.temporal_address, namespace=found.addresses.namespace)


def address_source() -> str:
    """Source of the server's address, for people."""
    found = temporal_file()
    if found is not None:
        return f"from {found.path}"
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "from TEMPORAL_ADDRESS"
    if "target_host" in ClientConfig.load_client_connect_config():
        return "from the configuration file of Temporal"
    return "the default, as no TEMPORAL_ADDRESS is set and no 'perdure dev' runs in this folder"


async def connect(
    converter: DataConverter | None = None, *, runtime: Runtime | None = None, **options: Unpack[ConnectOptions]
) -> temporalio.client.Client:
    """Connect by Temporal's own environment configuration, or by what is named here.

    Without a converter, content is encrypted with the keys of ``PERDURE_ENCRYPTION_KEYS``.

    Raises:
        SettingsError: The keys cannot be used.
        TemporalConfigError: The configuration cannot be read, or the address is none.
        ServerUnreachableError: Nothing answers at the address, or no Temporal server that this client can talk to.
        ServerRefusedError: The server does not accept the credentials.
    """
    converter = converter or make_converter(load_keyring(load_settings()))
    config = load_config(**options)
    runtime = runtime or _quiet_runtime()
    address = config.get("target_host", DEFAULT_ADDRESS)
    try:
        return await temporalio.client.Client.connect(
            **config, data_converter=converter, runtime=runtime, connect_timeout=CONNECT_TIMEOUT
        )
    except ValueError as error:
        name = "address" if "address" in options else "TEMPORAL_ADDRESS"
        raise TemporalConfigError(f"{name}: {address!r} is no HOST:PORT ({error})") from error
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


async def unless_missing(call: Awaitable[Result]) -> Result | None:
    """The answer to a call about an execution; None if the server does not know that."""
    with rpc_errors():
        try:
            return await call
        except RPCError as error:
            if is_missing(error):
                return None
            raise


async def describe_queue(
    temporal: temporalio.client.Client, queue: str, kind: "TaskQueueType.ValueType", *, retry: bool = True
) -> DescribeTaskQueueResponse:
    """A task queue, with its backlog and its rate limit."""
    request = DescribeTaskQueueRequest(
        namespace=temporal.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind, report_stats=True
    )
    with rpc_errors():
        return await temporal.workflow_service.describe_task_queue(request, retry=retry)


async def pollers_of(
    temporal: temporalio.client.Client, queue: str, kind: "TaskQueueType.ValueType", *, retry: bool = True
) -> Sequence[PollerInfo]:
    """The workers that have asked the queue for work of late; one that is gone is among them for some minutes."""
    return (await describe_queue(temporal, queue, kind, retry=retry)).pollers
