"""Webhooks: which events go to an address, what a message holds, and which addresses a worker may send to at all."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field

from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.contracts.values import JsonValue, Label, PublicValue, Value

WEBHOOK_ID_PATTERN = r"^wh_[0-9a-f]{16}$"

LONGEST_URL = 2_000
"""Characters of an address: what every part between two services passes on."""

EVERYWHERE = "*"
"""The entry for every public host."""


class WebhookEvent(StrEnum):
    """Events of turns that a webhook can get."""

    WAITING = "waiting"
    """A turn waits for a person."""
    ENDED = "ended"
    """A turn has ended. A delegate's turn has no event of its own; its caller's has."""


def _in_order(events: tuple[WebhookEvent, ...]) -> tuple[WebhookEvent, ...]:
    return tuple(event for event in WebhookEvent if event in events)


class WebhookRequest(Value):
    """A webhook to add.

    Attributes:
        url: Address of the receiver; the worker's ``PERDURE_WEBHOOK_ALLOW`` must allow its host.
        events: Events to send; both by default.
        tenant: Only turns of this tenant; empty means turns without a tenant.
        agents: Only turns of these agents; empty means all.
        session: Only turns of this session; None means all.
    """

    url: str = Field(min_length=1, max_length=LONGEST_URL)
    events: Annotated[tuple[WebhookEvent, ...], AfterValidator(_in_order)] = Field(
        default=tuple(WebhookEvent), min_length=1
    )
    tenant: Label = ""
    agents: tuple[Label, ...] = Field(default=(), max_length=100)
    session: str | None = Field(default=None, pattern=SESSION_ID_PATTERN)


class PushConfig(PublicValue):
    """Name of a webhook that a client of A2A has asked for, whose messages are in the form of A2A.

    Attributes:
        id: Id of the configuration, among those of its task.
        scheme: Scheme of the receiver's authentication; empty if it asks for none. Credentials are in the store only.
    """

    id: str
    scheme: str = ""


class Webhook(PublicValue):
    """A webhook. Its secret is in the store only.

    Attributes:
        id: ``wh_`` and 16 hexadecimal digits.
        turn: Number of the one turn of the session that it is told of; None means all.
        push: The configuration that a client of A2A gave; None if it is none of A2A's.
        paused: Whether it gets no events for now. Events that happen meanwhile are never sent.
        pause_reason: Why perdure has paused it; empty if a person did.
    """

    id: str
    url: str
    events: tuple[WebhookEvent, ...]
    tenant: str = ""
    agents: tuple[str, ...] = ()
    session: str | None = None
    turn: int | None = None
    push: PushConfig | None = None
    paused: bool = False
    pause_reason: str = ""
    created_at: datetime

    def wants(self, *, agent: str, tenant: str, session: str, turn: int) -> bool:
        """Whether it is told of this turn of the agent, tenant and session."""
        return (
            self.tenant == tenant
            and (not self.agents or agent in self.agents)
            and (self.session is None or self.session == session)
            and (self.turn is None or self.turn == turn)
        )


class NewWebhook(Webhook):
    """A webhook that was just added, or that just got a new secret.

    Attributes:
        secret: Key of the signatures, in the form of Standard Webhooks (``whsec_…``). It is shown only here.
    """

    secret: str = Field(repr=False)


class WebhookTarget(Value):
    """Address and secrets of one attempt to deliver.

    Attributes:
        tenant: The webhook's.
        secrets: The keys to sign with: the newest, and for a while the one before it.
        headers: Headers of each message by which the receiver knows its form and its sender, with their values.
    """

    url: str = Field(repr=False)
    tenant: str = ""
    secrets: tuple[str, ...] = Field(repr=False)
    headers: Mapping[str, str] = Field(default={}, repr=False)
    paused: bool = False


class Notify(Value):
    """The input of the workflow ``Notify``: one delivery to one address.

    Attributes:
        webhook: The id of the subscription.
        message: The id of the message, the same for every attempt and every subscription: ``webhook-id``.
        body: What is sent, to the byte.
        store: The id of the store that the subscription is in.
        once: Whether it is not sent again after a failure, as a test is not.
    """

    webhook: str
    message: str
    body: str
    store: str = ""
    once: bool = False


class Delivery(PublicValue):
    """The delivery of one message to one webhook.

    Attributes:
        message: Id of the message.
        state: ``delivering`` while it is tried, for up to three days.
        attempts: Number of attempts; None where Temporal no longer says.
        next_at: Time of the next attempt.
        error: Why the last attempt failed.
    """

    webhook: str
    message: str
    state: Literal["delivering", "delivered", "failed"]
    started_at: datetime
    ended_at: datetime | None = None
    attempts: int | None = None
    next_at: datetime | None = None
    error: str | None = None


def message_body(kind: str, at: datetime, data: Mapping[str, JsonValue]) -> str:
    """The body of a message, in the form that Standard Webhooks recommends; ASCII, the same for the same values."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"type": kind, "timestamp": moment, "data": dict(data)}, separators=(",", ":"))


class EgressError(ValueError):
    """An address that may not be used; the message says why and what to change."""


@dataclass(frozen=True)
class Destination:
    """Destination of an address.

    Attributes:
        trusted: Whether the operator has named it as it is: it may then be in a private network, and without TLS.
    """

    scheme: str
    host: str
    port: int
    trusted: bool


_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*|[0-9a-f:.]*:[0-9a-f:.]*")
_SCHEMES = {"https": 443, "http": 80}
_PRINTABLE = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Egress:
    """Which addresses messages may be sent to.

    Attributes:
        entries: ``*`` for every public host; ``example.com`` or ``*.example.com`` for public hosts of that name, each
            by https; ``http://host:port`` or ``https://host:port`` for that origin, wherever it leads.
    """

    entries: tuple[str, ...] = (EVERYWHERE,)

    def check(self, url: str, *, whose: str = "the workers'") -> Destination:
        """Return the destination of the address.

        Args:
            url: The address.
            whose: Whose list this is, as the advice of a refusal names it.

        Raises:
            EgressError: The text is not an address, or none of the entries has it.
        """
        scheme, host, port = _split(url)
        origins = [_split(entry) for entry in self.entries if "://" in entry]
        if (scheme, host, port) in origins:
            return Destination(scheme, host, port, trusted=True)
        shown = f"{scheme}://{host}:{port}"
        advice = f"have {whose} PERDURE_WEBHOOK_ALLOW name {shown}"
        if not any(_is_named(host, entry) for entry in self.entries if "://" not in entry):
            raise EgressError(f"{host} is on no list of allowed hosts; {advice}")
        if scheme != "https":
            raise EgressError(f"{shown} has no TLS; use https, or {advice}")
        address = _address(host)
        if address is not None and not is_public(host):
            raise EgressError(f"{host} is not a public address; {advice}")
        return Destination(scheme, host, port, trusted=False)


def read_entry(entry: str) -> str:
    """An entry of the list, checked.

    Raises:
        ValueError: It is neither a host nor an origin.
    """
    text = entry.strip().lower()
    if "://" in text:
        found = urlsplit(text)
        if found.path.strip("/") or found.query:
            msg = f"{entry!r} has a path; write an origin such as http://receiver:8080"
            raise ValueError(msg)
        _split(text)
        return text.rstrip("/")
    name = text.removeprefix("*.")
    if text != EVERYWHERE and (_HOST.fullmatch(name) is None or (name != text and ":" in name)):
        msg = f"{entry!r} is no host; write example.com, *.example.com, *, or an origin such as http://receiver:8080"
        raise ValueError(msg)
    return text


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public network: not private, local, shared, reserved or a group's."""
    found = _address(address)
    if found is None:
        return False
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped
        if inner is None and found in _NAT64:
            inner = IPv4Address(int(found) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if found not in _UNICAST or any(found in network for network in _TUNNELS):
            return False
    elif found in _IETF:
        return False
    return found.is_global and not found.is_multicast


_NAT64 = ip_network("64:ff9b::/96")
_UNICAST = ip_network("2000::/3")
_TUNNELS = (ip_network("2001::/23"), ip_network("2002::/16"))
"""Of protocols and tunnels: behind them may be any address of the old kind."""
_IETF = ip_network("192.0.0.0/24")


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_named(host: str, entry: str) -> bool:
    if entry.startswith("*."):
        return host.endswith(entry[1:])
    return entry in {EVERYWHERE, host}


def _split(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address."""
    if _PRINTABLE.fullmatch(url) is None or "\\" in url:
        raise EgressError("the address has spaces or characters beyond ASCII; write them encoded, a host as xn--…")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise EgressError(f"the address cannot be read ({error}); write https://host/path") from None
    return parts.scheme, *_host_and_port(parts, host, port)


def _host_and_port(parts: SplitResult, host: str, port: int | None) -> tuple[str, int]:
    if parts.scheme not in _SCHEMES or _HOST.fullmatch(host) is None:
        raise EgressError("the address is none of http or https; write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise EgressError("the address has a user or a password, which logs would show; leave it out")
    if parts.fragment:
        raise EgressError("the address has a fragment (#…), which no server gets; leave it out")
    if port == 0:
        raise EgressError("the address has the port 0; write another")
    return host, port or _SCHEMES[parts.scheme]
