"""Limits that refusals have taught a session, and the events that carry them from one worker to the next."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perdure.activities.models.given_way import MOST_KEPT, Given, GivenWay, adapted
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import GenerationAdapted

ADDRESS = "https://models.example/v1?key=secret"


def definition(model: str = "openai/eyes", **params: str) -> AgentDefinition:
    """An agent of this model."""
    return AgentDefinition(name="seer", model=model, generate_params=dict(params))


def bounds(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


@st.composite
def lessened(draw: st.DrawFn) -> list[Given]:
    """Limits as refusals teach them, each step less than the one before."""
    steps = [Given()]
    for _ in range(draw(st.integers(1, 6))):
        last = steps[-1]
        steps.append(
            replace(
                last,
                refused=last.refused | draw(st.frozensets(st.sampled_from("abcdef"))),
                reasons=last.reasons and draw(st.booleans()),
                most=draw(bounds(last.most)),
                most_bytes=draw(bounds(last.most_bytes)),
                most_characters=draw(st.one_of(st.just(last.most_characters), bounds(last.most_characters or 10**6))),
            )
        )
    return steps


@given(lessened())
def test_events_carry_whatever_was_learnt_to_another_worker(steps: list[Given]) -> None:
    """Each says what is new only, so that a long session's events stay small."""
    agent = definition(api_base=ADDRESS)
    told = [event for before, now in pairwise(steps) if (event := adapted(before, now, agent, "no")) is not None]
    assert "secret" not in str(told)
    assert len([name for event in told for name in event.left_out]) == len(steps[-1].refused)
    other = GivenWay()
    other.recall("s", [GenerationAdapted.model_validate_json(event.model_dump_json()) for event in told])
    assert other.of("s", agent) == steps[-1]
    for stranger in (definition(), definition("openai/other", api_base=ADDRESS)):
        assert other.of("s", stranger) == Given()
    assert other.of("t", agent) == Given()


def test_nothing_new_is_no_event() -> None:
    seen = Given(most=3)
    assert adapted(seen, replace(seen, taken=frozenset("a")), definition(), "") is None


def test_a_session_that_is_forgotten_is_looked_at_again() -> None:
    ways = GivenWay()
    ways.recall("first", [])
    assert ways.knows("first")
    for number in range(MOST_KEPT):
        ways.recall(f"s{number}", [])
    assert not ways.knows("first")
