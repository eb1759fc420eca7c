"""A session that goes on from a step of another one, or from an earlier one of its own."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart
from perdure.contracts.hooks import TodosChanged
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from perdure.contracts.tools import Todo
from perdure.contracts.turns import Continuation, OpenTurn, StopReason
from perdure.store import ClaimedTurn, NotFoundError, ResumeRefusedError, Store
from perdure.store.database import Address
from tests.unit.store.given import (
    HELPER,
    LATER,
    SESSION,
    answer,
    claim,
    commit,
    finish,
    generate,
    new_event,
    open_turn,
    result,
    wish,
)
from tests.unit.store.test_compaction import compact, summarise

FORK = "fork"
ON = UserMessage(content="go on")


def resuming(origin: ResumeFrom, prompt: str = "go on", *, session: str = FORK, request_id: str = "f1") -> OpenTurn:
    request = Continuation(prompt=prompt, resume_from=origin)
    return OpenTurn(session=session, request=request, request_id=request_id, run_started_at=LATER)


async def fork(store: Store, step: int | None, prompt: str = "go on", *, turn: int | None = None) -> ClaimedTurn:
    return await store.open_turn(resuming(ResumeFrom(session=SESSION, turn=turn, step=step), prompt), HELPER)


async def rewind(store: Store, turn: int | None, step: int | None = None, prompt: str = "go on") -> ClaimedTurn:
    origin = ResumeFrom(turn=turn, step=step)
    return await store.open_turn(resuming(origin, prompt, session=SESSION, request_id=f"to {origin}"), HELPER)


async def with_a_call(store: Store) -> tuple[str, str]:
    """A turn whose first step called a tool, and whose second said what it found."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "let me see", [wish()])
    await claim(store, "w")
    await finish(store, "w")
    second = await answer(store, generate(first.id, step=2, call_ids=["c1"]), "it is there")
    await store.commit_turn(commit(second.id))
    return first.id, second.id


def orphans(messages: tuple[Message, ...]) -> list[str]:
    """Calls that have no result before the next message of another kind, and results without a call."""
    open_calls: list[str] = []
    wrong: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            (open_calls if message.call_id in open_calls else wrong).remove(message.call_id)
            continue
        wrong += open_calls
        open_calls = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
    return wrong + open_calls


async def test_a_fork_goes_on_with_the_results_of_its_steps_calls_and_copies_nothing(store: Store) -> None:
    """S-67: a chosen earlier checkpoint as a branch; the call's effect is there, so it never runs again."""
    first, _ = await with_a_call(store)

    forked = await fork(store, 1)

    added = await store.steps(FORK)
    assert [(step.parent, step.messages, step.calls) for step in added] == [(first, (result(), ON), ())]
    assert (forked.turn, forked.first) == (1, True)
    told = (await store.conversation(forked.tip))[0:2]
    assert told == (UserMessage(content="hello"), (await store.transcript(SESSION))[1])
    assert await store.transcript(FORK) == (*await store.conversation(first), result(), ON)
    (start,) = [line.event for line in await store.events(FORK)]
    assert isinstance(start, AgentStart)
    assert start.resumed_from == ResumeFrom(session=SESSION, turn=1, step=1)


async def test_a_fork_leaves_the_other_session_as_it_is(store: Store) -> None:
    await with_a_call(store)
    before = (await store.session(SESSION), await store.transcript(SESSION), await store.events(SESSION))

    await fork(store, 1)

    after = (await store.session(SESSION), await store.transcript(SESSION), await store.events(SESSION))
    assert after == before


async def test_a_fork_without_a_step_is_one_of_the_turns_end(store: Store) -> None:
    _, second = await with_a_call(store)

    await fork(store, None)

    assert [step.parent for step in await store.steps(FORK)] == [second]


async def test_the_same_request_is_the_same_fork(store: Store) -> None:
    await with_a_call(store)
    forked = await fork(store, 1)

    again = await fork(store, 1)

    assert (again.turn, again.tip, again.first) == (1, forked.tip, False)
    assert len(await store.steps(FORK)) == 1


async def test_a_fork_into_a_session_that_exists_is_refused(store: Store) -> None:
    await with_a_call(store)
    await open_turn(store, session=FORK, request_id="another")

    with pytest.raises(ResumeRefusedError, match="exists already"):
        await fork(store, 1)


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (ResumeFrom(session="nobody", step=1), "there is no session 'nobody'"),
        (ResumeFrom(session=SESSION, turn=2), "has no turn 2; its last is 1"),
        (ResumeFrom(session=SESSION, step=7), "has no step 7; its last is 2"),
        (ResumeFrom(step=1), "there is no session 'fork'"),
    ],
)
async def test_what_is_not_there_cannot_be_forked(store: Store, origin: ResumeFrom, said: str) -> None:
    await with_a_call(store)

    with pytest.raises(NotFoundError, match=said):
        await store.open_turn(resuming(origin), HELPER)
    with pytest.raises(NotFoundError):
        await store.session(FORK)


async def test_a_step_of_an_open_turn_can_be_forked_once_its_calls_have_their_results(store: Store) -> None:
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), "let me see", [wish(), wish("c2")])
    await claim(store, "w")
    await finish(store, "w")
    with pytest.raises(ResumeRefusedError, match="still runs 1 of its calls"):
        await fork(store, 1)
    with pytest.raises(ResumeRefusedError, match="still runs; name one of its steps"):
        await fork(store, None)

    await claim(store, "w", call_id="c2")
    await finish(store, "w", call_id="c2")
    forked = await fork(store, 1)

    assert orphans(await store.conversation(forked.tip)) == []


async def test_a_fork_of_a_cancelled_step_reads_the_errors_of_its_calls(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "let me see", [wish(), wish("c2")])
    await claim(store, "w")
    await finish(store, "w")
    await store.commit_turn(commit(first.id, stop_reason=StopReason.CANCELLED, call_ids=["c1", "c2"]))

    forked = await fork(store, 1)

    found, aborted = (await store.conversation(forked.tip))[-3:-1]
    assert found == result()
    assert isinstance(aborted, ToolMessage)
    assert aborted.error is not None
    assert aborted.error.code == ReasonCode.TOOL_CANCELLED


async def stopped_for_people(store: Store) -> None:
    """A turn that stopped for one call, and has the result of another."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "may I?", [wish(), wish("c2")])
    await claim(store, "w")
    await finish(store, "w")
    ask = commit(first.id, stop_reason=StopReason.WAITING_FOR_INPUT, call_ids=["c1", "c2"])
    requests = ({"request_id": "c2", "tool": "search", "needs": "approval", "arguments": "{}"},)
    await store.commit_turn(type(ask).model_validate({**ask.model_dump(), "requests": requests}))


async def test_a_fork_of_a_step_that_waits_for_people_does_not_take_the_wait_over(store: Store) -> None:
    await stopped_for_people(store)

    forked = await fork(store, 1)

    conversation = await store.conversation(forked.tip)
    assert orphans(conversation) == []
    assert "nobody decided about search" in conversation[-2].content
    assert [call.call_id for step in await store.steps(SESSION) for call in step.calls] == ["c1", "c2"]


async def test_what_came_later_of_a_call_that_waited_is_what_a_fork_reads(store: Store) -> None:
    """A call that was approved in the next turn has run: the fork reads its result."""
    await stopped_for_people(store)
    await rewind(store, None)  # another message: the call is withdrawn in the ledger of turn 2

    forked = await fork(store, 1, turn=1)

    assert "nobody decided about search, another message came" in (await store.conversation(forked.tip))[-2].content


async def test_a_session_that_waits_for_people_is_not_resumed_without_a_prompt(store: Store) -> None:
    await stopped_for_people(store)

    with pytest.raises(ResumeRefusedError, match="waits for people: answer, approve or deny"):
        await rewind(store, None, prompt="")


async def test_the_generation_and_not_the_compaction_before_it_is_the_step(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    summary = await summarise(store, compact(first.id))
    second = await answer(store, generate(summary.id, step=2), "two")

    await fork(store, 2)

    assert [step.parent for step in await store.steps(FORK)] == [second.id]


async def test_a_rewind_goes_on_from_an_earlier_turn_and_keeps_the_rest_in_the_store(store: Store) -> None:
    """Dreadnode's rewind: to an earlier message of the user, in the same session."""
    await with_a_call(store)
    before = await store.transcript(SESSION)
    second = await store.open_turn(resuming(ResumeFrom(), "and now?", session=SESSION), HELPER)
    said = await answer(store, generate(second.tip, turn=2), "later")
    await store.commit_turn(commit(said.id, turn=2))

    third = await rewind(store, 1)

    assert (third.turn, await store.transcript(SESSION)) == (3, (*before, ON))
    assert (await store.transcript(SESSION, turn=2))[-1] == AssistantMessage(content="later")


async def test_a_rewind_to_before_the_first_message_begins_anew(store: Store) -> None:
    await with_a_call(store)

    await rewind(store, 0)

    assert await store.transcript(SESSION) == (ON,)


async def test_a_turn_resumes_without_a_prompt_where_a_model_can_answer(store: Store) -> None:
    """S-67: from the last checkpoint after max steps."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "let me see", [wish()])
    await claim(store, "w")
    await finish(store, "w")
    await store.commit_turn(commit(first.id, stop_reason=StopReason.MAX_STEPS_REACHED, call_ids=["c1"]))
    before = await store.transcript(SESSION)

    again = await rewind(store, None, prompt="")

    assert (again.turn, await store.transcript(SESSION)) == (2, before)
    assert orphans(before) == []


@pytest.mark.parametrize(("turn", "ends"), [(None, "an answer of the model"), (0, "nothing yet")])
async def test_without_a_prompt_an_answer_is_not_answered(store: Store, turn: int | None, ends: str) -> None:
    await with_a_call(store)

    with pytest.raises(ResumeRefusedError, match=f"ends there with {ends}; give a prompt"):
        await rewind(store, turn, prompt="")


def rows(url: str) -> int:
    engine = create_engine(Address(url).url)
    with engine.connect() as connection:
        tables = ("sessions", "turns", "steps", "tool_calls", "events", "artifacts", "definitions")
        count: int = sum(connection.scalar(text(f"select count(*) from {table}")) for table in tables)
    engine.dispose()
    return count


async def test_a_fork_at_any_step_of_a_long_turn_writes_four_rows(store: Store, url: str) -> None:
    """A fork at step N of a 200-step turn costs the same as a fork at step 2."""
    tip = (await open_turn(store)).tip
    for number in range(1, 201):
        tip = (await answer(store, generate(tip, step=number), str(number))).id
    await store.commit_turn(commit(tip))

    written: list[int] = []
    for step in (2, 199):
        before = rows(url)
        origin = ResumeFrom(session=SESSION, step=step)
        forked = await store.open_turn(resuming(origin, session=f"at {step}"), HELPER)
        written.append(rows(url) - before)
        assert (await store.conversation(forked.tip))[-2:] == (AssistantMessage(content=str(step)), ON)

    assert written == [4, 4]  # the session, its turn, its first step, its first event


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.lists(st.sampled_from(["done", "failed", "lost", "planned"]), max_size=3), min_size=1, max_size=4
    ),
    how=st.sampled_from([StopReason.CANCELLED, StopReason.ERROR, StopReason.MAX_STEPS_REACHED]),
)
async def test_no_cut_leaves_a_call_without_its_result(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str]], how: StopReason
) -> None:
    """S-42: wherever the calls of a turn stood when it ended, every fork of it can be read by every provider."""
    address = f"sqlite:///{tmp_path_factory.mktemp('cut') / 'perdure.db'}"
    async with await Store.open(address, upgrade=True) as store:
        tip, read = (await open_turn(store)).tip, list[str]()
        for number, calls in enumerate(steps, start=1):
            names = [f"{number}-{place}" for place in range(len(calls))]
            tip = (
                await answer(store, generate(tip, step=number, call_ids=read), "…", [wish(name) for name in names])
            ).id
            for name, what in zip(names, calls, strict=True):
                if what != "planned":
                    await claim(store, "w", call_id=name)
                if what in {"done", "failed"}:
                    await finish(store, "w", what, call_id=name)
            read = names
        await store.commit_turn(commit(tip, stop_reason=how, call_ids=read))

        for step in range(len(steps) + 1):
            origin = ResumeFrom(session=SESSION, step=step)
            forked = await store.open_turn(resuming(origin, session=f"fork-{step}"), HELPER)
            assert orphans(await store.conversation(forked.tip)) == []
            assert orphans(await store.transcript(f"fork-{step}")) == []


async def test_a_fork_of_a_fork_begins_with_the_todos_of_its_step(store: Store) -> None:
    """The list of todos belongs to the conversation: it goes with a step, through sessions."""
    todos = (Todo(title="look"),)
    await with_a_call(store)
    second = await store.open_turn(resuming(ResumeFrom(turn=1, step=1), session=SESSION), HELPER)
    await store.append_events(SESSION, [new_event("2/todos", TodosChanged(todos=todos), turn=2)])
    later = await answer(store, generate(second.tip, turn=2), "later")
    await store.commit_turn(commit(later.id, turn=2).model_copy(update={"todos": todos}))

    forked = await fork(store, 1, turn=2)
    again = await store.open_turn(resuming(ResumeFrom(session=FORK, turn=1, step=0), session="again"), HELPER)
    before = await store.open_turn(resuming(ResumeFrom(session=SESSION, turn=1), session="before"), HELPER)

    assert (forked.todos, again.todos, before.todos) == (todos, todos, ())
