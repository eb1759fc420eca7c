"""S-87: what a request wants its model to call is asked for until it has been called, and no longer."""

from dataclasses import replace
from typing import Any

import pytest

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.input_requests import ResultRequest
from perdure.contracts.tool_choice import NamedTool, ToolChoice
from perdure.contracts.tools import ToolPolicy
from perdure.contracts.turns import StopReason
from perdure.engine import generation, input_requests
from perdure.engine.state import Mailbox
from tests.unit.engine.test_people import Turn, planned, state

OF_CALLER: dict[str, Any] = {"tools": {"caller": ToolPolicy(by_caller=True), "plain": ToolPolicy()}}
OWN: dict[str, Any] = {"tools": {"plain": ToolPolicy(), "other": ToolPolicy()}}
LOOK, PLAIN = NamedTool(name="caller"), NamedTool(name="plain")


@pytest.mark.parametrize(
    ("choice", "policy", "called", "left"),
    [
        ("required", OWN, ["plain"], None),
        ("required", OWN, [], "required"),
        ("required", OF_CALLER, ["plain"], "required"),
        ("required", OF_CALLER, ["plain", "caller"], None),
        (PLAIN, OF_CALLER, ["plain"], None),
        (LOOK, OF_CALLER, ["plain"], LOOK),
        (LOOK, OF_CALLER, ["caller"], None),
        ("none", OWN, ["plain"], "none"),
        (None, OWN, ["plain"], None),
    ],
)
def test_a_choice_holds_until_it_is_met(
    choice: ToolChoice | None, policy: dict[str, Any], called: list[str], left: ToolChoice | None
) -> None:
    begun = replace(state(**policy), tool_choice=choice)
    assert generation.generate(begun, Mailbox()).tool_choice == choice
    calls = tuple(planned(kind, number) for number, kind in enumerate(called))
    behind = generation.with_answer(begun, Generation(tip="t1", calls=calls))
    assert behind.tool_choice == left


def test_a_call_that_is_refused_does_not_meet_it() -> None:
    wrong = ErrorDetail(code="tool.invalid_arguments", title="plain", message="wrong")
    call = planned("plain", 0).model_copy(update={"rejected": wrong})
    behind = generation.with_answer(replace(state(**OWN), tool_choice="required"), Generation(tip="t1", calls=(call,)))
    assert behind.tool_choice == "required"


def test_a_result_may_ask_for_the_next_call() -> None:
    turn = Turn(["caller"], **OF_CALLER)
    turn.until_it_waits()
    said = ResultRequest(request="c0", value="seen", tool_choice="required").reply()
    turn.mail, _ = input_requests.accept_reply(turn.state, turn.mail, said, turn.now)
    assert isinstance(turn.until_it_waits(), Generate)
    assert turn.state.tool_choice == "required"


def test_only_a_choice_gives_a_call_another_key() -> None:
    """Answers that were stored before there was a choice are found again."""
    plain = generation.generate(state(**OWN), Mailbox())
    chosen = plain.model_copy(update={"tool_choice": "required"})
    assert "tool_choice" not in plain.model_dump_json()
    assert plain.step_id() != chosen.step_id()


def test_a_model_that_answers_in_words_is_told_twice_to_make_the_call() -> None:
    now, told = replace(state(**OF_CALLER), tool_choice=LOOK), list[tuple[str, ...]]()
    for number in range(4):
        told.append(generation.generate(now, Mailbox()).said)
        now = generation.with_answer(now, Generation(tip=f"t{number}", preview="words"))
        if now.ending is not None:
            break
    assert [len(said) for said in told] == [0, 1, 1]
    assert "a call of the tool caller" in told[1][0]
    assert now.stop_reason is StopReason.FINISHED


def test_a_choice_without_any_tool_asks_for_nothing() -> None:
    behind = generation.with_answer(replace(state(), tool_choice="required"), Generation(tip="t1", preview="words"))
    assert behind.stop_reason is StopReason.FINISHED
