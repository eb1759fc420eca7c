"""The activity ``deliver_webhook``: one attempt to send one message to one address, signed as Standard Webhooks says.

Only the status of the answer counts: its body is not read, and no redirect is followed. The addresses of a host name
are resolved and checked where the connection is made.
"""

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import cast

import httpcore
from standardwebhooks import Webhook as Signer
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.activities.errors import permanent, runtime_error
from perdure.activities.heartbeat import LONGEST_BEAT_SECONDS, keep_beating
from perdure.activities.places import NoPlaceError, Place, Places
from perdure.activities.store_access import store_failures
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import Activity
from perdure.contracts.webhooks import Destination, Egress, EgressError, Notify, WebhookTarget, is_public
from perdure.store import Store
from perdure.store.errors import NotFoundError

FIRST_WAIT = timedelta(seconds=30)
"""Wait before the second attempt; each later one is twice as long as the one before."""

LONGEST_WAIT = timedelta(hours=24)
"""Longest wait before another attempt, also if an answer's ``retry-after`` asks for more."""

_GONE = 410
_NUMBERS = re.compile(r"[0-9A-Fa-f:.]*[:.][0-9A-Fa-f:.]*[0-9A-Fa-f:](%\w+)?")
_BUSY = frozenset({429, 503})
_TAKEN = range(200, 300)


class WebhookActivity:
    """The deliveries of one worker."""

    def __init__(self, store: Store, egress: Egress, places: Places) -> None:
        self._store = store
        self._egress = egress
        self._places = places

    @activity.defn(name=Activity.DELIVER_WEBHOOK)
    async def deliver_webhook(self, notify: Notify) -> int:
        """Send the message, and return the status of the answer. A second attempt sends the same id and bytes.

        An answer of 410 (Gone) pauses the webhook. Any other failure may be retried.
        """
        async with keep_beating(least=LONGEST_BEAT_SECONDS):  # nobody cancels it, and strangers keep it under way
            async with store_failures():
                await self._store.require(notify.store)
                target = await self._store.webhook_target(notify.webhook)
            if target is None:
                message = f"webhook {notify.webhook} was removed"
                raise permanent(runtime_error(ReasonCode.WEBHOOK_GONE, message))
            if target.paused and not notify.once:
                raise _undelivered(f"webhook {notify.webhook} is paused; 'perdure webhooks unpause {notify.webhook}'")
            try:
                destination = self._egress.check(target.url)
                with self._places.take(target.tenant, destination.host) as place:
                    status, wait = await _post(destination, target, notify, place)
            except EgressError as error:
                raise _undelivered(str(error)) from None
            except NoPlaceError as error:
                raise _undelivered(str(error), error.wait) from None
            if status in _TAKEN:
                return status
            if status == _GONE:
                await self._pause(notify.webhook)
                message = f"{destination.host} answered 410: it wants nothing more, and its webhook is paused"
                raise permanent(runtime_error(ReasonCode.WEBHOOK_GONE, message))
            moved = "; redirects are not followed: change the address" if 300 <= status < 400 else ""
            raise _undelivered(f"{destination.host} answered {status}{moved}", wait)

    async def _pause(self, webhook: str) -> None:
        async with store_failures():
            with suppress(NotFoundError):  # removed meanwhile
                reason = f"its address answered 410 at {datetime.now(UTC).isoformat(timespec='seconds')}"
                await self._store.pause_webhook(webhook, paused=True, reason=reason)


def _undelivered(message: str, wait: timedelta | None = None) -> ApplicationError:
    """A retryable failure; the wait doubles from attempt to attempt, unless another is asked for."""
    detail = runtime_error(ReasonCode.WEBHOOK_UNDELIVERED, message)
    return ApplicationError(
        detail.message,
        detail,
        type=detail.code,
        next_retry_delay=_next_wait() if wait is None else wait,
        category=ApplicationErrorCategory.BENIGN,  # the receiver's fault: keeps it out of the worker's log
    )


def _next_wait() -> timedelta:
    """30 s, 1 min, 2 min … 24 h: as long as the delivery is tried already, and 30 s.

    Attempts that found no place make it no longer, as they would if attempts were counted.
    """
    info = activity.info()
    return min(info.current_attempt_scheduled_time - info.scheduled_time + FIRST_WAIT, LONGEST_WAIT)


def sign(secrets: Iterable[str], message: str, at: datetime, body: str) -> str:
    """The header ``webhook-signature``, a signature for each secret. Source: the Standard Webhooks specification."""
    return " ".join(Signer(secret).sign(message, at, body) for secret in secrets)


async def _post(
    destination: Destination, target: WebhookTarget, notify: Notify, place: Place
) -> tuple[int, timedelta | None]:
    """Send the message; return the status of the answer, and the wait that it asks for.

    Raises:
        ApplicationError: Nothing answered in time.
        EgressError: The host name resolves to an address that is not allowed.
    """
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        **target.headers,
        "host": destination.host if ":" not in destination.host else f"[{destination.host}]",
        "user-agent": f"perdure/{version('perdure')}",
        "webhook-id": notify.message,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": sign(target.secrets, notify.message, now, notify.body),
    }
    default = 443 if destination.scheme == "https" else 80
    if destination.port != default:
        headers["host"] += f":{destination.port}"
    pool = httpcore.AsyncConnectionPool(
        ssl_context=_tls() if destination.scheme == "https" else None,
        max_connections=1,
        http2=False,
        network_backend=_Guard(trusted=destination.trusted),
    )
    try:
        async with (
            asyncio.timeout(place.patience.total_seconds()),
            pool,
            pool.stream("POST", target.url, headers=list(headers.items()), content=notify.body.encode()) as answer,
        ):
            place.answered = True
            return answer.status, _wait_of(answer)
    except TimeoutError:
        place.answered = False
        message = f"{destination.host} did not answer within {place.patience.total_seconds():.0f} s"
        raise _undelivered(message) from None
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError) as error:
        why = _without_addresses(str(error)) or type(error).__name__
        raise _undelivered(f"{destination.host} could not be reached ({why[:200]})") from None


def _without_addresses(text: str) -> str:
    """The text without the numbers of addresses: the receiver's name is all that its tenant knows."""
    return _NUMBERS.sub(lambda found: "its address" if _is_address(found[0]) else found[0], text)


def _is_address(text: str) -> bool:
    """Whether the text is an address, which a port or a colon may follow."""
    for part in (text, text.rstrip(":"), text.rpartition(":")[0]):
        with suppress(ValueError):
            ipaddress.ip_address(part)
            return True
    return False


def _wait_of(answer: httpcore.Response) -> timedelta | None:
    """The wait that a busy receiver (429, 503) asks for by ``retry-after`` in seconds."""
    if answer.status not in _BUSY:
        return None
    asked = next((value for name, value in answer.headers if name.lower() == b"retry-after"), b"")
    return min(timedelta(seconds=int(asked)), LONGEST_WAIT) if asked.isdigit() and len(asked) < 8 else None


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Guard(httpcore.AsyncNetworkBackend):
    """Connects to public addresses only, unless the origin is trusted.

    The name is resolved here, once, and the connection goes to the address that was checked. So a name that resolves to
    another address a moment later (DNS rebinding) has no effect.
    """

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())  # absent without anyio

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first of the name's addresses that answers.

        Raises:
            EgressError: One of them is not public.
        """
        addresses = await _resolve(host, port)
        inside = [address for address in addresses if not self._trusted and not is_public(address)]
        if inside:
            # The tenant reads why a delivery failed, and is told no address of the network that it is not on.
            activity.logger.warning("the webhook's host %s stands for %s, which is not public", host, inside[0])
            raise EgressError(
                f"{host} leads to an address that is not a public address; have PERDURE_WEBHOOK_ALLOW name its "
                f"origin, such as https://{host}:{port}"
            )
        failure: Exception = OSError("no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.NetworkError, OSError) as error:
                failure = error
        raise failure


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses that a host name resolves to, in the system's order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
