"""One call of a model: its arguments, its door, its answer and what it costs.

A call of a provider that perdure knows goes through ``provider_door``, any other through ``litellm_door``. Behind both,
``provider_reading`` reads the answer. litellm takes seconds to import, so that only a call that needs it does that.

Long, because the arguments of a call, its exchange and the judgement of its answer are read together.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from perdure.activities.faults import MISTAKES
from perdure.activities.models import provider_door, provider_requests, providers
from perdure.activities.models.encoders.chat import OF_TOOLS
from perdure.activities.models.estimates import fill_counts, usage_of
from perdure.activities.models.facts import cost_of, facts_about, price_of, without_prices
from perdure.activities.models.failures import facts_of
from perdure.activities.models.forms import FORMS, Form, Learnt, refuses_streams
from perdure.activities.models.keys import MissingKeyError, require_key
from perdure.activities.models.limits import TOOL_LIMITS, WHOLE_ONLY
from perdure.activities.models.provider_http import stand_in
from perdure.activities.models.provider_messages import as_sent
from perdure.activities.models.provider_packets import Patience
from perdure.activities.models.provider_reading import show_answer
from perdure.activities.models.provider_replies import (
    InvalidReplyError,
    RedirectedError,
    StreamCutError,
    UnusableAnswerError,
    UnusableReplyError,
)
from perdure.activities.models.reasoning import reasoning_of
from perdure.activities.models.wires import CHAT, MESSAGES, chat
from perdure.activities.models.wires.reply import LONGEST_WHY, Answered, Shown, Source
from perdure.contracts.agents import OUTPUT_SCHEMA, AgentDefinition, ToolMode, fill_call_variables
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.generations import CUT_OFF
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.contracts.values import JsonValue, replace, replace_surrogates
from perdure.libraries import LibraryMismatchError
from perdure.llm.openai_format import WireMessage
from perdure.llm.strict_schemas import fit
from perdure.llm.text_tools import calls_in, describe_tools, to_text
from perdure.llm.tool_schemas import ShownTools

logger = logging.getLogger("perdure.worker")

IN_TEXT: ToolMode = "json-in-xml"
"""Tool mode that replaces ``auto`` for a model without tool calls of its own."""


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
    source: Source = field(default_factory=Source, compare=False)
    """Its origin, as the provider says it."""


_OF_CHAT = frozenset({"messages", "tools", "response_format", "api_base", "api_key"})
"""Arguments of a call that every server like OpenAI's takes."""

NOWHERE = "http://127.0.0.1:9/v1"
"""The discard port of this machine: nothing listens there."""

_LITELLM_DOOR = "perdure.activities.models.litellm_door"


async def load_litellm() -> Any:  # noqa: ANN401 - a module
    """The door to every provider that perdure does not know; the first call imports litellm, on a thread."""
    loaded = sys.modules.get(_LITELLM_DOOR)
    return loaded if loaded is not None else await asyncio.to_thread(importlib.import_module, _LITELLM_DOOR)


def _is_known(model: str) -> bool:
    return model.partition("/")[0] in providers.PROVIDERS


async def warm_up(models: Iterable[str]) -> None:
    """Import litellm before the worker polls, if one of its models is called through it.

    Raises:
        LibraryMismatchError: litellm is not as perdure expects it, or not there.
    """
    foreign = next((model for model in models if not _is_known(model)), None)
    if foreign is None:
        return
    try:
        await load_litellm()
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        msg = f"the model {foreign!r} is called through litellm, which is not installed: pip install 'perdure[worker]'"
        raise LibraryMismatchError(msg) from error


class PromptAssemblyError(Exception):
    """The request for the model could not be put together. Nothing is sent."""


@contextlib.contextmanager
def guard_assembly() -> Iterator[None]:
    """Turn whatever is raised while a request is put together into one error, unless it can only be a fault of code.

    Raises:
        PromptAssemblyError: Says what went wrong, and what to correct.
    """
    try:
        yield
    except (MissingKeyError, PromptAssemblyError, *MISTAKES):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        msg = f"the request for the model could not be put together: {cause}; {_ASSEMBLY_ADVICE}"
        raise PromptAssemblyError(msg) from error


_ASSEMBLY_ADVICE = REASONS[ReasonCode.LLM_PROMPT_ASSEMBLY_ERROR].advice


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


def _enforced(definition: AgentDefinition) -> tuple[JsonValue, bool] | None:
    """The output schema as the provider enforces it beside the tools, and whether strictly; None if it does not.

    Other models get the schema in the system prompt: of Claude 4 litellm makes it a tool that must be called at once,
    Gemini refuses it beside tools, and a schema that does not fit a provider's subset is refused at each turn.
    """
    schema, known = definition.output_schema, facts_about(definition.model)
    if schema is None or schema.get("type") != "object":  # OpenAI takes objects only
        return None
    if Form.SCHEMA_IN_PROMPT in FORMS.of(definition).forms or OUTPUT_SCHEMA in FORMS.refused(definition):
        return None
    if definition.tools and mode_of(definition) != "api":  # a call in text would not fit the schema
        return None
    prefix, _, name = definition.model.partition("/")
    row = providers.PROVIDERS.get(prefix)
    takes = "yes" if row is None else row.schemas
    if takes == "strict" and name.startswith("claude-"):  # at Vertex AI, beside Gemini
        prefix, takes = "anthropic", "native"
    has_own = bool(known.get("supports_native_structured_output"))
    beside_tools = prefix in {"openai", "azure"} or not definition.tools
    has_any = has_own or (takes != "native" and bool(known.get("supports_response_schema")) and beside_tools)
    if takes == "no" or not has_any:
        return None
    fitted = fit(schema, prefix)
    if fitted is None and takes != "yes":
        return None
    return (schema, False) if fitted is None else (fitted, True)


def output_instructions(definition: AgentDefinition) -> str:
    """The part of the system prompt about the output schema; empty if the provider enforces the schema."""
    if definition.output_schema is None or _enforced(definition) is not None:
        return ""
    schema = json.dumps(definition.output_schema, ensure_ascii=False)
    return f"When you are done, answer with JSON only and no text around it. It must fit this JSON schema:\n{schema}"


def _response_format(definition: AgentDefinition) -> dict[str, JsonValue]:
    if (enforced := _enforced(definition)) is None:
        return {}
    schema, is_strict = enforced
    form: JsonValue = {"name": "answer", "schema": schema, "strict": is_strict}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


async def complete(
    definition: AgentDefinition,
    messages: list[WireMessage],
    *,
    most_tokens: int | None = None,
    shown: Shown | None = None,
) -> Answer:
    """Call the model once. Temporal is the only layer that retries, so litellm and the SDKs are told not to.

    With ``most_tokens``, the answer has no more, and one that was cut off there is accepted. With ``shown``, the
    provider is asked for a stream, unless it is known to have none, and the pieces are shown as they come. If the
    provider refuses tools, or so many, the call is made again at once with the tools in the system prompt, and if it
    refuses what perdure has added, in the form that it asks for; later calls of this worker begin so.

    Raises:
        MissingKeyError: No key is set for the provider.
        PromptAssemblyError: The request could not be put together.
        EmptyAnswerError: There is neither text nor a call in the answer.
        ContentFilteredError: The answer was cut off by the provider's policy.
        TruncatedAnswerError: The answer was cut off at its longest allowed length.
        RefusedAnswerError: The model refused to answer.
        Exception: Whatever litellm raises; ``perdure.activities.models.failures`` knows them.
    """
    if not _is_known(definition.model):
        await load_litellm()
    require_key(definition)
    chooses = bool(definition.tools) and definition.tool_mode == "auto" and mode_of(definition) == "api"
    while True:
        in_text = chooses and TOOL_LIMITS.are_exceeded(definition)
        asked = _with_text_tools(definition, messages) if in_text else (definition, messages)
        added, streams = _added(definition, most_tokens, shown), shown is not None and not WHOLE_ONLY.has(definition)
        try:
            return await _call_once(*asked, most_tokens, shown)
        except Exception as error:
            facts = facts_of(error, datetime.now(UTC))
            if FORMS.learn(definition, facts, added, _bound_added(definition, most_tokens)):
                if Form.SCHEMA_IN_PROMPT in added and _enforced(definition) is None:
                    messages = _with_system(definition, messages)
            elif streams and refuses_streams(facts):
                WHOLE_ONLY.add(definition, error)
            elif not (chooses and not in_text and TOOL_LIMITS.learn(definition, facts)):
                raise


def _added(definition: AgentDefinition, most_tokens: int | None, shown: Shown | None) -> frozenset[Form]:
    """The forms in whose place perdure itself puts something into this call."""
    params = definition.generate_params
    own = {
        Form.COMPLETION_CEILING: most_tokens is not None,
        Form.SCHEMA_IN_PROMPT: _enforced(definition) is not None,
        Form.NO_CHOICE: params.get("tool_choice") == "none",
        Form.OTHER_THINKING: "reasoning_effort" in params and "thinking" not in params,
        Form.NO_MARKS: definition.cache != "off",
        Form.NO_USAGE: shown is not None and "stream_options" not in params,
    }
    return frozenset(form for form in Form if own.get(form, True))


def _bound_added(definition: AgentDefinition, most_tokens: int | None) -> int | None:
    """The bound of an answer in tokens that perdure has added; None of one that is the author's, or without any."""
    params = definition.generate_params
    if most_tokens is not None or params.keys() & {"max_tokens", "max_completion_tokens"}:
        return most_tokens
    return provider_requests.bound_of(definition.model, has_effort="reasoning_effort" in params)


def _with_text_tools(
    definition: AgentDefinition, messages: list[WireMessage]
) -> tuple[AgentDefinition, list[WireMessage]]:
    """The same call with the tools in the system prompt."""
    changed = replace(definition, tool_mode=IN_TEXT)
    return changed, _with_system(changed, messages)


def _with_system(definition: AgentDefinition, messages: list[WireMessage]) -> list[WireMessage]:
    """The conversation with the system prompt that the definition has now."""
    return [*system_prompt(definition), *(message for message in messages if message.get("role") != "system")]


def _without_choice(definition: AgentDefinition) -> AgentDefinition:
    """The definition of a call for a text, without tools in place of a choice."""
    params = {name: value for name, value in definition.generate_params.items() if name != "tool_choice"}
    return replace(definition, tools=(), generate_params=params)


async def _call_once(
    definition: AgentDefinition, messages: list[WireMessage], most_tokens: int | None, shown: Shown | None
) -> Answer:
    learnt = FORMS.of(definition)
    if Form.NO_CHOICE in learnt.forms and definition.generate_params.get("tool_choice") == "none":
        definition = _without_choice(definition)
    mode = mode_of(definition)
    with guard_assembly():
        tools = ShownTools(definition.tools if mode == "api" else ())
        bound = _bound(definition, most_tokens, learnt)
        arguments = {**_arguments(definition, mode, messages, tools), **bound}
    if shown is not None and WHOLE_ONLY.has(definition):
        shown = None
    try:
        answered = await _ask(definition, arguments, shown, has_calls_in_text=mode != "api" and bool(definition.tools))
    except UnusableReplyError as error:
        if isinstance(error, StreamCutError) and error.has_ended_well:
            WHOLE_ONLY.add(definition, error)
        raise _with_price(error, definition, arguments) from None
    answered = fill_counts(answered, arguments)
    try:
        answer = _answer(answered, definition, may_be_cut=most_tokens is not None)
    except UnusableAnswerError as error:
        error.paid = Paid().plus(answered.counts.usage, cost_of(answered.counts, definition))
        raise
    if mode == "api" or not definition.tools or answer.finish_reason == CUT_OFF:
        return replace(answer, calls=tools.read_calls(answer.calls))
    return await asyncio.to_thread(_with_calls, answer, mode, definition.tools)


async def _ask(
    definition: AgentDefinition, arguments: Mapping[str, Any], shown: Shown | None, *, has_calls_in_text: bool
) -> Answered:
    """The model's answer, by the door of its provider; through litellm's it is shown when it is whole."""
    if shown is not None:
        shown.begin(has_calls_in_text=has_calls_in_text)
    instead = stand_in.get()
    completion = None if instead is None else await instead.answer(definition, arguments)
    if completion is not None:
        return show_answer(chat.read(completion), shown)
    reach = {} if instead is None else {"api_base": NOWHERE, "api_key": "sk-stand-in"}
    asked, streams = {**arguments, **reach}, shown is not None
    with guard_assembly():
        learnt = FORMS.of(definition)
        request = provider_requests.prepare(asked, streams=streams, learnt=learnt)
        if instead is not None and (request is None or request.wire not in {CHAT, MESSAGES}):  # it has no other
            of_chat = {name: asked[name] for name in _OF_CHAT & asked.keys()}
            in_chat = {**of_chat, "model": "custom_openai/any"}
            request = provider_requests.prepare(in_chat, streams=streams, learnt=learnt)
    if request is not None:
        return await provider_door.send(request, shown, _patience_of(definition))
    return show_answer(await (await load_litellm()).complete(asked), shown)


def _patience_of(definition: AgentDefinition) -> Patience:
    """The longest silences of a call, as the settings of its agent say."""
    behind = definition.stream_idle_timeout
    return Patience(definition.idle_timeout.total_seconds(), None if behind is None else behind.total_seconds())


def _arguments(
    definition: AgentDefinition, mode: ToolMode, messages: list[WireMessage], tools: ShownTools
) -> dict[str, Any]:
    """The arguments of litellm's call."""
    sent = tools.show_calls(messages) if mode == "api" else to_text(mode, messages, definition.tools)
    declared = tools.declarations()
    own: dict[str, Any] = {
        "model": definition.model,
        "messages": as_sent(definition, sent, FORMS.of(definition).forms),
        "timeout": definition.idle_timeout.total_seconds(),  # of litellm, whose time-out bounds a silence
        "num_retries": 0,
        "max_retries": 0,
        **({"tools": declared} if declared else {}),
        **_response_format(definition),
    }
    environment = os.environ if stand_in.get() is None else defaultdict(lambda: "stand-in", os.environ)
    left_out = FORMS.refused(definition) | (OF_TOOLS if not declared else frozenset[str]())
    params = definition.without_wishes(left_out).generate_params
    given = fill_call_variables(without_prices(params), environment)
    twice = sorted(own.keys() & given.keys())
    if twice:
        msg = f"generate_params sets {' and '.join(twice)}, which perdure sets itself; leave that out"
        raise PromptAssemblyError(msg)
    return {**given, **own}


def _bound(definition: AgentDefinition, most_tokens: int | None, learnt: Learnt) -> dict[str, Any]:
    """The argument that bounds an answer, by the name that the agent's settings have or its model has asked for."""
    if most_tokens is None:
        return {}
    is_new = "max_completion_tokens" in definition.generate_params or Form.COMPLETION_CEILING in learnt.forms
    return {"max_completion_tokens" if is_new else "max_tokens": learnt.fitted(most_tokens)}


def _with_price(
    error: UnusableReplyError, definition: AgentDefinition, arguments: Mapping[str, Any]
) -> UnusableReplyError:
    """The failure of an unusable reply, with the cost of its tokens."""
    if isinstance(error, RedirectedError):
        return RedirectedError(_redirect_advice(str(error), definition))
    usage = usage_of(error, arguments)
    error.paid = Paid().plus(usage, price_of(definition, usage))
    return error


def _redirect_advice(origin: str, definition: AgentDefinition) -> str:
    provider = definition.model.partition("/")[0].upper()
    variable = f"{provider}_BASE_URL" if provider in {"OPENAI", "ANTHROPIC"} else f"{provider}_API_BASE"
    return (
        f"the provider's address redirects to {origin}, and nothing was sent there; set api_base in the agent's "
        f"generate_params, or {variable} in the worker's environment, to the address that answers"
    )


def _with_calls(answer: Answer, mode: ToolMode, tools: tuple[ToolDeclaration, ...]) -> Answer:
    """The answer with the tool calls parsed out of its text, and the finish reason of an answer with calls."""
    text, found = calls_in(mode, answer.text, tools)
    if not found:
        return answer
    calls = (replace(call, arguments=replace_surrogates(call.arguments)) for call in found)
    return replace(answer, text=text, calls=(*answer.calls, *calls), finish_reason="tool_calls")


JSON_TOOL = "json_tool_call"
"""Name of the tool that litellm has a model call to answer in JSON, where the provider has no other way."""


def _answer(answered: Answered, definition: AgentDefinition, *, may_be_cut: bool) -> Answer:
    text, calls, finish_reason = answered.text, answered.calls, str(answered.end)
    if definition.output_schema is not None and [call.name for call in calls] == [JSON_TOOL]:
        text, calls, finish_reason = calls[0].arguments, (), "stop"
    if finish_reason == "content_filter":
        msg = (
            f"the provider's content policy cut the answer off: {answered.why[:LONGEST_WHY] or text[:200] or 'no text'}"
        )
        raise ContentFilteredError(msg)
    if finish_reason == CUT_OFF and may_be_cut:
        text, calls = f"{text}\n[cut off here: more of this answer was not affordable]".strip(), ()
    elif finish_reason == CUT_OFF:
        msg = f"the answer was cut off after {len(text):,} characters of text and {len(calls)} tool calls"
        raise TruncatedAnswerError(msg)
    if answered.refusal and not calls:
        raise RefusedAnswerError(answered.refusal)
    if finish_reason == "tool_calls" and not calls:
        msg = "the answer ends with tool calls, and has none"
        raise InvalidReplyError(msg, answered.counts.usage)
    if not text.strip() and not calls:
        msg = f"the model answered with neither text nor a tool call (finish_reason {finish_reason or 'missing'})"
        raise EmptyAnswerError(msg)
    return Answer(
        text=text,
        calls=calls,
        thinking=reasoning_of(definition, answered.reasoning),
        finish_reason=finish_reason,
        usage=answered.counts.usage,
        cost_usd=cost_of(answered.counts, definition),
        source=answered.source,
    )
