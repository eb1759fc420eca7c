"""What an answer costs, compared with litellm's own sum for every priced model of its map."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import litellm
import pytest
from litellm.litellm_core_utils.llm_cost_calc.utils import generic_cost_per_token

from perdure.llm.prices import Rates, rates_of

Json = Any

MONDAY_NOON, MONDAY_NIGHT, SUNDAY = (
    datetime(2026, 11, 30, 2, tzinfo=UTC),
    datetime(2026, 11, 30, 23, tzinfo=UTC),
    datetime(2026, 11, 29, 8, tzinfo=UTC),
)

COUNTS = [(1_000, 0, 0, 100), (1_000, 300, 200, 100), (128_001, 1_000, 0, 5), (200_000, 0, 10, 5), (600_000, 1, 500, 7)]
"""Tokens of a prompt, of those from and for the cache, and of the answer."""

MODELS: Mapping[str, Json] = {
    name: entry
    for name, entry in litellm.model_cost.items()
    if entry.get("mode") in {"chat", "responses"} and rates_of(entry, prompt=1, now=SUNDAY) is not None
}

OTHERWISE = {"input_cost_per_character", "output_cost_per_image_token"}
"""Prices of what perdure does not count, which litellm takes in place of those of tokens."""


TIMES = {"noon": MONDAY_NOON, "night": MONDAY_NIGHT, "sunday": SUNDAY}
OTHERS = [(tier, time) for tier in ("", "flex", "priority", "ultrafast", "unheard of") for time in TIMES]


@pytest.mark.parametrize(
    ("tier", "time"), [("priority", "night"), *(pytest.param(*each, marks=pytest.mark.deep) for each in OTHERS)]
)
def test_every_model_of_the_map_costs_what_litellm_says(tier: str, time: str) -> None:
    """S-70: a budget is kept by these sums."""
    assert len(MODELS) > 2_000
    now = TIMES[time]
    wrong: list[object] = []
    for name, entry in MODELS.items():
        if OTHERWISE & entry.keys():
            continue
        for prompt, cached, stored, written in COUNTS:
            usage = litellm.Usage(
                prompt_tokens=prompt,
                completion_tokens=written,
                total_tokens=prompt + written,
                cache_read_input_tokens=cached,
                cache_creation_input_tokens=stored,
                prompt_tokens_details={"cached_tokens": cached},
            )
            provider = str(entry["litellm_provider"])
            theirs = sum(
                generic_cost_per_token(name, usage, provider, tier or None, model_info=entry, current_time=now)
            )
            rates = rates_of(entry, prompt=prompt, now=now, tier=tier)
            assert rates is not None
            ours = rates.cost(read=prompt, cached=cached, stored=stored, written=written)
            if abs(float(ours) - theirs) > 1e-12 + 1e-9 * theirs:
                wrong.append((name, prompt, cached, stored, written, float(ours), theirs))
    assert wrong == []


@pytest.mark.parametrize(
    ("entry", "rates"),
    [
        ({}, None),
        ({"mode": "chat", "max_input_tokens": 9}, None),
        ({"input_cost_per_token": 1e-6}, Rates(1e-6, 1e-6, 1e-6, 0.0)),
        ({"input_cost_per_token": "1e-6", "output_cost_per_token": "2e-6"}, Rates(1e-6, 1e-6, 1e-6, 2e-6)),
        ({"input_cost_per_token": "dear"}, None),
        ({"input_cost_per_token": True}, None),
        ({"input_cost_per_token": 0, "output_cost_per_token": 0}, Rates(0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_what_has_no_price_is_not_free(entry: Json, rates: Rates | None) -> None:
    assert rates_of(entry, prompt=1, now=SUNDAY) == rates


def test_a_sum_is_a_decimal_without_the_noise_of_floats_and_never_less_than_nothing() -> None:
    assert Rates(1e-7, 0.0, 0.0, 3e-7).cost(read=3, cached=0, stored=0, written=1) == Decimal("6E-7")
    assert Rates(1e-7, 0.0, 0.0, -3.0).cost(read=3, cached=0, stored=0, written=1) == 0
    assert Rates(1.0, 0.5, 2.0, 0.0).cost(read=3, cached=3, stored=3, written=0) == Decimal("7.5")
