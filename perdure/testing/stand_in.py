"""The scripted model without HTTP: answers go straight to the agent, faults as they do over HTTP."""

import errno
import json
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
import httpx

from perdure.activities.models.attempt import DeadlineExceededError
from perdure.activities.models.failures import NoReplyError
from perdure.activities.models.forms import FORMS
from perdure.activities.models.provider_http import StandIn
from perdure.activities.models.provider_packets import describe_silence
from perdure.activities.models.provider_requests import prepare
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue
from perdure.testing.clock import Clock
from perdure.testing.connection import Response
from perdure.testing.provider import ANTHROPIC, AUTO, OPENAI, ScriptedProvider
from perdure.testing.rules import Refusal, provider_of, rulebook, rules_at
from perdure.testing.script import ChatRequest, Fault
from perdure.testing.wires import OpenAI

_SLOW = frozenset({"hang", "hang_in_body", "delay", "drip"})

_asking: ContextVar[AgentDefinition | None] = ContextVar("perdure_asking", default=None)
"""The agent whose model call this task makes over a wire."""

_refused: ContextVar[Response | None] = ContextVar("perdure_refused", default=None)
"""The refusal of the request that this task is about to send."""

_JUDGED = OpenAI(None)
"""The wire of requests that were judged before."""

_KEYS = {"api_key": "stand-in"}
_KEYS_OF_BEDROCK = {
    "aws_access_key_id": "stand-in",
    "aws_secret_access_key": "stand-in",
    "aws_region_name": "us-east-1",
}
"""Keys with which a request is written that is judged, and not sent."""

_UNSENT = frozenset({"timeout", "num_retries", "max_retries", "api_key", "api_base"})
"""Arguments of a call that are no fields of the request."""


def stand_in_of(model: ScriptedProvider, clock: Clock) -> StandIn:
    """Who answers model calls by the script; slow answers let virtual time pass."""

    async def answer(definition: AgentDefinition, arguments: Mapping[str, Any]) -> dict[str, JsonValue] | None:
        provider, _, name = definition.model.partition("/")
        _refused.set(None)
        asked = {key: arguments[key] for key in ("tools", "response_format") if key in arguments}
        # No field that is null is sent.
        sent = [
            {key: value for key, value in message.items() if value is not None} for message in arguments["messages"]
        ]
        request = ChatRequest.model_validate({"model": name, "messages": sent, **asked})
        if provider == "anthropic":  # whose counts of tokens are others
            _asking.set(definition)
            return None
        fields = {key: value for key, value in arguments.items() if key not in _UNSENT}
        body: dict[str, JsonValue] = {**fields, "model": name, "messages": [*sent]}
        refusal = _refusal(model, definition, arguments, body)
        if refusal is not None:
            _refused.set(model.refuse_at_once(request, body, refusal))
            return None
        completion, fault = model.answer_at_once(OPENAI, request, body)
        if completion is not None or fault is None or fault.kind not in _SLOW:
            return completion
        response = await model.answer(_JUDGED, request.model_dump_json().encode(), {})
        await _pass(clock, definition, fault, len(response.body))
        read: dict[str, JsonValue] = json.loads(response.body)
        return read

    async def send(request: httpx.Request) -> httpx.Response:
        refused = _refused.get()
        if refused is not None:
            return _receive(request, refused)
        if request.url.path.endswith(ANTHROPIC.path):
            response = await model.respond("POST", ANTHROPIC.path, dict(request.headers), request.content)
        else:
            response = await model.respond_on(_JUDGED, dict(request.headers), request.content)
        definition, fault = _asking.get(), response.fault
        if definition is not None and fault is not None and fault.kind in _SLOW:
            try:
                await _pass(clock, definition, fault, len(response.body))
            except DeadlineExceededError as late:
                raise httpx.ReadTimeout(str(late), request=request) from late
        return _receive(request, response)

    return StandIn(answer=answer, send=send)


def _refusal(
    model: ScriptedProvider, definition: AgentDefinition, arguments: Mapping[str, Any], body: Mapping[str, JsonValue]
) -> Refusal | None:
    """The refusal of a call, judged as perdure sends it; a call that litellm would send is judged as it is given."""
    if model.plays is None:
        return None
    provider = definition.model.partition("/")[0]
    keys = _KEYS_OF_BEDROCK if provider == "bedrock" else _KEYS
    request = prepare({**keys, **arguments}, streams=False, learnt=FORMS.of(definition))
    if request is None:
        return rulebook("chat").refuse(body)
    name, asked = rules_at(request.url, provider_of(provider))
    own = model.rules_of(OPENAI) if model.plays != AUTO and rulebook(name).file.wire == OPENAI.name else None
    return (own or rulebook(name)).refuse(request.body, asked)


async def _pass(clock: Clock, definition: AgentDefinition, fault: Fault, size: int) -> None:
    """Let the time of a slow answer pass.

    Raises:
        DeadlineExceededError: It takes longer than the agent's generation_timeout.
        NoReplyError: Nothing comes of it within the agent's idle_timeout.
    """
    limit, idle = definition.generation_timeout, definition.idle_timeout
    seconds = {"delay": fault.seconds, "drip": fault.seconds * size}.get(fault.kind, float("inf"))
    if fault.kind != "drip" and idle < limit and seconds >= idle.total_seconds():
        await clock.sleep(idle.total_seconds())
        raise NoReplyError(describe_silence(idle.total_seconds(), "idle_timeout")) from TimeoutError()
    if seconds >= limit.total_seconds():
        await clock.sleep(limit.total_seconds())
        raise DeadlineExceededError(limit)
    await clock.sleep(seconds)


def _receive(request: httpx.Request, response: Response) -> httpx.Response:
    """Return what a client receives of a response that meets its fault."""
    headers = {"content-type": "application/json", **response.headers}
    match response.fault and response.fault.kind:
        case "close":
            raise httpx.ReadError("") from aiohttp.ServerDisconnectedError()
        case "reset":
            raise httpx.ConnectError("") from aiohttp.ClientOSError(errno.ECONNRESET, "Connection reset by peer")
        case "cut" | "reset_in_body":
            return httpx.Response(response.status, headers=headers, stream=_Half(response.body), request=request)
        case _:
            return httpx.Response(response.status, headers=headers, stream=_Whole(response.body), request=request)


class _Whole(httpx.AsyncByteStream):
    """The body of a reply."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


class _Half(_Whole):
    """The first half of a body, and the end of its connection."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body[: len(self._body) // 2]
        raise httpx.ReadError("") from aiohttp.ClientPayloadError("Response payload is not completed")
