"""Facts about models in litellm's map, and costs of answers by an agent's prices, a provider's bill, or the map."""

import functools
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import litellm
from litellm.types.utils import CustomPricingLiteLLMParams  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities.models.wires.reply import Counts
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.values import JsonValue

PRICES = frozenset(CustomPricingLiteLLMParams.model_fields)
"""Names of litellm's price settings, which an agent may give in its generate_params."""


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


def cost_of(counts: Counts, definition: AgentDefinition) -> Decimal | None:
    """US dollars of an answer: by the agent's prices, by the provider's own bill, or by litellm's map.

    None without a price, which is not free.
    """
    own = {name: price for name, price in definition.generate_params.items() if name in PRICES}
    if not own and counts.cost_usd is not None:
        return counts.cost_usd
    if own:
        model = _name_of_prices(definition.model, json.dumps(own, sort_keys=True))
    elif facts_about(definition.model):
        model = definition.model
    else:
        return None
    usage = litellm.Usage(
        prompt_tokens=counts.input_tokens,
        completion_tokens=counts.output_tokens,
        total_tokens=counts.usage.total_tokens,
        cache_read_input_tokens=counts.cached_tokens,
        cache_creation_input_tokens=counts.stored_tokens,
        prompt_tokens_details={"cached_tokens": counts.cached_tokens},
    )
    response: Any = litellm.ModelResponse(model=definition.model.partition("/")[2], usage=usage)
    try:
        if own:
            cost: Any = litellm.completion_cost(
                completion_response=response, model=definition.model, custom_pricing=True, router_model_id=model
            )
        else:
            cost = litellm.completion_cost(response, model=model, service_tier=counts.tier or None)
    except Exception:  # noqa: BLE001 - litellm raises plain exceptions if a price is missing
        return None
    return max(Decimal(f"{cost:.15g}"), Decimal(0))  # the product of a float; further digits are noise


def price_of(definition: AgentDefinition, usage: Usage) -> Decimal | None:
    """US dollars of a reply that litellm could not read, by the agent's prices or litellm's map."""
    prices: dict[str, Any] = {**facts_about(definition.model), **definition.generate_params}
    read, written = prices.get("input_cost_per_token"), prices.get("output_cost_per_token")
    if not isinstance(read, int | float) or not isinstance(written, int | float):
        return None
    return Decimal(str(read)) * usage.input_tokens + Decimal(str(written)) * usage.output_tokens


def without_prices(params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The settings without prices: litellm would apply them to every agent with this model."""
    return {name: value for name, value in params.items() if name not in PRICES}


@functools.cache
def _name_of_prices(model: str, own: str) -> str:
    """Register the model with an agent's prices in litellm's map, under a name of its own; returns the name."""
    name = f"perdure:{model}:{own}"
    entry = {"litellm_provider": model.partition("/")[0], **facts_about(model), **json.loads(own)}
    litellm.register_model({name: entry}, persist_across_reloads=False)
    return name
