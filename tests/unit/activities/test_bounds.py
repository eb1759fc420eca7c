"""The worst case of a model call: never below what it can cost, and no call where it is too much."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import tool
from perdure.activities.models.cost_ceiling import Counted, NotAffordableError, ceiling, text_only
from perdure.activities.models.facts import facts_about
from perdure.contracts.agents import AgentDefinition
from perdure.llm.openai_format import WireMessage

READ, WRITTEN = Decimal("0.00000015"), Decimal("0.0000006")
"""The prices of a token of gpt-4o-mini, by litellm's map."""


def said(*texts: str) -> list[WireMessage]:
    """Messages of a user."""
    return [{"role": "user", "content": text} for text in texts]


@tool
def work(text: str) -> str:
    """Do some work."""
    return text


def agent(model: str = "openai/gpt-4o-mini", **settings: Any) -> AgentDefinition:
    return AgentDefinition(name="a", model=model, **settings)


def test_the_prices_of_these_tests_are_those_of_the_map() -> None:
    entry = facts_about("openai/gpt-4o-mini")
    assert (Decimal(str(entry["input_cost_per_token"])), Decimal(str(entry["output_cost_per_token"]))) == (
        READ,
        WRITTEN,
    )


@given(
    st.lists(st.text(max_size=300), min_size=1, max_size=5),
    st.decimals("0.00001", "0.02", places=7),
    st.sampled_from([None, 100, 5_000]),
    st.booleans(),
)
def test_what_a_call_costs_at_most_is_never_more_than_is_left(
    texts: list[str], left: Decimal, own: int | None, tools: bool
) -> None:
    """S-70: a byte is never more than a token, and the answer ends at its ceiling."""
    params = {} if own is None else {"max_tokens": own}
    definition = agent(generate_params=params, tools=(work.declaration,) if tools else ())
    messages = said(*texts)
    most_read = sum(len(text.encode()) for text in texts) + 4 * len(texts)
    try:
        most = ceiling(definition, messages, left)
    except NotAffordableError:
        return
    written = most if most is not None else min(own or 16_384, 16_384)
    assert READ * most_read + WRITTEN * written <= left


def test_what_the_provider_has_counted_is_not_counted_by_its_size() -> None:
    messages = said("x" * 40_000, "yes")
    left = Decimal("0.004")
    with pytest.raises(NotAffordableError):
        ceiling(agent(), messages, left)
    most = ceiling(agent(), messages, left, Counted(messages=1, tokens=10_000))
    assert most is not None
    assert most > 3_000


@pytest.mark.parametrize("left", ["0", "-1", "0.00001"])
def test_a_call_that_could_cost_more_is_not_made(left: str) -> None:
    with pytest.raises(NotAffordableError, match="was not made"):
        ceiling(agent(), said("go"), Decimal(left))


def test_without_a_limit_or_a_price_nothing_is_bounded() -> None:
    messages = said("go")
    assert ceiling(agent(), messages, None) is None
    assert ceiling(agent("openai/unheard-of"), messages, Decimal("0.000001")) is None
    own = {"input_cost_per_token": 1.0, "output_cost_per_token": 1.0}
    with pytest.raises(NotAffordableError):
        ceiling(agent("openai/unheard-of", generate_params=own), messages, Decimal(5))


def test_the_dearer_price_of_a_long_prompt_counts_only_for_one() -> None:
    definition = agent("gemini/gemini-2.5-pro")
    entry = facts_about("gemini/gemini-2.5-pro")
    assert entry["input_cost_per_token_above_200k_tokens"] > entry["input_cost_per_token"]
    short, long = (said("x" * size) for size in (100_000, 250_000))
    price = Decimal(str(entry["input_cost_per_token"]))
    dear = Decimal(str(entry["input_cost_per_token_above_200k_tokens"]))
    assert ceiling(definition, short, price * 100_000 + Decimal("0.01")) is not None
    with pytest.raises(NotAffordableError):
        ceiling(definition, long, price * 250_000 + Decimal("0.01"))
    assert ceiling(definition, long, dear * 250_000 + Decimal("0.01")) is not None


def test_the_answer_has_room_for_the_thinking_that_was_asked_for() -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 10_000}}
    definition = agent("anthropic/claude-sonnet-4-5", generate_params=thinking)
    messages = said("go")
    with pytest.raises(NotAffordableError):
        ceiling(definition, messages, Decimal("0.1"))
    most = ceiling(definition, messages, Decimal("0.2"))
    assert most is not None
    assert most > 10_000


def test_text_only_keeps_the_tools_that_the_conversation_names() -> None:
    """S-39: Anthropic refuses a conversation with calls and no tools."""
    definition = agent(tools=(work.declaration,))
    assert text_only(definition).generate_params == {"tool_choice": "none"}
    assert text_only(definition.model_copy(update={"tool_mode": "xml"})).tools == ()
    assert text_only(agent()) == agent()
