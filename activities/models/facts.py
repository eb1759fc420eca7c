"""Facts about models in litellm's map, and costs of answers by an agent's prices, a provider's bill, or the map.

The map is read from litellm's folder; litellm itself takes seconds to import. Where an agent's module has imported it,
its map counts, with what the module has registered there.
"""

import functools
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from perdure.activities.models.wires.reply import Counts
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.values import JsonValue
from perdure.llm.prices import rates_of

MAP = "model_prices_and_context_window_backup.json"
"""The map's file in litellm's folder."""

_PRICE = re.compile(r"\w*(?:cost_per_\w+|token_cost\w*|uplift_multiplier\w*)|tiered_pricing|off_peak_pricing")
"""Names of prices, which an agent may give in its generate_params."""


def _models() -> Mapping[str, Mapping[str, Any]]:
    """Every entry of the map."""
    loaded = getattr(sys.modules.get("litellm"), "model_cost", None)
    return loaded or _bundled()


@functools.cache
def _bundled() -> Mapping[str, Mapping[str, Any]]:
    """The map as litellm's release has it; empty without litellm."""
    found = find_spec("litellm")
    if found is None or found.origin is None:
        return {}
    return cast("dict[str, dict[str, Any]]", json.loads(Path(found.origin).with_name(MAP).read_text(encoding="utf-8")))


@functools.cache
def facts_about(model: str) -> dict[str, Any]:
    """The entry of a model in litellm's map of prices and context windows; empty if it has none."""
    provider, _, name = model.partition("/")
    models = _models()
    entry = models.get(model) or models.get(name) or {}
    return dict(entry) if str(entry.get("litellm_provider", "")).startswith(provider) else {}


def context_window(model: str) -> int | None:
    """Longest prompt of a model in tokens, by litellm's map; None if the map does not have it."""
    window = facts_about(model).get("max_input_tokens")
    return window if isinstance(window, int) else None


def is_price(name: str) -> bool:
    """Whether a setting of an agent is a price."""
    return _PRICE.fullmatch(name) is not None


def cost_of(counts: Counts, definition: AgentDefinition) -> Decimal | None:
    """US dollars of an answer: by the agent's prices, by the provider's own bill, or by litellm's map.

    None without a price, which is not free.
    """
    own = {name: price for name, price in definition.generate_params.items() if is_price(name)}
    if not own and counts.cost_usd is not None:
        return counts.cost_usd
    entry = {**facts_about(definition.model), **own}
    rates = rates_of(entry, prompt=counts.input_tokens, now=datetime.now(UTC), tier="" if own else counts.tier)
    if rates is None:
        return None
    return rates.cost(
        read=counts.input_tokens, cached=counts.cached_tokens, stored=counts.stored_tokens, written=counts.output_tokens
    )


def price_of(definition: AgentDefinition, usage: Usage) -> Decimal | None:
    """US dollars of a reply that could not be read, by the agent's prices or litellm's map."""
    return cost_of(
        Counts(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cached_tokens=usage.cached_tokens),
        definition,
    )


def without_prices(params: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The settings without prices: litellm would apply them to every agent with this model."""
    return {name: value for name, value in params.items() if not is_price(name)}
