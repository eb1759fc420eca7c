"""The page's fold of the event log, over logs of real turns: it says what the client says of them."""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Budgets, Compaction, Delegate, RetryPolicy, ask_user, todo, tool
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.contracts.hooks import HookRule, RetryWithFeedback
from perdure.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from perdure.testing import Script, answer, approve, call, deny, faults, say
from perdure.testing.script import Answers
from tests.memory import Run
from tests.ui.node import folded
from tests.workflow.backgrounds import awaiting, starts, steps

pytestmark = pytest.mark.deep

PATIENT = RetryPolicy(max_retries=2, jitter=timedelta(0))


@tool
def look(at: str = "it") -> str:
    """Look at something."""
    return f"{at} looks good"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
def charge(account: str) -> str:
    """Charge an account."""
    raise PermissionError(account)


@tool
def done() -> str:
    """The task is done."""
    return "done"


def agent(*tools: Any, **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": tools, **settings})


HELPER = Agent(name="helper", model="openai/helper", description="Helps.")

FEATURES: dict[str, tuple[Agent, Answers, dict[str, Any]]] = {
    "tools in parallel": (agent(look), (call(("look", {"at": "a"}), ("look", {"at": "b"}), text="So."), say("ok")), {}),
    "retries": (
        agent(look, retry=PATIENT),
        (call(("look", {})), say("ok").after(faults.error(429, "slow", "requests"), faults.error(503, "away"))),
        {},
    ),
    "a model error": (agent(look), (call(("look", {})), say("").after(faults.error(401, "bad key"))), {}),
    "a fallback": (
        agent(fallback_models=["openai/other"], retry=RetryPolicy(max_retries=0)),
        (say("").after(faults.error(503, "away")), say("ok")),
        {},
    ),
    "a tool that aborts": (agent(charge), (call(("charge", {"account": "A-17"})),), {}),
    "errors fed back": (agent(charge, on_tool_error="feed_back"), (call(("charge", {"account": "A"})), say("ok")), {}),
    "an unknown tool": (agent(look), (call(("nothing", {})), say("ok")), {}),
    "an approval": (agent(pay), (call(("pay", {"amount": 3})), say("ok")), {"people": [approve(by="ann")]}),
    "a denial": (agent(pay), (call(("pay", {"amount": 3})), say("ok")), {"people": [deny("too much", by="ann")]}),
    "a question": (
        agent(ask_user),
        (call(("ask_user", {"question": "Which?", "options": ["red", "blue"]})), say("ok")),
        {"people": [answer("red", by="ann")]},
    ),
    "a stop for people": (agent(pay, interactive="stop"), (call(("pay", {"amount": 3})),), {}),
    "a delegate": (
        agent(delegates=[HELPER]),
        (call(("helper", {"query": "hm"})), say("ok")),
        {"models": {"helper": Script(replies=(say("sub"),))}},
    ),
    "a delegate in the background": (
        agent(delegates=[Delegate("helper", background=True)]),
        steps(starts("one"), awaiting(0), say("ok")),
        {"agents": [HELPER], "models": {"helper": Script(replies=(say("sub"),))}},
    ),
    "todos": (agent(todo), (call(("todo", {"new_titles": ["one", "two"], "completed": [0]})), say("ok")), {}),
    "a budget": (agent(look, budgets=Budgets(llm_calls=2)), (call(("look", {})), call(("look", {})), say("no")), {}),
    "the step limit": (agent(look, max_steps=1), (call(("look", {})),), {}),
    "a stall": (agent(done, finish_tool="done"), (say("I think so."),), {}),
    "a hook": (
        agent(
            look,
            hooks=[HookRule(name="again", on="generation_end", reaction=RetryWithFeedback("Look again."), times=1)],
        ),
        (say("ok?"), say("ok")),
        {},
    ),
    "a compaction": (
        agent(look, compaction=Compaction(keep=2, model="openai/writer")),
        (*(call(("look", {"at": "a " * 100})) for _ in range(3)), say("ok")),
        {"window": 400, "models": {"writer": Script(replies=(say("<summary>short</summary>"),), repeat=True)}},
    ),
}


async def lines_of(run: Run) -> list[Mapping[str, Any]]:
    return [json.loads(envelope.to_json()) for envelope in await run.last.events()]


@pytest.mark.parametrize("feature", FEATURES)
async def test_the_page_says_what_the_client_says(run: Run, feature: str) -> None:
    worker, replies, options = FEATURES[feature]
    result = await run(worker, script=replies, **options)
    lines = await lines_of(run)
    state = folded(run.session, lines)
    turn = state["turns"][0]
    assert turn["end"]["stop_reason"] == result["stop_reason"]
    assert turn["end"]["reason_code"] == result["reason_code"]
    assert state["todos"] == result["todos"]
    waiting = [key for key, request in state["requests"].items() if request["decision"] is None]
    assert waiting == [request["request_id"] for request in result["requests"]]
    assert said_by(state) == said_in(await run.transcript())
    assert (state["gaps"], state["last"], len(state["lines"])) == ([], len(lines), len(lines))
    assert all(part["to"] is not None for step in state["steps"] for part in step["segments"]), state["steps"]
    assert not {call["state"] for call in state["calls"].values()} & {"running"}


@pytest.mark.parametrize("feature", FEATURES)
async def test_what_is_counted_from_the_log_is_what_the_turn_reports(run: Run, feature: str) -> None:
    worker, replies, options = FEATURES[feature]
    result = await run(worker, script=replies, **options)
    lines = await lines_of(run)
    assert lines[-1]["type"] == "agent_end"
    used = folded(run.session, lines[:-1])["turns"][0]["used"]
    assert used["usage"] == result["usage"]
    assert used["steps"] == result["steps"]
    assert used["cost"] == pytest.approx(float(result["cost_usd"]))


@pytest.mark.parametrize("feature", FEATURES)
async def test_neither_batches_nor_repeats_change_the_state(run: Run, feature: str) -> None:
    """S-47: what comes twice after a reconnect is shown once."""
    worker, replies, options = FEATURES[feature]
    await run(worker, script=replies, **options)
    lines = await lines_of(run)
    whole = folded(run.session, lines)
    chance = random.Random(feature)
    batches, at = [], 0
    while at < len(lines):
        size = chance.randint(1, 3)
        batches.append(lines[max(0, at - chance.randint(0, 2)) : at + size])
        at += size
    assert folded(run.session, *batches) == whole


async def test_a_gap_is_kept_and_shown(run: Run) -> None:
    await run(agent(look), call(("look", {})), say("ok"))
    lines = await lines_of(run)
    state = folded(run.session, lines[:4], lines[6:])
    assert state["gaps"] == [{"after": 4, "next": 7}]


async def test_turns_follow_each_other(run: Run) -> None:
    payer, replies = agent(pay, interactive="stop"), (call(("pay", {"amount": 3})), say("ok"))
    await run(payer, *replies)
    await run(payer, *replies, prompt="", reply=approve(by="ann"))
    state = folded(run.session, await lines_of(run))
    assert [turn["end"]["stop_reason"] for turn in state["turns"]] == ["waiting_for_input", "finished"]
    assert [request["decision"] for request in state["requests"].values()] == ["approved"]
    assert {call["state"] for call in state["calls"].values()} == {"ended"}


async def test_attempts_are_segments_of_their_own(run: Run) -> None:
    worker, replies, _ = FEATURES["retries"]
    await run(worker, script=replies)
    segments = folded(run.session, await lines_of(run))["steps"][1]["segments"]
    assert [
        (part["kind"], part.get("attempt"), part.get("failed")) for part in segments if part["kind"] != "worker"
    ] == [
        ("model", 1, "llm.rate_limited"),
        ("retry", None, None),
        ("model", 2, "llm.network_error"),
        ("retry", None, None),
        ("model", 3, None),
    ]
    assert all(part["from"] <= part["to"] for part in segments)


async def test_the_errors_are_listed_once_each(run: Run) -> None:
    worker, replies, _ = FEATURES["a tool that aborts"]
    await run(worker, script=replies)
    (error,) = folded(run.session, await lines_of(run))["errors"]
    assert (error["code"], error["tool"], error["ended"]) == ("tool.execution_error", "charge", True)


async def test_the_events_of_delegates_stay_in_their_tree(run: Run) -> None:
    worker, replies, options = FEATURES["a delegate"]
    await run(worker, script=replies, **options)
    lines = await lines_of(run)
    delegate = next(line["delegate"] for line in lines if line["type"] == "delegate_start")
    below = [json.loads(envelope.to_json()) for envelope in await run.last.events(delegate)]
    (alone,) = folded(run.session, lines)["delegates"]
    assert (alone["session"], alone["state"], alone["stopReason"], alone["steps"]) == (delegate, "ended", "finished", 1)
    at = next(n for n, line in enumerate(lines) if line["type"] == "delegate_end")
    merged = folded(run.session, lines[:at], below, lines[at:])
    assert merged["delegates"][0]["sentence"] == "sub"
    assert [block["seq"] for block in merged["blocks"]] == [
        block["seq"] for block in folded(run.session, lines)["blocks"]
    ]
    assert merged["gaps"] == []


async def test_a_start_that_comes_late_reopens_nothing(run: Run) -> None:
    worker, replies, options = FEATURES["a delegate in the background"]
    await run(worker, script=replies, **options)
    lines = await lines_of(run)
    types = [line["type"] for line in lines]
    assert types.index("tool_end") < types.index("delegate_start")
    state = folded(run.session, lines)
    assert {call["state"] for call in state["calls"].values()} == {"ended"}
    # As they may be written by two workers: the start behind the end.
    start = lines.pop(types.index("delegate_start"))
    lines.insert(-1, start)
    late = folded(run.session, [{**line, "seq": n} for n, line in enumerate(lines, 1)])
    assert {call["state"] for call in late["calls"].values()} == {"ended"}
    assert [(found["agent"], found["state"], found["steps"]) for found in late["delegates"]] == [("helper", "ended", 1)]
    assert [part for step in late["steps"] for part in step["segments"] if part["to"] is None] == []
    assert late["turns"][0]["used"] == state["turns"][0]["used"]
    below = [json.loads(envelope.to_json()) for envelope in await run.last.events(start["delegate"])]
    (after,) = folded(run.session, lines, below[:3])["delegates"]
    assert after["state"] == "ended"


def said_in(transcript: Sequence[Any]) -> list[tuple[str, str]]:
    """Prompts, answers and the calls' errors of a transcript, as the page has them."""
    said: list[tuple[str, str]] = []
    for message in transcript:
        match message:
            case UserMessage(summary_of=None):
                said.append(("prompt", message.content))
            case AssistantMessage():
                said.append(("answer", message.content))
            case ToolMessage():
                said.append(("tool", message.name))
            case _:
                pass
    return said


def said_by(state: dict[str, Any]) -> list[tuple[str, str]]:
    """The same of the page."""
    said: list[tuple[str, str]] = []
    for block in state["blocks"]:
        if block["kind"] in {"prompt", "answer"}:
            said.append((block["kind"], block["text"]))
        calls = [state["calls"][call_id] for call_id in block.get("calls", ())]
        said += [("tool", call["tool"]) for call in calls if call["state"] != "asked"]
    return said


# Pieces of an answer that is being written.


def piece(text: str, offset: int, *, step: int = 1, attempt: int = 1, kind: str = "text") -> dict[str, Any]:
    return {"delta": {"step": step, "attempt": attempt, "offset": offset, "text": text, "kind": kind}}


async def opened(run: Run) -> tuple[str, list[Mapping[str, Any]]]:
    """A session, and its events until the first model call."""
    await run(agent(), say("Hello, world."))
    return run.session, (await lines_of(run))[:2]


def shown(state: dict[str, Any], kind: str = "text") -> str | None:
    return None if state["live"] is None else state["live"]["parts"][kind]["text"]


async def test_pieces_are_shown_as_they_come(run: Run) -> None:
    session, lines = await opened(run)
    assert shown(folded(session, lines, piece("Hel", 0), piece("lo", 3))) == "Hello"
    assert shown(folded(session, lines, piece("H\U0001f600", 0), piece("lo", 2))) == "H\U0001f600lo"


async def test_a_higher_attempt_clears_what_was_shown(run: Run) -> None:
    """No shown text mixes two attempts."""
    session, lines = await opened(run)
    after = folded(session, lines, piece("Hel", 0), piece("Bon", 0, attempt=2), piece("lo", 3))
    assert shown(after) == "Bon"


async def test_a_piece_that_does_not_continue_waits_for_a_snapshot(run: Run) -> None:
    session, lines = await opened(run)
    lost = [lines, piece("Hel", 0), piece("wor", 7)]
    assert shown(folded(session, *lost)) == ""
    assert shown(folded(session, *lost, piece("ld", 10))) == ""
    assert shown(folded(session, *lost, piece("Hello, world", 0))) == "Hello, world"


async def test_the_stored_answer_replaces_the_pieces(run: Run) -> None:
    await run(agent(), say("Hello, world."))
    lines = await lines_of(run)
    state = folded(run.session, lines[:2], piece("Hel", 0), lines[2:], piece("lo", 3))
    assert state["live"] is None
    assert [block["text"] for block in state["blocks"] if block["kind"] == "answer"] == ["Hello, world."]


async def test_pieces_may_come_before_the_events_that_lead_to_them(run: Run) -> None:
    """Who joins has the answer that is being written at once, and reads the log meanwhile."""
    await run(agent(look, retry=PATIENT), call(("look", {})), say("ok").after(faults.error(429, "slow", "requests")))
    lines = [{**line, "replayed": True} for line in await lines_of(run)]
    until = next(n for n, line in enumerate(lines) if line["step"] == 2 and line["type"] == "generation_content")
    first = {**piece("Hel", 0, step=2, attempt=2)["delta"], "turn": 1}
    second = {**piece("lo", 3, step=2, attempt=2)["delta"], "turn": 1}
    state = folded(run.session, {"delta": first}, lines[:until], {"delta": second})
    assert shown(state) == "Hello"
    assert folded(run.session, {"delta": first}, lines)["live"] is None


async def test_any_pieces_give_what_a_reader_in_python_has(run: Run) -> None:
    session, lines = await opened(run)
    chance, answer, batches = random.Random(7), LiveAnswer(), []
    for n in range(300):
        kind = chance.choice(("text", "text", "thinking"))
        length = len(answer.text if kind == "text" else answer.thinking)
        delta = Delta(
            session=session,
            turn=1,
            step=1,
            attempt=1 + n // 60 + chance.choice((0, 0, 0, 0, -1)),
            n=n,
            kind=kind,  # type: ignore[arg-type]
            offset=chance.choice((length, length, length, 0, length + 2)),
            text=chance.choice(("a", "bc", "\U0001f600", "é ")),
        )
        answer.add(delta)
        batches.append({"delta": delta.model_dump(mode="json")})
        if n % 20 == 0:
            state = folded(session, lines, *batches)
            parts = (state["live"] or {"parts": {}})["parts"]
            assert (parts.get("text", {}).get("text", ""), parts.get("thinking", {}).get("text", "")) == (
                answer.text,
                answer.thinking,
            )
