"""A compaction as one line: what it was for, the counts, and what it cost; or why there was none."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from perdure.cli.render import Tone, lines
from perdure.contracts.budgets import Usage
from perdure.contracts.events import CompactionEvent, Envelope


def shown(**fields: Any) -> list[tuple[str, Tone]]:
    event = CompactionEvent(trigger="threshold", messages_before=18, messages_after=12, **fields)
    at = datetime(2026, 11, 21, tzinfo=UTC)
    envelope = Envelope(seq=1, session="s", turn=1, step=3, at=at, event=event)
    return [(line.text, line.tone) for line in lines(envelope)]


def test_a_compaction_says_how_many_messages_became_how_many() -> None:
    usage = Usage(input_tokens=1_200, output_tokens=34)
    (line,) = shown(compaction_status="completed", usage=usage, cost_usd=Decimal("0.02"))
    assert line == ("compacted · threshold · 18 → 12 messages · 1,234 tokens · $0.02", Tone.QUIET)


@pytest.mark.parametrize("status", ["skipped", "failed"])
def test_no_compaction_says_why(status: str) -> None:
    (line,) = shown(compaction_status=status, reason="the last 10 are kept")
    assert line == (f"compaction {status} · threshold · the last 10 are kept", Tone.WARNING)


def test_its_start_is_no_line() -> None:
    assert shown(compaction_status="started") == []
