"""An agent's definition, frozen at the start of a turn: canonical JSON, named by its hash. Its model and its skills.

Long, because all that a definition says stands in one place.
"""

import hashlib
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from perdure.contracts.budgets import LONGEST_TURN, Budgets
from perdure.contracts.conditions import AnyCondition, StopConditions
from perdure.contracts.hooks import Hooks, OnHookError, conditions_of
from perdure.contracts.input_requests import ApprovalPolicy, Interactive
from perdure.contracts.retention import Retention
from perdure.contracts.retries import Fallback, RetryPolicy, check_no_address
from perdure.contracts.tools import ToolDeclaration, ToolPolicy
from perdure.contracts.values import Authored, JsonValue, Schema, Value, find_repeated, replace, spell_json
from perdure.contracts.variables import REFERENCE, fill_variables, is_credential, names_in


class Skill(Value):
    """A skill, as its ``SKILL.md`` describes it.

    Attributes:
        name: Unique in its capability.
        capability: Name of the group of skills that the skill is part of.
        description: Purpose of the skill, and when to read it; the model sees it before it chooses.
        body: Text that the model gets from the tool ``skill``.
        allowed_tools: Tools that the author means the skill to use; advice, no permission.
        license: The licence, or a pointer to it.
        compatibility: Requirements on the environment.
        metadata: Other notes of the author.
        files: The first other files of the folder.
        folder: The folder on this worker; no part of a definition, because workers differ.
    """

    name: str = Field(min_length=1)
    capability: str = ""
    description: str = Field(min_length=1)
    body: str = ""
    allowed_tools: tuple[str, ...] = ()
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] = {}
    files: tuple[str, ...] = ()
    folder: str = Field(default="", exclude=True)

    @property
    def id(self) -> str:
        """Unique name: ``capability:name``, or the name alone without a capability."""
        return f"{self.capability}:{self.name}" if self.capability else self.name


SHORTEST_SECRET = 8
"""Shortest value that counts as a secret; shorter ones, such as the ``EMPTY`` of local servers, do not."""

_WHERE = re.compile(
    r"(api_(base|key|type|version)|base_url|organization|project|(extra_|default_)?headers|timeout|deployment_(id|url)"
    r"|region_name|custom_llm_provider|ssl_verify|client_id|tenant_id"
    r"|(aws|azure|vertex|watsonx|gcs|oci|sagemaker|databricks|gigachat)_\w+)\Z"
)
_IN_ADDRESS = re.compile(r"://[^/?#]*[^/?#:]@|[?&][\w-]*(?:key|token|secret|sig)=[^&#]{8}", re.IGNORECASE)
_FILE = re.compile(r"[^{}]*\.json|(~|\.)?/[^{}]*")
_WORD = re.compile(rf"[^\s:]{{{SHORTEST_SECRET}}}")


OF_EVERY_PROVIDER = frozenset(
    {
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop"),
        *("tool_choice", "parallel_tool_calls", "reasoning_effort", "user"),
    }
)
"""Parameters that mean the same at each provider, or are left out where they mean nothing."""


PARAMETERS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "seed",
        "service_tier",
        "stop",
        "temperature",
        "thinking",
        "tool_choice",
        "top_k",
        "top_p",
        "verbosity",
    }
)
"""Arguments of a model call that a request may set. Others could send the worker's keys to any address."""


OUTPUT_SCHEMA = "output_schema"
"""Name among the wishes of a definition whose schema is the request's."""

LEAST_CORRECTIONS = 2
"""Answers that may miss the schema of a request before its turn fails, unless the agent allows more."""


def is_destination(name: str) -> bool:
    """Whether the argument is an address, a credential or the like, shared by all models of one provider."""
    return _WHERE.match(name) is not None or is_credential(name)


def texts_that_say_where(params: Mapping[str, JsonValue]) -> Iterator[tuple[str, str, bool]]:
    """The texts in the arguments that say where a call goes.

    Returns:
        Of each the name of its argument or header, the text, and whether it is secret: credentials, all headers, and
        addresses that may hold some.
    """
    for name, value in params.items():
        if is_destination(name):
            yield from _texts(name, value, "headers" in name)


def destination_of(params: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Address and credentials in the arguments: calls with the same ones share the limits of their provider.

    Headers belong to it only where they hold a credential.
    """
    texts = texts_that_say_where(params)
    return [(name, text) for name, text, _ in texts if name in params or is_credential(name)]


def with_where(params: Mapping[str, JsonValue], change: Callable[[str], str]) -> dict[str, JsonValue]:
    """The arguments with other texts in those that say where a call goes."""
    return {name: _map_texts(value, change) if is_destination(name) else value for name, value in params.items()}


def check_params(params: Mapping[str, JsonValue]) -> None:
    """Refuse a credential that is written out, since definitions are stored, and a number that JSON does not have.

    Raises:
        ValueError: There is one; the message does not show the credential.
    """
    for name, value in params.items():
        if spell_json(value) != value:
            msg = f"{name} has a number that is NaN or infinite, which no provider takes; leave it out"
            raise ValueError(msg)
    for name, text, _ in texts_that_say_where(params):
        rest = REFERENCE.sub("", text)
        written = is_credential(name) and _WORD.search(rest) and not _FILE.fullmatch(text)
        if written or _IN_ADDRESS.search(rest):
            msg = f"{name} would be stored as it stands; write '${{NAME}}' and set NAME in the worker's environment"
            raise ValueError(msg)


def _texts(name: str, value: JsonValue, secret: bool) -> Iterator[tuple[str, str, bool]]:
    if isinstance(value, str):
        yield name, value, secret or is_credential(name) or "@" in value or "?" in value
    elif isinstance(value, dict):
        for inner, part in value.items():
            yield from _texts(inner, part, secret)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(name, part, secret)


def _map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _map_texts(part, change) for name, part in value.items()}
    return [_map_texts(part, change) for part in value] if isinstance(value, list) else value


DEFAULT_MAX_STEPS = 1000
"""Generations a turn may use when the author says nothing."""

DEFAULT_GENERATION_TIMEOUT = timedelta(seconds=600)
"""Longest time of one model call, from sending to the last byte."""

DEFAULT_IDLE_TIMEOUT = timedelta(seconds=600)
"""Longest silence of a provider in a model call, whole or streamed."""

NO_TIMEOUT = LONGEST_TURN
"""A time-out of None: Temporal needs some number, and so does a timer."""

MAX_CORRECTIONS = 10
"""Most answers of a turn that may go back to the model because they do not fit the output schema."""

OnToolError = Literal["abort", "feed_back"]
"""Effect of an exception outside a tool's ``catch``: it ends the turn, or goes to the model."""

OnUnknownTool = Literal["feed_back", "abort"]
"""Effect of a call of an unknown tool: an error result for the model, or the end of the turn."""

OnChildError = Literal["return", "propagate"]
"""Effect of a delegate that does not finish: an error result for its caller, or the end of the caller's turn."""

ToolMode = Literal["auto", "api", "xml", "json", "json-in-xml", "json-with-tag", "pythonic"]
"""Form in which a model gets and calls tools: its provider's, or plain text, see ``llm.text_tools``."""


class Compaction(Authored):
    """When and how a conversation that grows too long is summarised.

    What the model reads is then a summary and the last messages; the transcript keeps every message. Source:
    Dreadnode's agent API (threshold, messages kept, share of the budget that one summary covers).

    Attributes:
        threshold: Share of the window above which the next step is preceded by a compaction; None leaves it to the
            provider's refusal.
        window: The model's context window in tokens; None is what litellm knows of the model.
        keep: Fewest messages at the end that stay as they are.
        model: The model that writes the summary, for example a cheaper one; None is the agent's own.
        guidance: The author's instructions for the summary.
    """

    threshold: float | None = Field(default=0.75, gt=0, le=1)
    window: int | None = Field(default=None, ge=1_000)
    keep: int = Field(default=10, ge=2, le=1_000)
    model: str | None = Field(default=None, min_length=1)
    guidance: str = ""


CacheMode = Literal["latest", "off"]
"""Which messages a provider is asked to keep for the next call: see ``perdure.activities.models.provider_messages``."""


StreamMode = Literal["off", "watched", "always"]
"""When a model is asked for its answer as a stream: see ``perdure.activities.streaming``."""


class CompactionPolicy(Value):
    """Context size above which the workflow compacts; None if only a provider's refusal leads to a compaction."""

    above_tokens: int | None = None


class ModelPolicy(Value):
    """The workflow's part of a fallback: its limits and queues while that model is at work."""

    model: str
    max_retries: int
    generation_timeout: timedelta
    compaction: CompactionPolicy
    also_on: tuple[str, ...] = ()
    queue: str | None = None
    compaction_queue: str | None = None


MOST_REFUSED = 10
"""Answers in a row whose calls are all refused before they run: the next one would be, too."""


class TurnPolicy(Value):
    """The part of a definition that the workflow decides by; small, because it stands in the history.

    Attributes:
        compaction: None if a context that overflows ends the turn.
        approvals_expire: Longest wait for an approval; None means no limit.
        fallbacks: Models that remain if this one fails for good, in order.
        queue: Task queue of the model's calls; None is the turn's own, as it is for the other two.
        compaction_queue: Task queue of the calls that summarise.
        tool_queue: Task queue of the tools that name none.
        most_refused: Answers in a row whose calls are all refused before they run that end the turn; 0 means no limit,
            of turns that began before there was one.
        stop_for_results: Whether a turn that needs nothing but results of its caller's tools ends, and does not wait.
    """

    agent: str
    model: str
    max_steps: int = DEFAULT_MAX_STEPS
    max_retries: int = 8
    generation_timeout: timedelta = DEFAULT_GENERATION_TIMEOUT
    on_tool_error: OnToolError = "abort"
    finish_tool: str | None = None
    budgets: Budgets = Budgets()
    tools: dict[str, ToolPolicy] = {}
    compaction: CompactionPolicy | None = None
    output_corrections: int = 0
    interactive: Interactive = "wait"
    approvals_expire: timedelta | None = None
    stop_conditions: StopConditions = ()
    hooks: Hooks = ()
    max_tool_turns: int | None = None
    fallbacks: tuple[ModelPolicy, ...] = ()
    on_child_error: OnChildError = "return"
    on_unknown_tool: OnUnknownTool = "feed_back"
    queue: str | None = None
    compaction_queue: str | None = None
    tool_queue: str | None = None
    most_refused: int = 0
    stop_for_results: bool = Field(default=False, exclude_if=operator.not_)

    @property
    def conditions(self) -> tuple[AnyCondition, ...]:
        """All that are looked at: those that end the turn, and those of hooks."""
        return (*self.stop_conditions, *conditions_of(self.hooks))

    def fallen_back(self) -> "TurnPolicy":
        """The policy with the first of the fallbacks at work."""
        first, *others = self.fallbacks
        return replace(
            self,
            model=first.model,
            max_retries=first.max_retries,
            generation_timeout=first.generation_timeout,
            compaction=first.compaction,
            fallbacks=tuple(others),
            queue=first.queue,
            compaction_queue=first.compaction_queue,
        )


class AgentDefinition(Value):
    """An agent frozen as data, for activities.

    Attributes:
        instructions_from: Function that makes the instructions when a turn opens; the text is then frozen.
        inline: For an agent that came in a start request: the object of the request.
        wished: Names of those ``generate_params`` that the turn's request has set, and no author; also of its schema.
        unwished: The author's values of such parameters.
        stream: Left out of the text that is hashed at its default, as are ``stream_thinking``, ``idle_timeout``,
            ``stream_idle_timeout``, ``retention``, ``max_running`` and the last two: older definitions keep their
            names.
    """

    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    label: str = ""
    tags: tuple[str, ...] = ()
    model: str = Field(min_length=1)
    instructions: str = ""
    instructions_from: str = ""
    tools: tuple[ToolDeclaration, ...] = ()
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1)
    generation_timeout: timedelta = Field(default=DEFAULT_GENERATION_TIMEOUT, gt=timedelta(0))
    generate_params: dict[str, JsonValue] = {}
    retry: RetryPolicy = RetryPolicy()
    on_tool_error: OnToolError = "abort"
    finish_tool: str | None = None
    stop_conditions: StopConditions = ()
    hooks: Hooks = ()
    on_hook_error: OnHookError = "fail"
    max_tool_turns: int | None = Field(default=None, ge=1)
    tool_mode: ToolMode = "auto"
    budgets: Budgets = Budgets()
    compaction: Compaction = Compaction()
    output_schema: Schema | None = None
    output_corrections: int = Field(default=0, ge=0, le=MAX_CORRECTIONS)
    interactive: Interactive = "wait"
    approvals: ApprovalPolicy = ApprovalPolicy()
    skills: tuple[Skill, ...] = ()
    on_child_error: OnChildError = "return"
    on_unknown_tool: OnUnknownTool = "feed_back"
    fallback_models: tuple[Fallback, ...] = ()
    cache: CacheMode = "latest"
    stream: StreamMode = Field(default="watched", exclude_if=lambda mode: mode == "watched")
    stream_thinking: bool = Field(default=False, exclude_if=operator.not_)
    idle_timeout: timedelta = Field(
        default=DEFAULT_IDLE_TIMEOUT, gt=timedelta(0), exclude_if=lambda time: time == DEFAULT_IDLE_TIMEOUT
    )
    stream_idle_timeout: timedelta | None = Field(default=None, gt=timedelta(0), exclude_if=lambda time: time is None)
    retention: Retention | None = Field(default=None, exclude_if=lambda retention: retention is None)
    max_running: int | None = Field(default=None, ge=1, exclude_if=lambda most: most is None)
    inline: dict[str, JsonValue] | None = None
    recording: str = ""
    wished: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    unwished: dict[str, JsonValue] = Field(default={}, exclude_if=operator.not_)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        if twice := find_repeated(tool.name for tool in self.tools):
            msg = f"agent {self.name!r} has two tools named {twice}; rename one with @tool(name=…)"
            raise ValueError(msg)
        if twice := find_repeated(hook.name for hook in self.hooks):
            msg = f"agent {self.name!r} has two hooks named {twice}; give one another name"
            raise ValueError(msg)
        if self.finish_tool is not None and self.tool(self.finish_tool) is None:
            msg = f"finish_tool {self.finish_tool!r} is not among the tools of agent {self.name!r}"
            raise ValueError(msg)
        if self.finish_tool is not None and self.output_schema is not None:
            msg = "output_schema is for answers in text, which finish_tool rules out; leave one of them out"
            raise ValueError(msg)
        if self.output_corrections and self.output_schema is None:
            msg = "output_corrections: there is no output_schema that an answer could miss"
            raise ValueError(msg)
        return self

    @property
    def conditions(self) -> tuple[AnyCondition, ...]:
        """All that are looked at: those that end the turn, and those of hooks."""
        return (*self.stop_conditions, *conditions_of(self.hooks))

    def canonical(self) -> str:
        """Canonical JSON of the definition; its hash names the definition."""
        return self.model_dump_json()

    def digest(self) -> str:
        """The first 32 hexadecimal digits of the SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:32]

    def tool(self, name: str) -> ToolDeclaration | None:
        """The tool of that wire name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that a turn may call, its own first: fallbacks, and the one that writes summaries."""
        summarises = () if self.compaction.model is None else (self.compaction.model,)
        return (self.model, *(fallback.model for fallback in self.fallback_models), *summarises)

    def using(self, fallback: int) -> "AgentDefinition":
        """The definition with that fallback at work, from 1; 0 is the agent's own model."""
        if not fallback:
            return self
        fallback_model = self.fallback_models[fallback - 1]
        return replace(
            self,
            model=fallback_model.model,
            retry=fallback_model.retry or self.retry,
            generation_timeout=fallback_model.generation_timeout or self.generation_timeout,
            generate_params=self._parameters_of(fallback_model.model)
            if fallback_model.generate_params is None
            else fallback_model.generate_params,
            # A summary is written by whoever works: the model for it may be away too.
            compaction=replace(self.compaction, model=None, window=None),
        )

    def changes_of_model(self, model: str) -> dict[str, object]:
        """Fields of the definition that change when a request asks for a model: the model and its parameters.

        Raises:
            ValueError: It names an address, and is none of the agent's own models.
        """
        own = next((fallback.generate_params for fallback in self.fallback_models if fallback.model == model), None)
        if model not in {self.model, *(fallback.model for fallback in self.fallback_models)}:
            check_no_address(model)
        return {"model": model, "generate_params": self._parameters_of(model) if own is None else own}

    def with_wishes(self, params: Mapping[str, JsonValue]) -> "AgentDefinition":
        """The definition with parameters of a request in place of those of the same names, at all of its models."""
        fallbacks = tuple(
            fallback
            if fallback.generate_params is None
            else replace(fallback, generate_params={**fallback.generate_params, **params})
            for fallback in self.fallback_models
        )
        return replace(
            self,
            generate_params={**self.generate_params, **params},
            fallback_models=fallbacks,
            unwished={name: value for name, value in self.generate_params.items() if name in params} | self.unwished,
            wished=tuple(sorted({*self.wished, *params})),
        )

    def with_output(self, schema: dict[str, JsonValue]) -> "AgentDefinition":
        """The definition with the form of the answer that a request wants.

        Raises:
            ValueError: The agent does not end with a text.
        """
        if self.finish_tool is not None:
            msg = f"the turns of agent {self.name!r} end with the tool {self.finish_tool!r}, and not with a text"
            raise ValueError(msg)
        corrections = max(self.output_corrections, LEAST_CORRECTIONS)
        wished = tuple(sorted({*self.wished, OUTPUT_SCHEMA}))
        return replace(self, output_schema=schema, output_corrections=corrections, wished=wished)

    def without_wishes(self, names: AbstractSet[str]) -> "AgentDefinition":
        """The definition without those parameters of a request, and with the author's in their places."""
        left_out = names & {*self.wished}
        if not left_out:
            return self
        kept = {name: value for name, value in self.generate_params.items() if name not in left_out}
        own = {name: value for name, value in self.unwished.items() if name in left_out}
        return replace(self, generate_params={**kept, **own})

    @property
    def wishes(self) -> dict[str, JsonValue]:
        """Wishes of the turn's request for its answers, by the names of parameters; and its schema."""
        asked = {name: value for name, value in self.generate_params.items() if name in self.wished}
        return {**asked, OUTPUT_SCHEMA: self.output_schema} if OUTPUT_SCHEMA in self.wished else asked

    def _parameters_of(self, model: str) -> dict[str, JsonValue]:
        """The agent's parameters for the model: those of its own provider are for no other one."""
        lost = self.lost_parameters(model)
        return {name: value for name, value in self.generate_params.items() if name not in lost}

    def lost_parameters(self, model: str) -> frozenset[str]:
        """The agent's parameters that a model of another provider is called without, in an outage for instance.

        A provider refuses what it does not know, such as OpenAI's ``seed`` at Anthropic; an address or a key of one
        is none of another; a price is a model's own.
        """
        if model.partition("/")[0] == self.model.partition("/")[0]:
            return frozenset()
        return frozenset(self.generate_params) - OF_EVERY_PROVIDER

    def policy(self, window: int | None = None, windows: Sequence[int | None] = ()) -> TurnPolicy:
        """The workflow's part of the definition.

        Args:
            window: Context window of the model, used if the author gave none.
            windows: Context windows of the fallbacks, None where unknown.
        """
        window, share = self.compaction.window or window, self.compaction.threshold
        above = int(window * share) if window is not None and share is not None else None
        return TurnPolicy(
            agent=self.name,
            model=self.model,
            max_steps=self.max_steps,
            max_retries=self.retry.max_retries,
            generation_timeout=self.generation_timeout,
            on_tool_error=self.on_tool_error,
            finish_tool=self.finish_tool,
            stop_conditions=self.stop_conditions,
            hooks=self.hooks,
            max_tool_turns=self.max_tool_turns,
            budgets=self.budgets,
            tools={
                tool.name: ToolPolicy(
                    timeout=tool.timeout,
                    task_queue=tool.task_queue,
                    answer=tool.answer,
                    pinned=tool.pinned,
                    by_caller=tool.runs == "caller",
                )
                if tool.delegate is None
                else ToolPolicy(delegate=tool.delegate)
                for tool in self.tools
            },
            on_child_error=self.on_child_error,
            on_unknown_tool=self.on_unknown_tool,
            compaction=CompactionPolicy(above_tokens=above),
            output_corrections=self.output_corrections,
            interactive=self.interactive,
            approvals_expire=self.approvals.expires,
            most_refused=MOST_REFUSED,
            fallbacks=tuple(self._fallback(at, known) for at, known in enumerate(windows, start=1)),
        )

    def _fallback(self, at: int, window: int | None) -> ModelPolicy:
        used, share = self.using(at), self.compaction.threshold
        above = int(window * share) if window is not None and share is not None else None
        return ModelPolicy(
            model=used.model,
            max_retries=used.retry.max_retries,
            generation_timeout=used.generation_timeout,
            compaction=CompactionPolicy(above_tokens=above),
            also_on=tuple(self.fallback_models[at - 1].also_on),
        )


def names_of_call(params: Mapping[str, JsonValue], *, secrets: bool = False) -> list[str]:
    """The variables that the arguments of a model call refer to; of secrets only, if that is asked for."""
    texts = (text for _, text, secret in texts_that_say_where(params) if secret or not secrets)
    return [name for text in texts for name in names_in(text)]


def fill_call_variables(params: Mapping[str, JsonValue], environment: Mapping[str, str]) -> dict[str, JsonValue]:
    """The arguments with the values of those variables.

    Raises:
        KeyError: One is not set.
    """
    return with_where(params, lambda text: fill_variables(text, environment))
