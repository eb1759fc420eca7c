"""Forms of a request that nothing but its refusal tells: what perdure adds is tried once in another form, or without.

What a model has refused at an address is remembered by the worker, so that its next call begins so; a worker that
starts learns it again at the cost of a refused call. What an author sets is never changed: its refusal is told. What
the request of a turn sets is a wish, and is left out.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from perdure.contracts.agents import OUTPUT_SCHEMA, AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import to_json_line
from perdure.llm.failures import FailureFacts, classify

logger = logging.getLogger("perdure.worker")


class Form(Enum):
    """A form of requests that a model wants at an address, in the words of a log line."""

    SHORT_IDS = "with ids of calls of nine letters and digits"
    COMPLETION_CEILING = "with max_completion_tokens in place of the max_tokens that a budget added"
    SCHEMA_IN_PROMPT = "with the schema of its answer in the prompt"
    NO_CHOICE = "without tools where a text is wanted, in place of a tool_choice"
    OTHER_THINKING = "with the other of Anthropic's two ways to ask for thinking"
    NO_MARKS = "without cache marks"
    NO_USAGE = "for streams without stream_options"
    NO_ENCRYPTED = "without asking for encrypted reasoning"
    SYSTEM_IN_USER = "with the system prompt in the user's first message"
    ALTERNATING = "with the user and the assistant in turn"
    EMPTY_REASONING = "with an empty reasoning_content in each answer that has none"


class Asks(NamedTuple):
    """Words by which a refusal asks for a form.

    Attributes:
        form: The form.
        match: A pattern that is searched without regard to case.
        source: Where the words were seen: a page, or a public report (an issue on GitHub without the host).
        example: Words that match.
    """

    form: Form
    match: str
    source: str
    example: str


WORDS: tuple[Asks, ...] = (
    Asks(
        Form.SHORT_IDS,
        r"tool.?call.?id\b.{0,200}\blength of 9\b",
        "mistral-common 1.13, validator.py",
        "Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.",
    ),
    Asks(
        Form.COMPLETION_CEILING,
        r"\bmax_tokens\b.{0,200}\bmax_completion_tokens\b",
        "BerriAI/litellm#13714",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    ),
    Asks(
        Form.SCHEMA_IN_PROMPT,
        r"\bresponse[_ ]format\b|json_schema|\btext\.format\b|structured output",
        "web-infra-dev/midscene#259; ItzCrazyKns/Vane#969",
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    ),
    Asks(
        Form.SCHEMA_IN_PROMPT,
        r"\boutput_(config\.)?format\b|\boutputConfig\b",
        "https://docs.claude.com/en/docs/build-with-claude/structured-outputs",
        "output_config.format: Extra inputs are not permitted",
    ),
    Asks(
        Form.SCHEMA_IN_PROMPT,
        r"\bresponse_?(json_?)?schema\b|\bresponse[_ ]?mime[_ ]?type\b|\bjson mode is not\b",
        "https://ai.google.dev/gemini-api/docs/structured-output",
        "Function calling with a response mime type: 'application/json' is unsupported",
    ),
    Asks(
        Form.NO_CHOICE,
        r"\btool[_ ]?choice\b",
        "microsoft/agent-framework#4529; aws-samples/bedrock-access-gateway#92",
        "This model doesn't support the toolConfig.toolChoice.any field.",
    ),
    Asks(
        Form.OTHER_THINKING,
        r"\badaptive\b.{0,40}\bthinking\b|\bthinking\b.{0,100}\badaptive\b|support the effort parameter",
        "lidge-jun/opencodex#65; vellum-ai/vellum-assistant#37276; anthropics/claude-code#29531",
        "adaptive thinking is not supported on this model",
    ),
    Asks(
        Form.NO_MARKS,
        r"\bcache_control\b|\bcachePoint\b|\bprompt caching\b",
        "UKGovernmentBEIS/inspect_ai#3851",
        "system.0.cache_control: Extra inputs are not permitted",
    ),
    Asks(
        Form.NO_USAGE,
        r"\bstream_options\b|\binclude_usage\b",
        "openai/openai-agents-python#442; anomalyco/opencode#4698",
        "body.stream_options.include_usage: Extra inputs are not permitted",
    ),
    Asks(
        Form.NO_ENCRYPTED,
        r"encrypted[_ ]content.{0,20}\bnot supported\b|reasoning\.encrypted_content",
        "https://platform.openai.com/docs/guides/reasoning",
        "Encrypted content is not supported with this model.",
    ),
    Asks(
        Form.SYSTEM_IN_USER,
        r"\bsystem role (is )?not supported\b|\bdeveloper instruction is not enabled\b|"
        r"\bsupport '?(system|developer)'?( (messages?|prompts?|role|instructions?)| with this model)",
        "huggingface/chat-ui#1386; CherryHQ/cherry-studio#3242",
        "System role not supported",
    ),
    Asks(
        Form.ALTERNATING,
        r"unexpected role \S*user\S* after role|\broles must alternate\b",
        "NousResearch/hermes-agent#20154; charmbracelet/crush#279",
        "Unexpected role 'user' after role 'tool'",
    ),
    Asks(
        Form.EMPTY_REASONING,
        r"reasoning_content\b.{0,80}(must be passed back|missing)|missing.{0,20}\breasoning_content\b",
        "earendil-works/pi#3636; decolua/9router#355",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
    ),
)
"""Words of refusals, in the order in which they are tried."""

_PATTERNS = tuple((asks.form, re.compile(asks.match, re.IGNORECASE | re.DOTALL)) for asks in WORDS)

_STREAMS = re.compile(
    r"(not|n't) support.{0,40}\bstream(ing|s)?\b|\bverified to stream\b|\bstream(ing)? (is )?(not |un)supported",
    re.IGNORECASE,
)
"""Words of refusals of streams: of Bedrock's models, of OpenAI's for an organisation that is not verified."""

_CEILING = re.compile(r"max(imum)?[_ ]?((output|completion|new)[_ ]?)?tokens", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?![\w-])")
_EXCLUDED = re.compile(r"\bexclusive\b|\b(lower|smaller|less) than \W?\d", re.IGNORECASE)

MOST_WISHES = 1_000
"""Wishes of requests whose refusals a worker remembers."""

_SHORTEST = 256
"""Least number in a refusal that is taken as the longest answer of a model, in tokens."""

_REFUSALS = frozenset({400, 403, 404, 405, 422, 500, 501})
"""Statuses of refusals of a form: 403 is Bedrock's of cache marks, 500 some servers' of a system prompt."""


@dataclass(frozen=True)
class Learnt:
    """Forms that a model has asked for at an address, and the longest answer that it takes.

    Attributes:
        forms: The forms that it wants.
        longest: Longest answer in tokens that it takes; None if it has refused none.
    """

    forms: frozenset[Form] = frozenset()
    longest: int | None = None

    def fitted(self, most: int) -> int:
        """The bound of an answer, in tokens, as the model takes it."""
        return most if self.longest is None else min(most, self.longest)


class Forms:
    """The forms that models have asked for, by model and address."""

    def __init__(self) -> None:
        self._learnt: dict[tuple[str, str], Learnt] = {}
        self._refused: dict[tuple[str, ...], frozenset[str]] = {}

    def of(self, definition: AgentDefinition) -> Learnt:
        """The forms that the agent's model has asked for."""
        return self._learnt.get(destination_of(definition), Learnt())

    def learn(
        self, definition: AgentDefinition, facts: FailureFacts, added: frozenset[Form], bound: int | None
    ) -> bool:
        """Remember a refusal that asks for a form which the call did not have; False of any other.

        Args:
            definition: The agent, with the model that was called.
            facts: The refusal.
            added: The forms in whose place perdure, and not the author, has put something into the call.
            bound: Longest answer in tokens, if perdure has asked for it.
        """
        if facts.status not in _REFUSALS:
            return False
        before = self.of(definition)
        asked = {form for form, pattern in _PATTERNS if pattern.search(facts.text)}
        if Form.SCHEMA_IN_PROMPT in asked & added and OUTPUT_SCHEMA in definition.wished:
            return self._learn_wish(definition, facts)  # it may be this schema alone that is refused
        new = next((form for form in Form if form in (asked & added) - before.forms), None)
        if new is not None:
            self._keep(definition, replace(before, forms=before.forms | {new}), new.value)
            return True
        longest = None if bound is None else longest_in(facts, before.fitted(bound))
        if longest is not None:
            self._keep(definition, replace(before, longest=longest), f"for answers of at most {longest:,} tokens")
            return True
        return self._learn_wish(definition, facts)

    def refused(self, definition: AgentDefinition) -> frozenset[str]:
        """The wishes of a request that the agent's model has refused, of those that ask for the same values."""
        return self._refused.get(_key_of(definition), frozenset()) if definition.wished else frozenset()

    def _learn_wish(self, definition: AgentDefinition, facts: FailureFacts) -> bool:
        """Remember a refusal of a wish: for these values alone, since another caller's may be taken."""
        before = self.refused(definition)
        wish = next((name for name in definition.wishes if name not in before and _names(facts, name)), None)
        if wish is None:
            return False
        logger.warning("%s has refused the %s of a request, and is called without it", definition.model, wish)
        if len(self._refused) >= MOST_WISHES:
            self._refused.clear()
        self._refused[_key_of(definition)] = before | {wish}
        return True

    def _keep(self, definition: AgentDefinition, learnt: Learnt, told: str) -> None:
        logger.warning("%s has refused a call, and is called %s from now on", definition.model, told)
        self._learnt[destination_of(definition)] = learnt

    def clear(self) -> None:
        """Forget every model."""
        self._learnt.clear()
        self._refused.clear()


def longest_in(facts: FailureFacts, sent: int) -> int | None:
    """The longest answer that a refusal of a longer one names, in tokens; None of any other refusal."""
    if classify(facts) != ReasonCode.LLM_REQUEST_ERROR or not _CEILING.search(facts.text):
        return None
    named = (int(number.replace(",", "")) for number in _NUMBER.findall(facts.text))
    longest = max((number for number in named if _SHORTEST <= number < sent), default=None)
    return longest if longest is None or not _EXCLUDED.search(facts.text) else longest - 1


_WISHES: Mapping[str, str] = {
    OUTPUT_SCHEMA: "|".join(asks.match for asks in WORDS if asks.form is Form.SCHEMA_IN_PROMPT),
    "max_completion_tokens": r"max_?(completion_|output_|new_)?tokens",
    "max_tokens": r"max_?(completion_|output_|new_)?tokens",
    "parallel_tool_calls": r"parallel_?tool_?(calls|use)",
    "reasoning_effort": r"reasoning|\beffort\b|thinking",
    "tool_choice": r"tool_?choice",
}
"""Words by which refusals name a parameter, where providers have other names for it."""


def _names(facts: FailureFacts, name: str) -> bool:
    """Whether a refusal names a parameter."""
    words = _WISHES.get(name, rf"\b{name.replace('_', '_?')}\b")
    return re.search(words, facts.text, re.IGNORECASE) is not None


def refuses_streams(facts: FailureFacts) -> bool:
    """Whether a model refused a call because it was asked for a stream."""
    return facts.status in _REFUSALS and _STREAMS.search(facts.text) is not None


FORMS = Forms()


def _key_of(definition: AgentDefinition) -> tuple[str, ...]:
    """Key of a refusal: the model, its address, the wishes, and whether the model thinks."""
    thinks = [definition.generate_params.get(name) for name in ("reasoning_effort", "thinking")]
    return (*destination_of(definition), to_json_line([definition.wishes, thinks]))


def destination_of(definition: AgentDefinition) -> tuple[str, str]:
    """The model and the address of an agent's calls, as it names them."""
    params = definition.generate_params
    return definition.model, str(params.get("api_base") or params.get("base_url") or "")
