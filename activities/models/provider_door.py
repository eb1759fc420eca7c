"""The direct door to a provider: a request that perdure has written is sent, and its answer read."""

import asyncio
import functools
import json
import os
import select
import ssl
import urllib.request
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import certifi
import httpx
import yarl
from aiohttp.client_proto import ResponseHandler

from perdure.activities.models.failures import NoReplyError
from perdure.activities.models.provider_http import ENCODINGS, exchange, stand_in, to_reply
from perdure.activities.models.provider_packets import HttpReply, Patience, describe_silence
from perdure.activities.models.provider_requests import Request
from perdure.activities.models.wires.reply import Answered, Shown


async def send(request: Request, shown: Shown | None, patience: Patience) -> Answered:
    """The answer to a request.

    Args:
        request: The request.
        shown: Takes the pieces of the answer; None if no stream is asked for.
        patience: How long the provider may be silent.

    Raises:
        MissingKeyError: There is no key to sign it with.
        NoReplyError: The connection was not made, or was lost.
        UnusableReplyError: The reply is not an answer.
        ProviderError: It is an error.
    """
    body, instead = json.dumps(request.body).encode(), stand_in.get()
    signed = request if instead is not None else await request.signed(body)
    url, headers = signed.url, {**signed.headers, "accept-encoding": ENCODINGS}

    async def ask() -> HttpReply:
        if instead is not None:
            return to_reply(await instead.send(httpx.Request("POST", url, headers=headers, content=body)))
        session = await _session()
        try:
            response = await session.post(
                yarl.URL(url, encoded=True),  # as it was signed
                data=body,
                headers=headers,
                allow_redirects=False,
                proxy=_proxy_of(urlsplit(url).scheme, urlsplit(url).hostname or ""),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=patience.idle, sock_read=patience.idle),
            )
        except aiohttp.SocketTimeoutError as error:
            raise NoReplyError(describe_silence(*patience.silence(has_begun=False))) from error

        async def close() -> None:
            response.close()  # an answer that was read to its end has given its connection back already

        told = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(response.status, told, response.content.iter_any(), close, url)

    answered = await exchange(request.wire, url, ask, shown, patience)
    return replace(answered, source=replace(answered.source, server=urlsplit(url).hostname or ""))


@functools.cache
def _proxy_of(scheme: str, host: str) -> str | None:
    """The proxy that the environment names for a host. aiohttp's own way would also take keys from a netrc file."""
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


class _Connection(ResponseHandler):
    """A connection that is reused only if the provider has not closed it.

    The event loop may not have seen the close yet. A request on such a connection would be lost, and use up a try that
    nobody has read. httpcore and urllib3 check their sockets in the same way.
    """

    def is_connected(self) -> bool:
        """Whether a request may be sent: an idle connection must have nothing to read, here or in its socket.

        Bytes after a reply must not be taken for the reply to the next request (RFC 9112, section 6.3).
        """
        is_idle = super().is_connected() and not self.should_close
        return is_idle and self.transport is not None and not _is_readable(self.transport)


def _is_readable(transport: asyncio.BaseTransport) -> bool:
    link = transport.get_extra_info("socket")
    if link is None or link.fileno() < 0:
        return False
    looking = select.poll()
    looking.register(link.fileno(), select.POLLIN)
    return bool(looking.poll(0))


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, whose connections are checked before they are reused."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self._factory = cast("Any", functools.partial(_Connection, loop=self._loop))


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates that a provider is known by: those of the file that the environment names, or the usual ones."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())


_keepers: dict[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession]] = {}


async def _session() -> aiohttp.ClientSession:
    """The HTTP session of this event loop. Its number of connections is bounded by that of a worker's activities."""
    loop = asyncio.get_running_loop()
    keeper = _keepers.get(loop)
    if keeper is None:
        keeper = _keepers[loop] = _keep_session(loop)
    return await anext(keeper)


async def _keep_session(loop: asyncio.AbstractEventLoop) -> AsyncGenerator[aiohttp.ClientSession]:
    """Keep one session open as long as its event loop runs: at its end, ``asyncio.run`` closes what still yields."""
    try:
        async with aiohttp.ClientSession(
            connector=Connector(limit=0, limit_per_host=0, ssl=_trusted(), ttl_dns_cache=300),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "perdure"},
        ) as session:
            while True:
                yield session
    finally:
        del _keepers[loop]
