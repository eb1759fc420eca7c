"""The one place that knows litellm: a quiet import, one call, one whole answer.

litellm takes seconds to import and does much unasked, so ``perdure.activities`` sets its environment variables first.
A worker imports this module once, before it polls.

Long, because what is peculiar to litellm stands in one place, from its settings to the answers it makes.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn, cast

import litellm
from litellm._internal_context import is_internal_call  # pyright: ignore[reportMissingTypeStubs]
from litellm.litellm_core_utils.llm_response_utils import (  # pyright: ignore[reportMissingTypeStubs]
    convert_dict_to_response,
)
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler  # pyright: ignore[reportMissingTypeStubs]
from litellm.llms.openai.chat import gpt_transformation  # pyright: ignore[reportMissingTypeStubs]
from litellm.types.utils import CustomPricingLiteLLMParams  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities import provider_http
from perdure.activities.failures import cause_chain, facts_of
from perdure.activities.provider_http import stand_in
from perdure.activities.provider_messages import add_cache_marks, reasoning_of, with_content, with_reasoning
from perdure.activities.provider_replies import (
    MOST_TOKENS,
    InvalidReplyError,
    RedirectedError,
    StreamCutError,
    UnusableAnswerError,
    UnusableReplyError,
)
from perdure.activities.streaming import Shown, ask, show_whole
from perdure.contracts.agents import AgentDefinition, ToolMode, fill_call_variables, names_of_call
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.generations import CUT_OFF
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.contracts.values import JsonValue, replace, replace_surrogates
from perdure.llm.failures import classify
from perdure.llm.openai_format import WireMessage, openai_tools
from perdure.llm.structured_output import is_strict
from perdure.llm.text_tools import calls_in, describe_tools, to_text

PRICES = frozenset(CustomPricingLiteLLMParams.model_fields)
"""Names of litellm's price settings, which an agent may give in its generate_params."""

SILENCE_SECONDS = 600.0
"""litellm's timeout, which bounds a silence. Constant, because litellm makes an HTTP client for each value."""


def quiet() -> None:
    """Stop litellm from printing, from handling its own log records, and from sending a call a second time.

    Whatever the retry settings say, its handler repeats a request whose connection was reset before the reply. The
    provider may have done the work, and would be paid twice. A test counts the requests, so a release of litellm that
    renames the method is noticed.
    """
    AsyncHTTPHandler.single_connection_post_request = _refuse_repeat  # type: ignore[method-assign]
    for module in (gpt_transformation, convert_dict_to_response):
        vars(module)["handle_invalid_parallel_tool_calls"] = _unpack_calls
    provider_http.install()
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)


async def _refuse_repeat(*_: object, **__: object) -> NoReturn:
    """Raise the connection error that is being handled, in place of litellm's hidden repeat."""
    raise sys.exception() or ConnectionError("the connection was lost before the reply")


_litellms_unpacked_calls = cast("Callable[[Any], Any]", convert_dict_to_response.handle_invalid_parallel_tool_calls)


def _unpack_calls(tool_calls: Any) -> Any:  # noqa: ANN401
    """Unpack parallel calls that a model packed into one, as litellm does; unchanged if litellm fails at them."""
    try:
        return _litellms_unpacked_calls(tool_calls)
    except Exception:  # noqa: BLE001 - whatever is wrong with arguments is for the model to read
        return tool_calls


quiet()


IN_TEXT: ToolMode = "json-in-xml"
"""What tool mode ``auto`` becomes for a model without tool calls of its own."""


class EmptyAnswerError(UnusableAnswerError):
    """The model answered with neither text nor a tool call."""


class ContentFilteredError(UnusableAnswerError):
    """The provider cut the answer off by its content policy."""


class TruncatedAnswerError(UnusableAnswerError):
    """The answer was cut off at its longest allowed length; a tool call in it is not what the model meant."""


class RefusedAnswerError(UnusableAnswerError):
    """The model refused, and said so beside the content (OpenAI's ``refusal``)."""


@dataclass(frozen=True)
class Answer:
    """One whole answer of a model."""

    text: str
    calls: tuple[RawCall, ...]
    thinking: tuple[JsonValue, ...]
    finish_reason: str
    usage: Usage
    cost_usd: Decimal | None
    recorded: bool = False
    """Whether it comes from a recording, so that no provider was asked."""


NOWHERE = "http://127.0.0.1:9/v1"
"""The discard port of this machine: nothing listens there."""

WARMED = frozenset({"openai", "anthropic"})
"""Providers whose address can be given with a call, so that a call to nowhere stays on this machine."""


async def warm_up(models: Iterable[str]) -> None:
    """Pay for each provider's first call before the worker polls: it builds clients and blocks the event loop.

    The call goes to a closed port and fails; litellm has then loaded what the first real call needs.
    """
    for provider in sorted(WARMED & {model.partition("/")[0] for model in models}):
        with contextlib.suppress(Exception):
            await litellm.acompletion(
                model=f"{provider}/warm-up",
                messages=[{"role": "user", "content": "warm-up"}],
                tools=[{"type": "function", "function": {"name": "warm_up", "parameters": {"type": "object"}}}],
                api_base=NOWHERE,
                api_key="warm-up",
                timeout=SILENCE_SECONDS,
                num_retries=0,
                max_retries=0,
            )


class PromptAssemblyError(Exception):
    """The request for the model could not be put together. Nothing is sent."""


@contextlib.contextmanager
def guard_assembly() -> Iterator[None]:
    """Turn whatever is raised while a request is put together into one error.

    Raises:
        PromptAssemblyError: Says what went wrong, and what to correct.
    """
    try:
        yield
    except (MissingKeyError, PromptAssemblyError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        msg = f"the request for the model could not be put together: {cause}; {_ASSEMBLY_ADVICE}"
        raise PromptAssemblyError(msg) from error


_ASSEMBLY_ADVICE = REASONS[ReasonCode.LLM_PROMPT_ASSEMBLY_ERROR].advice


class MissingKeyError(Exception):
    """The worker's environment lacks variables that the call needs; the text names them. Nothing is sent."""


@functools.cache
def _find_missing_keys(model: str) -> tuple[str, ...]:
    """The variables that litellm wants for a model and does not find. A worker's environment does not change."""
    found = cast("dict[str, Any]", litellm.validate_environment(model=model))
    return () if found["keys_in_environment"] else tuple(found["missing_keys"])


_OWN_ACCESS = frozenset(
    {
        *("api_base", "base_url", "api_key"),
        *("aws_access_key_id", "aws_bedrock_runtime_endpoint", "aws_profile_name", "aws_role_name"),
        *("azure_ad_token", "client_secret", "vertex_credentials", "vertex_project"),
    }
)
"""Arguments that give a call its key or address, so that it needs no variable of its provider."""


async def _response(
    definition: AgentDefinition, arguments: Mapping[str, Any], exchange: provider_http.Exchange, shown: Shown | None
) -> Any:  # noqa: ANN401 - litellm's
    instead = stand_in.get()
    completion = None if instead is None else await instead.answer(definition, arguments)
    if completion is None:
        reach = {} if instead is None else {"api_base": NOWHERE, "api_key": "sk-stand-in"}
        response: Any = await ask({**reach, **arguments}, exchange, shown)
        if shown is None:
            return response
    else:
        response = convert_dict_to_response.convert_to_model_response_object(
            response_object=completion, model_response_object=litellm.ModelResponse()
        )
        if shown is not None:
            show_whole(response, shown)
    if facts_about(definition.model):
        response._hidden_params["response_cost"] = litellm.completion_cost(response, model=definition.model)  # noqa: SLF001
    return response


def require_key(definition: AgentDefinition) -> None:
    """Refuse a call without a key; a model at an address of the author's own needs none.

    Raises:
        MissingKeyError: Names the variables to set.
    """
    if stand_in.get() is not None:
        return
    params = definition.generate_params
    missing = tuple(name for name in names_of_call(params) if not os.environ.get(name))
    if _OWN_ACCESS.isdisjoint(params):
        missing += _find_missing_keys(definition.model)
    if missing:
        raise MissingKeyError(" and ".join(missing))


_CALLBACKS = (
    "callbacks",
    "success_callback",
    "failure_callback",
    "_async_success_callback",  # where litellm moves those that are coroutines
    "_async_failure_callback",
)


def _is_listened_to() -> bool:
    """Whether an agent's module has registered litellm callbacks, such as a tracer's."""
    return any(getattr(litellm, name) for name in _CALLBACKS)


@functools.cache
def facts_about(model: str) -> dict[str, Any]:
    """The entry of a model in litellm's map of prices and context windows; empty if it has none.

    Read directly, because litellm's own functions may ask the provider, which blocks the event loop.
    """
    provider, _, name = model.partition("/")
    costs = cast("dict[str, dict[str, Any]]", litellm.model_cost)
    entry = costs.get(model) or costs.get(name) or {}
    return entry if str(entry.get("litellm_provider", "")).startswith(provider) else {}


def context_window(model: str) -> int | None:
    """Longest prompt of a model in tokens, by litellm's map; None if the map does not have it."""
    window = facts_about(model).get("max_input_tokens")
    return window if isinstance(window, int) else None


def mode_of(definition: AgentDefinition) -> ToolMode:
    """The agent's tool mode, with ``auto`` resolved for its model.

    A model that litellm's map has without tool calls gets tools in text, which works with every model. A model that the
    map does not have is new or self-hosted: most of these have tool calls.
    """
    if definition.tool_mode != "auto":
        return definition.tool_mode
    known = facts_about(definition.model)
    return "api" if not known or known.get("supports_function_calling") is True else IN_TEXT


def system_prompt(definition: AgentDefinition) -> list[WireMessage]:
    """The first message of each request, if there is anything to say."""
    mode = mode_of(definition) if definition.tools else "api"
    told = describe_tools(mode, definition.tools) if mode != "api" else ""
    text = "\n\n".join(part for part in (definition.instructions, told, output_instructions(definition)) if part)
    return [{"role": "system", "content": text}] if text else []


def _is_constrained(definition: AgentDefinition) -> bool:
    """Whether the provider enforces the agent's output schema (OpenAI's ``response_format``) beside its tools.

    For other models litellm makes the schema a tool that must be called at once (Claude 4), or sends what the provider
    refuses beside tools (Gemini). Those get the schema in the system prompt.
    """
    schema, known = definition.output_schema, facts_about(definition.model)
    if schema is None or schema.get("type") != "object":  # OpenAI takes objects only
        return False
    if definition.tools and mode_of(definition) != "api":  # a call in text would not fit the schema
        return False
    of_openai = definition.model.partition("/")[0] in {"openai", "azure"}
    native = bool(known.get("supports_native_structured_output"))
    return native or (bool(known.get("supports_response_schema")) and (of_openai or not definition.tools))


def output_instructions(definition: AgentDefinition) -> str:
    """The part of the system prompt about the output schema; empty if the provider enforces the schema."""
    if definition.output_schema is None or _is_constrained(definition):
        return ""
    schema = json.dumps(definition.output_schema, ensure_ascii=False)
    return f"When you are done, answer with JSON only and no text around it. It must fit this JSON schema:\n{schema}"


def _response_format(definition: AgentDefinition) -> dict[str, JsonValue]:
    schema = definition.output_schema
    if schema is None or not _is_constrained(definition):
        return {}
    form: JsonValue = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


class ToolLimits:
    """The least number of tools that each model has refused, by model and address.

    Kept in memory only: a refusal costs no more than its round trip, so another worker may meet it again.
    """

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], int] = {}

    def are_exceeded(self, definition: AgentDefinition) -> bool:
        """Whether the agent has as many tools as its model is known to refuse."""
        refused = self._refused.get(_destination_of(definition))
        return refused is not None and len(definition.tools) >= refused

    def learn(self, definition: AgentDefinition, error: BaseException) -> bool:
        """Remember a call that failed because the agent has too many tools; False if it failed otherwise."""
        if classify(facts_of(error, datetime.now(UTC))) != ReasonCode.LLM_TOO_MANY_TOOLS:
            return False
        place, count = _destination_of(definition), len(definition.tools)
        self._refused[place] = min(count, self._refused.get(place, count))
        return True


def _destination_of(definition: AgentDefinition) -> tuple[str, str]:
    params = definition.generate_params
    return definition.model, str(params.get("api_base") or params.get("base_url") or "")


_TOOL_LIMITS = ToolLimits()

_WHOLE_ONLY: set[tuple[str, str]] = set()
"""Models, with their addresses, whose streams end in good order but without usage: they are not streamed any more."""


async def complete(
    definition: AgentDefinition,
    messages: list[WireMessage],
    *,
    may_be_cut: bool = False,
    shown: Shown | None = None,
) -> Answer:
    """Call the model once. Temporal is the only layer that retries, so litellm and the SDKs are told not to.

    With ``may_be_cut``, an answer that was cut off at its longest allowed length is accepted. With ``shown``, the
    provider is asked for a stream, unless it is known to have none, and the pieces are shown as they come. If the
    provider refuses the number of tools, the call is made again at once with the tools in the system prompt; later
    calls of this worker begin with that.

    Raises:
        MissingKeyError: No key is set for the provider.
        PromptAssemblyError: The request could not be put together.
        EmptyAnswerError: There is neither text nor a call in the answer.
        ContentFilteredError: The answer was cut off by the provider's policy.
        TruncatedAnswerError: The answer was cut off at its longest allowed length.
        RefusedAnswerError: The model refused to answer.
        Exception: Whatever litellm raises; ``perdure.activities.failures`` knows them.
    """
    require_key(definition)
    chooses = definition.tool_mode == "auto" and mode_of(definition) == "api"
    if chooses and _TOOL_LIMITS.are_exceeded(definition):
        return await _call_litellm(*_with_text_tools(definition, messages), may_be_cut, shown)
    try:
        return await _call_litellm(definition, messages, may_be_cut, shown)
    except Exception as error:
        if not (chooses and definition.tools and _TOOL_LIMITS.learn(definition, error)):
            raise
    return await _call_litellm(*_with_text_tools(definition, messages), may_be_cut, shown)


def _with_text_tools(
    definition: AgentDefinition, messages: list[WireMessage]
) -> tuple[AgentDefinition, list[WireMessage]]:
    """The same call with the tools in the system prompt."""
    changed = replace(definition, tool_mode=IN_TEXT)
    return changed, [*system_prompt(changed), *(message for message in messages if message.get("role") != "system")]


async def _call_litellm(
    definition: AgentDefinition, messages: list[WireMessage], may_be_cut: bool, shown: Shown | None
) -> Answer:
    # litellm assembles, copies and redacts a log record of each call, a third of its time, also when nobody reads it.
    is_internal_call.set(not _is_listened_to())
    mode = mode_of(definition)
    with guard_assembly():
        arguments = _arguments(definition, mode, messages)
    if shown is not None and _destination_of(definition) in _WHOLE_ONLY:
        shown = None
    if shown is not None:
        shown.begin(has_calls_in_text=mode != "api" and bool(definition.tools))
    with provider_http.guard_exchanges(streams=shown is not None) as exchange:
        try:
            response: Any = await _response(definition, arguments, exchange, shown)
        except Exception as error:
            if isinstance(error, StreamCutError) and error.has_ended_well:
                _WHOLE_ONLY.add(_destination_of(definition))
            unusable = _error_of_unusable(error, exchange.usage, definition)
            if unusable is None:
                if exchange.headers and not getattr(error, "litellm_response_headers", None):
                    error.litellm_response_headers = exchange.headers  # type: ignore[attr-defined]
                raise
            raise unusable from None
    try:
        answer = _answer(response, definition, may_be_cut)
    except UnusableAnswerError as error:
        error.paid = Paid().plus(_usage(getattr(response, "usage", None)), _cost(response, definition))
        raise
    if mode == "api" or not definition.tools or answer.finish_reason == CUT_OFF:
        return answer
    return await asyncio.to_thread(_with_calls, answer, mode, definition.tools)


def _arguments(definition: AgentDefinition, mode: ToolMode, messages: list[WireMessage]) -> dict[str, Any]:
    """The arguments of litellm's call."""
    tools = openai_tools(definition.tools) if mode == "api" else []
    sent = messages if mode == "api" else to_text(mode, messages, definition.tools)
    own: dict[str, Any] = {
        "model": definition.model,
        "messages": add_cache_marks(definition, with_content(definition.model, with_reasoning(definition.model, sent))),
        "timeout": SILENCE_SECONDS,
        "num_retries": 0,
        "max_retries": 0,
        **({"tools": tools} if tools else {}),
        **_response_format(definition),
    }
    environment = os.environ if stand_in.get() is None else defaultdict(lambda: "stand-in", os.environ)
    given = fill_call_variables(_without_prices(definition.generate_params), environment)
    twice = sorted(own.keys() & given.keys())
    if twice:
        msg = f"generate_params sets {' and '.join(twice)}, which perdure sets itself; leave that out"
        raise PromptAssemblyError(msg)
    return {**given, **own}


_UNREAD = frozenset({"APIConnectionError", "APIError", "InternalServerError"})
"""Classes that litellm raises for a reply that it did not expect."""


def _error_of_unusable(error: Exception, usage: Usage | None, definition: AgentDefinition) -> UnusableReplyError | None:
    """The error of a reply that is no answer, out of litellm's exception; None if the call failed otherwise.

    Args:
        error: The exception that litellm raised.
        usage: The provider's usage, if the reply passed for an answer before litellm read it.
        definition: The agent whose call it is.
    """
    chain = (error, *cause_chain(error))
    unusable = next((link for link in chain if isinstance(link, UnusableReplyError)), None)
    if isinstance(unusable, RedirectedError):
        return RedirectedError(_redirect_advice(str(unusable), definition))
    if unusable is None and usage is not None and type(error).__name__ in _UNREAD:
        root = chain[-1]
        text = f"the reply has no {root}" if isinstance(root, KeyError) else "the reply has not the shape of an answer"
        unusable = InvalidReplyError(text, usage)
    if unusable is not None:
        unusable.paid = Paid().plus(unusable.usage, _price(definition, unusable.usage))
    return unusable


def _redirect_advice(origin: str, definition: AgentDefinition) -> str:
    provider = definition.model.partition("/")[0].upper()
    variable = f"{provider}_BASE_URL" if provider in {"OPENAI", "ANTHROPIC"} else f"{provider}_API_BASE"
    return (
        f"the provider's address redirects to {origin}, and nothing was sent there; set api_base in the agent's "
        f"generate_params, or {variable} in the worker's environment, to the address that answers"
    )


def _price(definition: AgentDefinition, usage: Usage) -> Decimal | None:
    """US dollars of a reply that litellm could not read, by the agent's prices or litellm's map."""
    prices: dict[str, Any] = {**facts_about(definition.model), **definition.generate_params}
    read, written = prices.get("input_cost_per_token"), prices.get("output_cost_per_token")
    if not isinstance(read, int | float) or not isinstance(written, int | float):
        return None
    return Decimal(str(read)) * usage.input_tokens + Decimal(str(written)) * usage.output_tokens


def _with_calls(answer: Answer, mode: ToolMode, tools: tuple[ToolDeclaration, ...]) -> Answer:
    """The answer with the tool calls parsed out of its text, and the finish reason of an answer with calls."""
    text, found = calls_in(mode, answer.text, tools)
    if not found:
        return answer
    calls = (replace(call, arguments=replace_surrogates(call.arguments)) for call in found)
    return replace(answer, text=text, calls=(*answer.calls, *calls), finish_reason="tool_calls")


def _answer(response: Any, definition: AgentDefinition, may_be_cut: bool) -> Answer:  # noqa: ANN401 - litellm's
    choice = response.choices[0]
    message = choice.message
    extra: dict[str, Any] = getattr(message, "provider_specific_fields", None) or {}
    text = replace_surrogates(message.content or "")
    refusal = replace_surrogates(extra.get("refusal") or "")
    calls = tuple(
        RawCall(
            name=replace_surrogates(str(call.function.name or "")),
            arguments=replace_surrogates(str(call.function.arguments or "{}")),
        )
        for call in message.tool_calls or ()
    )
    finish_reason = str(choice.finish_reason or "")
    if finish_reason == "content_filter":
        msg = f"the provider's content policy cut the answer off: {text[:200] or 'no text'}"
        raise ContentFilteredError(msg)
    if finish_reason == CUT_OFF and may_be_cut:
        text, calls = f"{text}\n[cut off here: more of this answer was not affordable]".strip(), ()
    elif finish_reason == CUT_OFF:
        msg = f"the answer was cut off after {len(text):,} characters of text and {len(calls)} tool calls"
        raise TruncatedAnswerError(msg)
    if refusal and not calls:
        raise RefusedAnswerError(refusal)
    if not text.strip() and not calls:
        msg = f"the model answered with neither text nor a tool call (finish_reason {finish_reason or 'missing'})"
        raise EmptyAnswerError(msg)
    return Answer(
        text=text,
        calls=calls,
        thinking=reasoning_of(definition.model, message, message.tool_calls or ()),
        finish_reason=finish_reason,
        usage=_usage(getattr(response, "usage", None)),
        cost_usd=_cost(response, definition),
    )


def _usage(usage: Any) -> Usage:  # noqa: ANN401
    if usage is None:
        return Usage()
    details = getattr(usage, "prompt_tokens_details", None)
    return Usage(
        input_tokens=_count(usage.prompt_tokens),
        output_tokens=_count(usage.completion_tokens),
        cached_tokens=_count(getattr(details, "cached_tokens", 0)),
    )


def _count(tokens: Any) -> int:  # noqa: ANN401
    """A provider's count of tokens, kept between 0 and ``MOST_TOKENS``."""
    return min(max(int(tokens or 0), 0), MOST_TOKENS)


def _cost(response: Any, definition: AgentDefinition) -> Decimal | None:  # noqa: ANN401
    """US dollars of an answer by the agent's prices or litellm's map; None without a price, which is not free."""
    own = {name: price for name, price in definition.generate_params.items() if name in PRICES}
    cost = getattr(response, "_hidden_params", {}).get("response_cost")
    if own:
        with contextlib.suppress(Exception):  # litellm raises plain exceptions if a price is missing
            cost = litellm.completion_cost(
                completion_response=response,
                model=definition.model,
                custom_pricing=True,
                router_model_id=_name_of_prices(definition.model, json.dumps(own, sort_keys=True)),
            )
    if cost is None:
        return None
    return max(Decimal(f"{cost:.15g}"), Decimal(0))  # the product of a float; further digits are noise


def _without_prices(params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The settings without prices: litellm would apply them to every agent with this model."""
    return {name: value for name, value in params.items() if name not in PRICES}


@functools.cache
def _name_of_prices(model: str, own: str) -> str:
    """Register the model with an agent's prices in litellm's map, under a name of its own; returns the name."""
    name = f"perdure:{model}:{own}"
    entry = {"litellm_provider": model.partition("/")[0], **facts_about(model), **json.loads(own)}
    litellm.register_model({name: entry}, persist_across_reloads=False)
    return name
