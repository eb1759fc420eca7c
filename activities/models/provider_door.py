"""The direct door to a provider, for the two common wires: litellm writes the request, perdure sends it.

litellm knows what a model's parameters are called and how messages are written for it, and that is used here: its
public configuration of a provider. Its ``acompletion`` is not: it takes two milliseconds a call beside that, and stands
between the provider's reply and perdure. A call that needs more of litellm than this goes through ``acompletion``.
"""

import asyncio
import functools
import json
import re
import select
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import httpx
import litellm
from aiohttp.client_proto import ResponseHandler
from litellm import utils
from litellm.llms.custom_httpx.http_handler import get_ssl_configuration  # pyright: ignore[reportMissingTypeStubs]
from litellm.main import responses_api_bridge_check  # pyright: ignore[reportMissingTypeStubs]
from litellm.types.utils import LlmProviders  # pyright: ignore[reportMissingTypeStubs]
from litellm.utils import ProviderConfigManager  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities.models.encoders import Asked, responses
from perdure.activities.models.provider_http import ENCODINGS, Exchange, exchange_with, stand_in, to_reply
from perdure.activities.models.provider_reading import HttpReply
from perdure.activities.models.reasoning import put_thinking_in_order, without_own_fields

PROVIDERS = frozenset({"openai", "anthropic"})
"""Providers, and whoever speaks like them at an address of the author's own, that are called directly."""

_ADDRESS = frozenset({"api_base", "base_url", "api_key"})

_PLAIN = frozenset(
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
        *("service_tier", "verbosity", "prompt_cache_key", "safety_identifier", "extra_headers", "extra_body"),
    }
)
"""Settings of an agent that mean the same here as in litellm's call."""

_TEXT_ROLES = frozenset({"user", "assistant", "tool"})
_TEXT_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})

_MESSAGES = "/v1/messages"

_OURS = frozenset({"model", "messages", "tools", "response_format", "timeout", "num_retries", "max_retries"})


@dataclass(frozen=True)
class Request:
    """A request for a model's answer, as it is sent."""

    url: str
    headers: Mapping[str, str]
    body: bytes


def prepare(arguments: Mapping[str, Any], *, streams: bool) -> Request | None:
    """The request that litellm's configuration makes of a call's arguments; None if the call needs more of litellm.

    Raises:
        Exception: Whatever litellm raises for parameters that the model does not take.
    """
    provider = str(arguments["model"]).partition("/")[0]
    if provider not in PROVIDERS or not arguments.keys() <= _OURS | _ADDRESS | _PLAIN or _is_changed():
        return None
    model, found, key, address = litellm.get_llm_provider(
        arguments["model"],
        api_base=arguments.get("base_url") or arguments.get("api_base"),
        api_key=arguments.get("api_key"),
    )
    if found != provider:
        return None
    if _needs_responses(provider, model, arguments, address):
        return _responses_request(model, arguments, _access(provider, key, address), streams=streams)
    config: Any = ProviderConfigManager.get_provider_chat_config(model=model, provider=LlmProviders(provider))
    # litellm changes messages in place, and sends no field that is null.
    messages: Any = [
        {name: part for name, part in without_own_fields(message).items() if part is not None}
        for message in arguments["messages"]
    ]
    params = {name: arguments[name] for name in (*_PLAIN, "tools", "response_format") if name in arguments}
    own_headers, extra_body = params.pop("extra_headers", None), params.pop("extra_body", None)
    options = cast("Callable[..., dict[str, Any]]", utils.get_optional_params)(
        model=model, custom_llm_provider=provider, messages=messages, **params
    )
    options.pop("json_mode", None)
    extra: dict[str, Any] = {**(options.pop("extra_body", None) or {}), **(extra_body or {})}
    key, address = _access(provider, key or arguments.get("api_key"), address)
    shared: dict[str, Any] = {"model": model, "optional_params": options, "litellm_params": {}}
    headers = config.validate_environment(
        headers=dict(own_headers or {}), messages=messages, api_key=key, api_base=address, **shared
    )
    url = config.get_complete_url(api_base=address, api_key=key, stream=streams, **shared)
    # OpenAI's format is ours: litellm changes pictures, files and roles there, and each message by itself.
    kept = [provider == "openai" and _is_text(message) for message in messages]
    given = [message for message, is_kept in zip(messages, kept, strict=True) if not is_kept]
    data: dict[str, Any] = {**config.transform_request(messages=given, headers=headers, **shared), **extra}
    if provider == "openai":
        changed = iter(data["messages"])
        data["messages"] = [
            message if is_kept else next(changed) for message, is_kept in zip(messages, kept, strict=True)
        ]
    data.pop("stream", None)
    if provider == "anthropic":
        put_thinking_in_order(data.get("messages"), arguments["messages"])
    if streams:
        data |= {"stream": True} | ({"stream_options": {"include_usage": True}} if provider == "openai" else {})
    return Request(url, {**headers, "accept-encoding": ENCODINGS}, json.dumps(data).encode())


def _responses_request(
    model: str, arguments: Mapping[str, Any], access: tuple[str | None, str], *, streams: bool
) -> Request:
    """The request for a response of OpenAI's Responses API."""
    key, address = access
    name = model.removeprefix("responses/")
    settings = {name: value for name, value in arguments.items() if name in _PLAIN - {"extra_headers", "extra_body"}}
    asked = Asked(
        model=name,
        messages=arguments["messages"],
        tools=arguments.get("tools") or (),
        output=arguments.get("response_format"),
        settings=settings,
        reasons=_REASONS.match(name) is not None,
        streams=streams,
    )
    extra_body: dict[str, Any] = arguments.get("extra_body") or {}
    extra_headers: dict[str, str] = arguments.get("extra_headers") or {}
    data: dict[str, Any] = {**responses.encode(asked), **extra_body}
    headers: dict[str, str] = {
        "content-type": "application/json",
        **({"authorization": f"Bearer {key}"} if key else {}),
        **extra_headers,
        "accept-encoding": ENCODINGS,
    }
    return Request(f"{address.rstrip('/')}/responses", headers, json.dumps(data).encode())


_REASONS = re.compile(r"(?:o\d|gpt-(?:[5-9]|\d\d)(?!\S*-chat)|codex)")
"""Names of OpenAI's models that reason; it refuses to encrypt the reasoning of one that does not."""


def _is_text(message: Mapping[str, Any]) -> bool:
    """Whether it has nothing but text and calls; litellm leaves it as it is, and takes long."""
    has_text = isinstance(message.get("content"), str | None)
    return has_text and message["role"] in _TEXT_ROLES and message.keys() <= _TEXT_FIELDS


def _is_changed() -> bool:
    """Whether an agent's module has set what litellm applies to every call."""
    settings = ("cache", "model_alias_map", "proxy_auth", "headers", "model_fallbacks")
    return any(getattr(litellm, name, None) for name in settings)


def _needs_responses(provider: str, model: str, arguments: Mapping[str, Any], address: str | None) -> bool:
    """Whether litellm would call OpenAI's Responses API for this model, which has no other."""
    if provider != "openai":
        return False
    info, _ = cast(
        "tuple[dict[str, Any], str]",
        responses_api_bridge_check(
            model=model,
            custom_llm_provider=provider,
            tools=arguments.get("tools"),
            reasoning_effort=arguments.get("reasoning_effort"),
            api_base=address,
        ),
    )
    return info.get("mode") == "responses"


def _access(provider: str, key: str | None, given: str | None) -> tuple[str | None, str]:
    """The key and the address of a call, from where litellm takes them."""
    secret: Any = litellm.get_secret
    own = getattr(litellm, f"{provider}_key", None)
    of_all = cast("Any", litellm.api_key)
    key = key or own or of_all or secret(f"{provider.upper()}_API_KEY")
    address: Any = given or cast("Any", litellm.api_base)
    if provider == "openai":
        return key, address or secret("OPENAI_BASE_URL") or secret("OPENAI_API_BASE") or "https://api.openai.com/v1"
    address = address or secret("ANTHROPIC_API_BASE") or secret("ANTHROPIC_BASE_URL") or "https://api.anthropic.com"
    is_whole = address.endswith(_MESSAGES) or litellm.get_secret_bool("LITELLM_ANTHROPIC_DISABLE_URL_SUFFIX")
    return key, address if is_whole else f"{address.rstrip('/').removesuffix('/v1')}{_MESSAGES}"


async def send(request: Request, exchange: Exchange, silence: float) -> int:
    """Send a request and have its answer read into the exchange; returns the reply's status.

    Args:
        request: The request.
        exchange: The call's exchange.
        silence: Longest time in seconds without a byte.

    Raises:
        NoReplyError: The connection was not made, or was lost.
        UnusableReplyError: The reply is not an answer.
        ProviderError: An error, with status 200.
    """

    async def ask() -> HttpReply:
        instead = stand_in.get()
        if instead is not None:
            return to_reply(
                await instead.send(httpx.Request("POST", request.url, headers=request.headers, content=request.body))
            )
        session = await _session()
        response = await session.post(
            request.url,
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
            proxy=_proxy_of(urlsplit(request.url).scheme, urlsplit(request.url).hostname or ""),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=silence, sock_read=silence),
        )

        async def close() -> None:
            response.close()  # an answer that was read to its end has given its connection back already

        headers = {name.lower(): value for name, value in response.headers.items()}
        return HttpReply(response.status, headers, response.content.iter_any(), close, request.url)

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
            connector=Connector(limit=0, limit_per_host=0, ssl=get_ssl_configuration(None), ttl_dns_cache=300),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": "perdure"},
        ) as session:
            while True:
                yield session
    finally:
        del _keepers[loop]
