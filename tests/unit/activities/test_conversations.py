"""The conversations that a worker keeps in memory: bounded by all their text, whoever wrote it."""

import json
from datetime import UTC, datetime

import pytest

from perdure.activities.models import conversations
from perdure.activities.models.conversations import Conversations
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.store import ClaimedTurn, StepRecord, Store

LONG = "x" * 1_000
TWO_OF_THEM = 3_400
ARGUMENTS = json.dumps({"text": LONG})
KINDS: dict[str, Message] = {
    "prompt": UserMessage(content=LONG),
    "answer": AssistantMessage(content=LONG),
    "arguments": AssistantMessage(content="", tool_calls=(ToolCall(id="c", name="write", arguments=ARGUMENTS),)),
    "thinking": AssistantMessage(content="", thinking=({"type": "thinking", "thinking": LONG},)),
    "result": ToolMessage(call_id="c", name="write", content=LONG),
}


async def session_with(store: Store, session: str, message: Message) -> str:
    """The tip of a new session that ends with the message."""
    opening = OpenTurn(
        session=session, request=Continuation(prompt="-"), request_id="r", run_started_at=datetime.now(UTC)
    )
    opened: ClaimedTurn = await store.open_turn(opening, AgentDefinition(name="helper", model="test/model"))
    step = StepRecord(
        id=f"step-{session}", session=session, turn=opened.turn, step=1, parent=opened.tip, messages=(message,)
    )
    return (await store.finish_generation(step, [], [])).id


@pytest.mark.parametrize("kind", KINDS)
async def test_the_session_unused_for_longest_is_forgotten_over_the_bound(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "KEPT_CHARACTERS", TWO_OF_THEM)
    asked: list[str] = []
    async with await Store.open("sqlite://", upgrade=True, observe=lambda name, _: asked.append(name)) as store:
        tips = {session: await session_with(store, session, KINDS[kind]) for session in "abc"}
        kept = Conversations(store)

        async def reads(*sessions: str) -> list[bool]:
            """Whether the store was asked, for each session in turn."""
            before = []
            for session in sessions:
                count = asked.count("conversation")
                assert len(await kept.read(session, tips[session])) == 2
                before.append(asked.count("conversation") > count)
            return before

        assert await reads("a", "b", "b", "a") == [True, True, False, False]
        assert await reads("c", "a", "c") == [True, False, False]  # in place of b
        assert await reads("b", "c", "a") == [True, False, True]  # in place of a
