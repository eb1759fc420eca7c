"""Everything of a turn that people and other systems may see."""

from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from tests.house import House


async def visible(house: House, handle: WorkflowHandle[Any, Any], log: pytest.LogCaptureFixture) -> str:
    """The Temporal history, events, transcript, steps and result of a session, and the log, as one text."""
    events = (await handle.fetch_history()).events
    history = b"\n".join(event.SerializeToString() for event in events).decode(errors="replace")
    stored = [
        *await house.events(),
        *await house.store.transcript(house.session),
        *await house.store.steps(house.session),
        *await house.store.turns(house.session),
    ]
    return "\n".join([history, *map(repr, stored), log.text])
