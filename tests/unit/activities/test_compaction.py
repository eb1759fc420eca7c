"""Summaries: an answer that holds none was paid for all the same."""

from decimal import Decimal

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.activities.compact import summary_of
from perdure.activities.models.attempt import CallFailedError
from perdure.activities.models.model_call import Answer
from perdure.contracts.budgets import Paid, Usage


def test_an_answer_without_a_summary_says_what_it_has_cost() -> None:
    usage, cost = Usage(input_tokens=5_000, output_tokens=500), Decimal("0.40")
    answer = Answer(text="", calls=(), thinking=(), finish_reason="stop", usage=usage, cost_usd=cost)

    with pytest.raises(CallFailedError, match="wrote no summary") as failed:
        ActivityEnvironment().run(summary_of, answer)

    assert failed.value.paid == Paid(usage=usage, cost_usd=cost)
