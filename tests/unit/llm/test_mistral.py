"""Ids of calls as Mistral takes them: nine letters and digits, one for one, and the same in every request."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.values import JsonValue
from perdure.llm import call_ids
from perdure.llm.call_ids import needs_short_ids, with_short_ids
from perdure.llm.openai_format import WireMessage

IDS = st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=30, unique=True)


def conversation(*ids: str) -> list[WireMessage]:
    messages: list[WireMessage] = [{"role": "user", "content": "go"}]
    for each in ids:
        call: JsonValue = {"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": each, "content": each},
        ]
    return messages


def short(messages: list[WireMessage]) -> list[str]:
    return [str(message["tool_call_id"]) for message in messages if message["role"] == "tool"]


@given(IDS)
def test_each_id_has_one_of_nine_letters_and_digits_that_no_other_has(ids: list[str]) -> None:
    sent = with_short_ids(conversation(*ids))
    found = short(sent)
    assert all(re.fullmatch(r"[a-zA-Z0-9]{9}", each) for each in found)
    assert len({*found}) == len(ids)
    called = [message["tool_calls"][0]["id"] for message in sent if message["role"] == "assistant"]  # type: ignore[index,call-overload]
    assert called == found
    assert [message["content"] for message in sent] == [message["content"] for message in conversation(*ids)]


@given(IDS)
def test_a_later_request_begins_as_the_one_before(ids: list[str]) -> None:
    """Or no provider would find the conversation in its cache."""
    whole = with_short_ids(conversation(*ids))
    before = with_short_ids(conversation(*ids[:-1]))
    assert whole[: len(before)] == before


def test_ids_that_would_be_the_same_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_ids, "_digest", lambda text: "a" * (9 - text.count("#")) + "b" * text.count("#"))
    assert short(with_short_ids(conversation("x", "y", "z"))) == ["aaaaaaaaa", "aaaaaaaab", "aaaaaaabb"]


def test_only_ids_that_are_too_long_are_made_short() -> None:
    fits, long = "x" * 40, "y" * 41
    sent = short(with_short_ids(conversation(fits, long), longest=40))
    assert sent == [fits, *short(with_short_ids(conversation(long)))]
    assert len(sent[1]) == 9


def test_a_request_without_calls_stays_as_it_is() -> None:
    assert with_short_ids(conversation()) == conversation()


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("mistral/magistral-medium", True),
        ("bedrock/mistral.mixtral-8x7b-instruct-v0:1", True),
        ("hosted_vllm/Devstral-Small", True),
        ("mistral/open-nemo", True),
        ("openai/gpt-5", False),
        ("anthropic/claude-sonnet-4-5", False),
    ],
)
def test_whose_models_these_are(model: str, *, needs: bool) -> None:
    assert needs_short_ids(model) == needs
