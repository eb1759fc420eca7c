"""The cost ceiling of a model call: the longest answer that the rest of the budget pays for.

The cost of a call is bounded before the call is made. No token is shorter than a byte, so the model reads at most as
many tokens as the request has bytes, plus what the provider adds for tools. If the provider has already counted the
beginning of the conversation, its count is used and only the rest is estimated by bytes. An image or a PDF counts the
most tokens that any provider charges for one. What the budget has left beyond that pays for the answer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

from perdure.activities.models.facts import facts_about
from perdure.activities.models.model_call import mode_of, system_prompt
from perdure.activities.models.provider_messages import count_most_tokens
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.values import JsonValue, replace
from perdure.engine.limits import exhausted_error, in_usd
from perdure.llm.openai_format import WireMessage
from perdure.llm.tool_schemas import ShownTools, shown_tool_name

SMALLEST_ANSWER = 16
"""Tokens of the shortest useful answer; a call that cannot pay for this is not made."""

SHORT_PROMPT = 200
"""Assumed characters of a prompt that is not written yet."""

ADDED = 100
"""Tokens that a provider may add to a request."""

ADDED_FOR_TOOLS = 1_000
"""Tokens that a provider may add to explain tools to the model. Anthropic's page on tool use names up to 700."""

_READ = ("input_cost_per_token", "cache_creation_input_token_cost")
_WRITTEN = ("output_cost_per_token", "output_cost_per_reasoning_token")


class NotAffordableError(Exception):
    """The call could cost more than the budget has left."""

    def __init__(self, detail: ErrorDetail, paid: Paid | None = None) -> None:
        super().__init__(detail.message)
        self.detail = detail
        self.paid = paid or Paid()


@dataclass(frozen=True)
class Counted:
    """The beginning of a request that a provider has counted: the number of messages, and their tokens."""

    messages: int = 0
    tokens: int = 0


def text_only(definition: AgentDefinition) -> AgentDefinition:
    """The definition for a call that is to be answered with text: the tools stay, as the conversation may name them."""
    if not definition.tools:
        return definition
    if mode_of(definition) != "api" or facts_about(definition.model).get("supports_tool_choice") is False:
        return replace(definition, tools=())
    params: dict[str, JsonValue] = {**definition.generate_params, "tool_choice": "none"}
    return replace(definition, generate_params=params)


def with_choice(definition: AgentDefinition, choice: ToolChoice | None) -> AgentDefinition:
    """The definition for a call that has to call a tool, or none, as the turn's request wishes."""
    if choice == "none":
        return text_only(definition)
    if choice is None or not definition.tools or mode_of(definition) != "api":
        return definition
    name = None if choice == "required" else shown_tool_name(choice.name)
    form: JsonValue = "required" if name is None else {"type": "function", "function": {"name": name}}
    return definition.with_wishes({"tool_choice": form})


def ceiling(
    definition: AgentDefinition, messages: Sequence[WireMessage], left: Decimal | None, counted: Counted | None = None
) -> int | None:
    """The most tokens that the answer may have, so that the call costs at most ``left``.

    tokens = (left - price of a read token x tokens read) / (price of a written token x number of answers), rounded down

    None if no bound is needed: there is no limit, no price is known, or the longest answer is affordable.

    Raises:
        NotAffordableError: Not even the shortest useful answer is affordable.
    """
    if left is None:
        return None
    read = _count_most_read(definition, messages, counted or Counted())
    price_read, price_written = _price(definition, _READ, read), _price(definition, _WRITTEN, read)
    if price_read is None or price_written is None:
        return None
    answers = max(1, _read_integer(definition, "n") or 1)
    longest, smallest = _longest_answer_of(definition), SMALLEST_ANSWER + _thinking(definition)
    rest = left - price_read * read
    affordable = int((rest / (price_written * answers)).to_integral_value(ROUND_FLOOR)) if price_written else None
    if rest < 0 or (affordable is not None and affordable < min(smallest, longest or smallest)):
        raise NotAffordableError(
            exhausted_error(
                "cost_usd",
                f"{in_usd(max(left, Decimal(0)))} is left, and the next call could cost more: it was not made",
            )
        )
    return affordable if affordable is not None and (longest is None or affordable < longest) else None


def estimate_first_call(definition: AgentDefinition) -> Decimal | None:
    """US dollars that the first call of a turn costs, with a short prompt and answer; None without known prices."""
    read = _count_most_read(
        definition, [*system_prompt(definition), {"role": "user", "content": "x" * SHORT_PROMPT}], Counted()
    )
    price_read, price_written = _price(definition, _READ, read), _price(definition, _WRITTEN, read)
    if price_read is None or price_written is None:
        return None
    return price_read * read + price_written * (SMALLEST_ANSWER + _thinking(definition))


def _count_most_read(definition: AgentDefinition, messages: Sequence[WireMessage], counted: Counted) -> int:
    new = messages[counted.messages :]
    files = count_most_tokens(new)
    if counted.messages:
        return counted.tokens + _bytes(new) + files + ADDED
    tools = ShownTools(definition.tools).declarations()
    size = _bytes(messages) + files + _bytes(definition.output_schema)
    return size + (_bytes(tools) + ADDED_FOR_TOOLS if tools else ADDED)


def _bytes(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode()) if value else 0


def _price(definition: AgentDefinition, names: Sequence[str], read: int) -> Decimal | None:
    """The highest price of a token that may apply to the call, in US dollars; None if no price is known."""
    own = {name: price for name, price in definition.generate_params.items() if name in names}
    prices: dict[str, object] = {**facts_about(definition.model), **own}
    if prices.get(names[0]) is None:
        return None
    tier = definition.generate_params.get("service_tier")
    found: list[Decimal] = []
    for key, price in prices.items():
        base, _, above = key.partition("_above_")
        if isinstance(tier, str) and base.endswith(f"_{tier}"):
            base = base.removesuffix(f"_{tier}")
        if base in names and isinstance(price, int | float | str) and _applies(above, tier, read):
            found.append(Decimal(str(price)))
    return max(found)


def _applies(above: str, tier: JsonValue, read: int) -> bool:
    """Whether a price for prompts above a number of tokens may apply; prices for longer caching are ignored."""
    if isinstance(tier, str):
        above = above.removesuffix(f"_{tier}")
    if not above:
        return True
    thousands = above.removesuffix("k_tokens")
    return thousands.isdigit() and read > int(thousands) * 1_000


def _longest_answer_of(definition: AgentDefinition) -> int | None:
    """Tokens of the longest answer that the agent's settings or the model allow; None if neither says."""
    own = (_read_integer(definition, "max_tokens"), _read_integer(definition, "max_completion_tokens"))
    most = facts_about(definition.model).get("max_output_tokens")
    limits = [limit for limit in (*own, most if isinstance(most, int) else None) if limit is not None]
    return min(limits, default=None)


def _thinking(definition: AgentDefinition) -> int:
    """Anthropic's ``budget_tokens`` for thinking: the answer's limit has to be above it."""
    thinking = definition.generate_params.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return budget if isinstance(budget, int) else 0


def _read_integer(definition: AgentDefinition, name: str) -> int | None:
    value = definition.generate_params.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
