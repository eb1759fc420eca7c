"""The request of a call, for each provider that perdure calls directly: where it goes, its key, and its body.

A model that none of them has goes through litellm's ``acompletion``.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import quote, urlsplit

from perdure.activities.models import azure, bedrock, providers, vertex
from perdure.activities.models.encoders import (
    Asked,
    chat,
    converse,
    effort_in,
    gemini,
    messages,
    ollama,
    responses,
)
from perdure.activities.models.facts import facts_about
from perdure.activities.models.forms import Form, Learnt
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.providers import Provider
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, OLLAMA, RESPONSES, Wire

_ADDRESS = frozenset({"api_base", "base_url", "api_key"})

_EXTRA = frozenset({"extra_headers", "extra_body"})

_OURS = frozenset({"model", "messages", "tools", "response_format", "timeout", "num_retries", "max_retries"})

_NO_SETTINGS = _OURS | _ADDRESS | _EXTRA

_OF_LITELLM = frozenset(
    {
        *("additional_drop_params", "allowed_openai_params", "drop_params", "mock_response", "mock_timeout"),
        *("api_type", "api_version", "custom_llm_provider", "deployment_id", "region_name", "ssl_verify"),
        *("base_model", "hf_model_name", "model_info", "model_list", "supports_system_message"),
        *("cache", "caching", "client", "custom_prompt_dict", "logger_fn", "no-log", "shared_session", "verbose"),
        *("context_window_fallback_dict", "fallbacks", "retry_policy", "retry_strategy"),
        *("default_headers", "headers", "force_timeout", "request_timeout", "stream_timeout"),
        *("organization", "project", "use_litellm_proxy", "aws_web_identity_token", "aws_sts_endpoint"),
    }
)
"""Settings of litellm itself, which mean nothing where it is not asked."""


class UnknownSettingError(ValueError):
    """A setting that a provider would not understand, and nobody else reads."""


@dataclass(frozen=True)
class Request:
    """A request for a model's answer.

    Attributes:
        url: Where it goes.
        headers: Its headers, without a signature.
        body: Its body.
        wire: The format of its answer.
        sign: Gives the URL and the headers of a signature, by the bytes of the body, when it is sent.
    """

    url: str
    headers: Mapping[str, str]
    body: Object
    wire: Wire = CHAT
    sign: Callable[[bytes], Awaitable[tuple[str, Mapping[str, str]]]] | None = None

    async def signed(self, body: bytes) -> Self:
        """The same with the headers of its signature.

        Raises:
            MissingKeyError: There is no key to sign it with.
            NoReplyError: Whoever gives the key does not answer.
        """
        if self.sign is None:
            return self
        url, headers = await self.sign(body)
        return replace(self, url=url, headers={**self.headers, **headers})


def prepare(arguments: Mapping[str, Any], *, streams: bool, learnt: Learnt = Learnt()) -> Request | None:  # noqa: B008
    """The request of a call, by its arguments under litellm's names; None if only litellm knows the model.

    A setting that no wire has another name for goes into the body as it is: the provider says what it takes. What
    perdure adds has the forms that the model has asked for, as its worker has ``learnt`` them.

    Raises:
        UnknownSettingError: It has a setting of litellm's.
    """
    prefix, _, name = str(arguments["model"]).partition("/")
    provider = providers.PROVIDERS.get(prefix)
    if provider is None:
        return None
    if foreign := sorted(_OF_LITELLM & arguments.keys() - provider.own):
        msg = f"{' and '.join(foreign)}: a setting of litellm's, without which {prefix} is called; leave it out"
        raise UnknownSettingError(msg)
    asked = _asked(provider, name, arguments, learnt, streams=streams)
    call = _Call(provider, name, arguments, provider.address_of(arguments), provider.key_of(arguments), asked)
    request = _WRITERS.get(prefix, _write_chat)(call)
    if request is None:
        return None
    extra_headers: Mapping[str, str] = arguments.get("extra_headers") or {}
    own = {"content-type": "application/json", **request.headers}
    taken = {header.lower() for header in extra_headers}
    kept = {header: value for header, value in own.items() if header not in taken}
    extra_body: Object = arguments.get("extra_body") or {}
    return replace(request, headers={**kept, **extra_headers}, body={**request.body, **provider.extra, **extra_body})


@dataclass(frozen=True)
class _Call:
    """A call, and where its provider answers."""

    provider: Provider
    name: str
    arguments: Mapping[str, Any]
    address: str
    key: str
    asked: Asked


def _bearer(key: str) -> Mapping[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _write_chat(call: _Call) -> Request | None:
    if not call.address:  # litellm knows what is missing
        return None
    body = chat.encode(call.asked)
    return Request(f"{call.address}/chat/completions", _bearer(call.key), body)


def _write_openai(call: _Call) -> Request | None:
    if not _speaks_responses(call.name, call.arguments, call.address):
        return Request(f"{call.address}/chat/completions", _of_openai(call), chat.encode(call.asked))
    asked = replace(call.asked, model=call.name.removeprefix("responses/"))
    return Request(f"{call.address}/responses", _of_openai(call), responses.encode(asked), RESPONSES)


def _of_openai(call: _Call) -> Mapping[str, str]:
    """The headers of OpenAI's: a key, and whose bill it is."""
    whose = {
        "openai-organization": call.arguments.get("organization") or os.environ.get("OPENAI_ORGANIZATION"),
        "openai-project": call.arguments.get("project") or os.environ.get("OPENAI_PROJECT_ID"),
    }
    return {**_bearer(call.key), **{name: str(value) for name, value in whose.items() if value}}


def _write_azure(call: _Call) -> Request | None:
    headers = azure.headers_of(call.arguments, call.key)
    if headers is None or not call.address:
        return None
    model = azure.deployment_of(call.name)
    asks_responses = _speaks_responses(model, call.arguments, _OPENAI_ADDRESS)
    asked = replace(call.asked, model=model.removeprefix("responses/"))
    path, wire, encode = ("responses", RESPONSES, responses.encode) if asks_responses else _AZURES_CHAT
    return Request(azure.url_of(call.address, asked.model, call.arguments, path), headers, encode(asked), wire)


_AZURES_CHAT = ("chat/completions", CHAT, chat.encode)


def _write_anthropic(call: _Call) -> Request:
    return Request(_messages_at(call.address), _headers_of_anthropic(call.key), messages.encode(call.asked), MESSAGES)


def _write_gemini(call: _Call) -> Request:
    method = "streamGenerateContent?alt=sse" if call.asked.streams else "generateContent"
    headers = {"x-goog-api-key": call.key} if call.key else {}
    return Request(f"{call.address}/models/{quote(call.name)}:{method}", headers, gemini.encode(call.asked), GEMINI)


def _write_bedrock(call: _Call) -> Request | None:
    """The request of a call of Bedrock, which is signed when it is sent."""
    arguments, model = call.arguments, bedrock.model_of(call.name)
    if not model or "extra_headers" in arguments:
        return None
    url = bedrock.url_of(model, arguments, streams=call.asked.streams)
    body = converse.encode(replace(call.asked, model=model))

    async def sign(body: bytes) -> tuple[str, Mapping[str, str]]:
        return url, await bedrock.sign(url, body, arguments)

    return Request(url, {}, body, CONVERSE, sign)


def _write_vertex(call: _Call) -> Request | None:
    """The request of a call of Vertex AI, whose Gemini and Claude speak as they do at home."""
    arguments, name, asked = call.arguments, call.name, call.asked
    if name.startswith("claude-"):
        wire, body = MESSAGES, {**messages.encode(asked), "anthropic_version": vertex.CLAUDE_VERSION}
        del body["model"]
    elif name.startswith("gemini-"):
        wire, body = GEMINI, gemini.encode(asked)
    else:
        return None
    url = vertex.url_of(name, arguments, streams=asked.streams)
    if call.key:
        return Request(url, _bearer(call.key), body, wire)
    return Request(url, {}, body, wire, lambda _: vertex.sign(url, arguments))


def _write_ollama(call: _Call) -> Request:
    return Request(f"{call.address}/api/chat", _bearer(call.key), ollama.encode(call.asked), OLLAMA)


_WRITERS: Mapping[str, Callable[[_Call], Request | None]] = {
    "anthropic": _write_anthropic,
    "azure": _write_azure,
    "bedrock": _write_bedrock,
    "gemini": _write_gemini,
    "ollama": _write_ollama,
    "ollama_chat": _write_ollama,
    "openai": _write_openai,
    "vertex_ai": _write_vertex,
}
"""Writers of the requests that are no plain chat completions, by the prefix of a model's name."""


def longest_answer_of(model: str) -> int:
    """Longest answer of a model in tokens, as a wire is asked for that wants one with each request."""
    return facts_about(model).get("max_output_tokens") or MOST_TOKENS


def bound_of(model: str, *, has_effort: bool) -> int | None:
    """The bound that a request gets whose author sets none, in tokens; None of a wire that wants none."""
    prefix, _, name = model.partition("/")
    wants = prefix == "anthropic" or (
        "claude" in name and (prefix == "vertex_ai" or (prefix == "bedrock" and has_effort))
    )
    return longest_answer_of(model) if wants else None


def _thinks_as_needed(model: str, learnt: Learnt) -> bool:
    """Whether a model of Anthropic's decides itself how much it thinks."""
    facts, name = facts_about(model), model.partition("/")[2]
    if "supports_adaptive_thinking" in facts:
        does = facts["supports_adaptive_thinking"] is True
    else:
        does = _version_of_claude(name) >= _THINKS_AS_NEEDED
    return does is not (Form.OTHER_THINKING in learnt.forms)


def _asked(provider: Provider, name: str, arguments: Mapping[str, Any], learnt: Learnt, *, streams: bool) -> Asked:
    model = str(arguments["model"])
    given = {name: value for name, value in arguments.items() if name not in _NO_SETTINGS | provider.own}
    settings = {provider.renamed.get(name, name): value for name, value in given.items()}
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
        most_tokens=learnt.fitted(longest_answer_of(model)),
        thinks_as_needed=_thinks_as_needed(model, learnt),
        streams=streams,
        asks_for_usage=provider.asks_for_usage and Form.NO_USAGE not in learnt.forms,
        encrypts=Form.NO_ENCRYPTED not in learnt.forms,
    )


MOST_TOKENS = 128_000
"""Longest answer of a model that nobody knows, as that of the newest ones."""

_CLAUDE = re.compile(r"claude-[a-z]+-(?P<major>\d+)(?:[-.](?P<minor>\d{1,2})(?!\d))?")

_THINKS_AS_NEEDED = (4, 6)
"""First version of Claude that decides itself how much it thinks. Source: Anthropic's page on adaptive thinking."""


def _version_of_claude(name: str) -> tuple[int, int]:
    found = _CLAUDE.search(name)
    return (int(found["major"]), int(found["minor"] or 0)) if found else (0, 0)


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
