"""What is under way and what is paid, by the rules that terminal and page share: both say the same after each event."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from perdure.cli.activity import RULES, Activity
from perdure.contracts.events import EVENT_TYPES, Envelope
from tests.memory import Run
from tests.ui.node import run_script
from tests.ui.test_fold import FEATURES


def in_python(logs: Sequence[Sequence[Envelope]]) -> list[list[dict[str, Any]]]:
    """What the terminal has after each event of each log."""
    told: list[list[dict[str, Any]]] = []
    for log in logs:
        activity, after = Activity(), []
        for envelope in log:
            activity.note(envelope)
            after.append({"kind": activity.kind, "open": sorted(activity.open), "tokens": activity.tokens})
        told.append(after)
    return told


def in_the_page(logs: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    """The same of the page."""
    return run_script("activity.mjs", logs)


@pytest.mark.deep
@pytest.mark.parametrize("feature", FEATURES)
async def test_terminal_and_page_say_the_same_after_each_event(run: Run, feature: str) -> None:
    worker, replies, options = FEATURES[feature]
    await run(worker, script=replies, **options)
    log, chance = list(await run.last.events()), random.Random(feature)
    logs = [log, *(chance.sample(log, len(log)) for _ in range(20))]  # and in orders that no worker writes
    assert in_python(logs) == in_the_page([[envelope.line() for envelope in log] for log in logs])


@pytest.mark.parametrize("feature", FEATURES)
async def test_nothing_is_open_behind_its_end_in_whatever_order_they_come(run: Run, feature: str) -> None:
    worker, replies, options = FEATURES[feature]
    await run(worker, script=replies, **options)
    begin, *log, _ = await run.last.events()
    chance = random.Random(feature)
    whole = Activity()
    for envelope in (begin, *log):
        whole.note(envelope)
    for _ in range(20):
        activity = Activity()
        for envelope in (begin, *chance.sample(log, len(log))):
            activity.note(envelope)
        assert (sorted(activity.open), activity.tokens) == (sorted(whole.open), whole.tokens)


def test_the_rules_are_about_events_that_there_are() -> None:
    assert {name.partition(" ")[0] for name in RULES} <= set(EVENT_TYPES)
