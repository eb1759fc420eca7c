"""A gRPC endpoint over real HTTP/2, with or without TLS, that answers each call of Temporal's with what a test says."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from h2.exceptions import ProtocolError
from temporalio.service import RPCStatusCode

EMPTY = b"\0\0\0\0\0"
"""An empty message, as gRPC frames it."""


@dataclass(frozen=True)
class Answer:
    """What a call is answered with: a gRPC status, or, of something that is no gRPC server, an HTTP status."""

    status: RPCStatusCode = RPCStatusCode.OK
    message: str = ""
    http: int = 200
    body: bytes = b""


@dataclass
class RefusingServer:
    """What it answers: by the name of the call, such as ``StartWorkflowExecution``; ``*`` is any other.

    Attributes:
        calls: The names of the calls that have come.
    """

    answers: Mapping[str, Answer]
    address: str = ""
    calls: list[str] = field(default_factory=list)
    connections: list[asyncio.Transport] = field(default_factory=list)

    def answer(self, call: str) -> Answer:
        self.calls.append(call)
        return self.answers.get(call) or self.answers.get("*") or Answer()


class _Connection(asyncio.Protocol):
    def __init__(self, server: RefusingServer) -> None:
        self._server = server
        self._http = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._calls: dict[int, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.append(transport)
        self._http.initiate_connection()
        transport.write(self._http.data_to_send())

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http.receive_data(data)
        except ProtocolError:
            self._transport.close()
            return
        for event in events:
            if isinstance(event, RequestReceived):
                path = next(str(value) for name, value in event.headers or [] if str(name) == ":path")
                self._calls[event.stream_id or 0] = path.rpartition("/")[2]
            elif isinstance(event, StreamEnded):
                stream = event.stream_id or 0
                self._reply(stream, self._server.answer(self._calls.pop(stream)))
        self._transport.write(self._http.data_to_send())

    def _reply(self, stream: int, answer: Answer) -> None:
        if answer.http != 200:
            self._http.send_headers(stream, [(":status", str(answer.http)), ("content-type", "text/html")])
            self._http.send_data(stream, answer.body, end_stream=True)
            return
        head = [(":status", "200"), ("content-type", "application/grpc")]
        end = [("grpc-status", str(int(answer.status))), ("grpc-message", answer.message)]
        if answer.status is not RPCStatusCode.OK:
            self._http.send_headers(stream, [*head, *end], end_stream=True)
            return
        self._http.send_headers(stream, head)
        self._http.send_data(stream, EMPTY)
        self._http.send_headers(stream, end, end_stream=True)


@asynccontextmanager
async def refusing(
    answers: Mapping[str, Answer] | None = None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RefusingServer]:
    """Serve these answers."""
    server = RefusingServer(answers or {})
    listener = await asyncio.get_running_loop().create_server(lambda: _Connection(server), "127.0.0.1", 0, ssl=tls)
    server.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        try:
            yield server
        finally:
            for connection in server.connections:
                connection.abort()


def certificate(folder: Path, name: str = "127.0.0.1", *, days: int = 30) -> Path:
    """A self-signed certificate for that name, with its key, in one file; negative ``days`` make an expired one."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "perdure's tests")])
    now = datetime.datetime.now(datetime.UTC)
    known_as = x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
    signed = (
        x509.CertificateBuilder()
        .subject_name(issuer)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=90))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([known_as]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}{days}.pem"
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


def with_tls(path: Path, *, clients: Path | None = None) -> ssl.SSLContext:
    """The server's end of TLS; ``clients`` is the certificate that clients have to show."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context
