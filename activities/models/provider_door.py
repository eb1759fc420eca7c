"""The direct door to a provider: perdure writes the request, and sends it.

A call that needs more than this, such as a setting that only litellm knows, goes through litellm's ``acompletion``.
"""

import asyncio
import functools
import json
import os
import re
import select
import ssl
import sys
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote, urlsplit

import aiohttp
import certifi
import httpx
import yarl
from aiohttp.client_proto import ResponseHandler

from perdure.activities.models import azure, bedrock, providers
from perdure.activities.models.encoders import Asked, chat, converse, effort_in, gemini, messages, responses
from perdure.activities.models.facts import facts_about
from perdure.activities.models.provider_http import ENCODINGS, Exchange, exchange_with, stand_in, to_reply
from perdure.activities.models.provider_reading import HttpReply
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.providers import Provider

_ADDRESS = frozenset({"api_base", "base_url", "api_key"})

_SETTINGS = frozenset(
    {
        *(
            "temperature",
            "top_p",
            "top_k",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "seed",
            "user",
            "tool_choice",
        ),
        *("frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls", "reasoning_effort", "thinking"),
        *("service_tier", "verbosity", "prompt_cache_key", "safety_identifier"),
    }
)
"""Settings of an agent that mean the same here as in litellm's call."""

_EXTRA = frozenset({"extra_headers", "extra_body"})

_OURS = frozenset({"model", "messages", "tools", "response_format", "timeout", "num_retries", "max_retries"})

_TAKEN = _OURS | _ADDRESS | _SETTINGS | _EXTRA


@dataclass(frozen=True)
class Request:
    """A request for a model's answer.

    Attributes:
        url: Where it goes.
        headers: Its headers, without a signature.
        body: Its body.
        sign: Makes its headers of a URL and a body, when it is sent.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    sign: Callable[[str, bytes], Awaitable[Mapping[str, str]]] | None = None

    async def headers_to_send(self) -> Mapping[str, str]:
        """All of its headers."""
        return self.headers if self.sign is None else {**self.headers, **await self.sign(self.url, self.body)}


def prepare(arguments: Mapping[str, Any], *, streams: bool) -> Request | None:
    """The request of a call, by the arguments of litellm's; None if the call needs litellm."""
    prefix, _, name = str(arguments["model"]).partition("/")
    provider = providers.PROVIDERS.get(prefix)
    if provider is None or _is_changed():
        return None
    if not arguments.keys() <= _TAKEN | provider.own:
        return None
    if prefix == "bedrock":
        return _to_bedrock(provider, bedrock.model_of(name), arguments, streams=streams)
    address, key = provider.address_of(arguments), provider.key_of(arguments)
    if not address:  # litellm knows what is missing
        return None
    asked = _asked(provider, name, arguments, streams=streams)
    headers: Mapping[str, str] = {"authorization": f"Bearer {key}"} if key else {}
    if prefix == "anthropic":
        url, headers, body = _messages_at(address), _headers_of_anthropic(key), messages.encode(asked)
    elif prefix == "gemini":
        url = f"{address}/models/{quote(name)}:{'streamGenerateContent?alt=sse' if streams else 'generateContent'}"
        headers, body = {"x-goog-api-key": key} if key else {}, gemini.encode(asked)
    elif prefix == "azure":
        known = azure.headers_of(arguments, key)
        if known is None:
            return None
        model = azure.deployment_of(name)
        path = "responses" if _speaks_responses(model, arguments, _OPENAI_ADDRESS) else "chat/completions"
        url, headers = azure.url_of(address, model.removeprefix("responses/"), arguments, path), known
        asked = replace(asked, model=model.removeprefix("responses/"))
        body = responses.encode(asked) if path == "responses" else chat.encode(asked)
    elif prefix == "openai" and _speaks_responses(name, arguments, address):
        url = f"{address}/responses"
        body = responses.encode(replace(asked, model=name.removeprefix("responses/")))
    else:
        url, body = f"{address}/chat/completions", chat.encode(asked, asks_for_usage=provider.asks_for_usage)
    extra_body: Object = arguments.get("extra_body") or {}
    extra_headers: Mapping[str, str] = arguments.get("extra_headers") or {}
    own = {"content-type": "application/json", **headers}
    taken = {header.lower() for header in extra_headers}
    kept = {header: value for header, value in own.items() if header not in taken}
    return Request(
        url,
        {**kept, **extra_headers, "accept-encoding": ENCODINGS},
        json.dumps({**body, **provider.extra, **extra_body}).encode(),
    )


def _to_bedrock(provider: Provider, model: str, arguments: Mapping[str, Any], *, streams: bool) -> Request | None:
    """The request of a call of Bedrock, which is signed when it is sent."""
    if not model or "extra_headers" in arguments:
        return None
    body = {**converse.encode(_asked(provider, model, arguments, streams=streams)), **arguments.get("extra_body", {})}
    url, data = bedrock.url_of(model, arguments, streams=streams), json.dumps(body).encode()
    return Request(url, {"accept-encoding": ENCODINGS}, data, lambda url, body: bedrock.sign(url, body, arguments))


def _asked(provider: Provider, name: str, arguments: Mapping[str, Any], *, streams: bool) -> Asked:
    facts = facts_about(str(arguments["model"]))
    settings = {provider.renamed.get(key, key): value for key, value in arguments.items() if key in _SETTINGS}
    settings.pop("", None)
    if provider.switches_thinking and (effort := effort_in(settings.get("reasoning_effort"))):
        settings.setdefault("thinking", {"type": "disabled" if effort == "none" else "enabled"})
        if effort == "none":
            del settings["reasoning_effort"]
    if settings.get("tool_choice") == "required":
        settings["tool_choice"] = provider.required
    return Asked(
        model=name if "/" in name else f"{provider.model_prefix}{name}",
        messages=arguments["messages"],
        tools=arguments.get("tools") or (),
        output=arguments.get("response_format"),
        settings=settings,
        most_tokens=facts.get("max_output_tokens") or MOST_TOKENS,
        thinks_as_needed=facts["supports_adaptive_thinking"] is True
        if "supports_adaptive_thinking" in facts
        else _version_of_claude(name) >= _THINKS_AS_NEEDED,
        streams=streams,
    )


MOST_TOKENS = 128_000
"""Longest answer of a model that nobody knows, as that of the newest ones."""

_CLAUDE = re.compile(r"claude-[a-z]+-(?P<major>\d+)(?:[-.](?P<minor>\d{1,2})(?!\d))?")

_THINKS_AS_NEEDED = (4, 6)
"""First version of Claude that decides itself how much it thinks. Source: Anthropic's page on adaptive thinking."""


def _version_of_claude(name: str) -> tuple[int, int]:
    found = _CLAUDE.search(name)
    return (int(found["major"]), int(found["minor"] or 0)) if found else (0, 0)


def _is_changed() -> bool:
    """Whether an agent's module has set what litellm applies to every call; if it has imported it at all."""
    litellm = sys.modules.get("litellm")
    settings = (
        *("cache", "model_alias_map", "proxy_auth", "headers", "model_fallbacks", "drop_params", "modify_params"),
        *("api_base", "api_key", "openai_key", "anthropic_key", "secret_manager_client"),
    )
    return any(getattr(litellm, name, None) for name in settings)


_GPT = re.compile(r"gpt-(?P<major>\d+)(?:\.(?P<minor>\d+))?(?!\S*-(?:chat|search))")

_REASONS_WITH_TOOLS = (5, 4)
"""First version of GPT whose chat completions take no functions while it reasons. Source: OpenAI's refusals."""


def _speaks_responses(name: str, arguments: Mapping[str, Any], address: str) -> bool:
    """Whether a model of OpenAI's is asked for a response: it has nothing else, is told to, or needs it for tools.

    Behind an address of the author's own that is known of an effort that is asked for only.
    """
    if name.startswith("responses/") or facts_about(f"openai/{name}").get("mode") == "responses":
        return True
    version, effort = _GPT.match(name), arguments.get("reasoning_effort")
    if version is None or not arguments.get("tools") or effort_in(effort) == "none":
        return False
    is_new = (int(version["major"]), int(version["minor"] or 0)) >= _REASONS_WITH_TOOLS
    host = urlsplit(address).hostname or ""
    return is_new and (effort is not None or host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}"))


_OPENAI_HOST = "api.openai.com"
_OPENAI_ADDRESS = f"https://{_OPENAI_HOST}/v1"


_MESSAGES = "/v1/messages"

_OF_A_LOGIN = "sk-ant-oat"
"""Beginning of the tokens that Anthropic gives for a login, in place of a key."""


def _messages_at(address: str) -> str:
    """The URL of Anthropic's messages at an address, which may have a part of the path, or all of it."""
    return address if address.endswith(_MESSAGES) else f"{address.removesuffix('/v1')}{_MESSAGES}"


def _headers_of_anthropic(key: str) -> Mapping[str, str]:
    """The headers of a call of Anthropic: with a key, or with the token of a login."""
    headers = {"anthropic-version": "2023-06-01"}
    token = "" if key else os.environ.get("ANTHROPIC_AUTH_TOKEN", "")
    if key.startswith(_OF_A_LOGIN):
        token, headers["anthropic-beta"] = key, "oauth-2025-04-20"
    if token:
        return {**headers, "authorization": f"Bearer {token}"}
    return {**headers, "x-api-key": key} if key else headers


async def send(request: Request, exchange: Exchange, silence: float) -> int:
    """Send a request and have its answer read into the exchange; returns the reply's status.

    Args:
        request: The request.
        exchange: The call's exchange.
        silence: Longest time in seconds without a byte.

    Raises:
        MissingKeyError: There is no key to sign it with.
        NoReplyError: The connection was not made, or was lost.
        UnusableReplyError: The reply is not an answer.
        ProviderError: An error, with status 200.
    """
    instead = stand_in.get()
    headers = request.headers if instead is not None else await request.headers_to_send()

    async def ask() -> HttpReply:
        if instead is not None:
            return to_reply(
                await instead.send(httpx.Request("POST", request.url, headers=headers, content=request.body))
            )
        session = await _session()
        response = await session.post(
            yarl.URL(request.url, encoded=True),  # as it was signed
            data=request.body,
            headers=headers,
            allow_redirects=False,
            proxy=_proxy_of(urlsplit(request.url).scheme, urlsplit(request.url).hostname or ""),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence),
        )

        async def close() -> None:
            response.close()  # an answer that was read to its end has given its connection back already

        told = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(response.status, told, response.content.iter_any(), close, request.url)

    status, _, _ = await exchange_with(exchange, request.url, request.body, ask)
    return status


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
