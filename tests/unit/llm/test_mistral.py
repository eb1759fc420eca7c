"""Conversations as Mistral takes them: ids of nine letters and digits, one for one, and roles in turn."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.values import JsonValue
from perdure.llm import mistral
from perdure.llm.mistral import NOTED, alternating, is_of_mistral, with_short_ids
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
    monkeypatch.setattr(mistral, "_digest", lambda text: "a" * (9 - text.count("#")) + "b" * text.count("#"))
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
    assert is_of_mistral(model) == needs


TEXT: Any = {"type": "text", "text": "a"}
PICTURE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def said(role: str, content: Any = "x") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([said("tool"), said("user", "b")], [said("tool"), said("assistant", NOTED), said("user", "b")]),
        ([said("user", "a"), said("user", "b")], [said("user", "a\n\nb")]),
        ([said("user", "a"), said("user", [PICTURE])], [said("user", [TEXT, PICTURE])]),
        ([said("user", [PICTURE]), said("user", "a")], [said("user", [PICTURE, TEXT])]),
        ([said("tool"), said("tool"), said("assistant")], [said("tool"), said("tool"), said("assistant")]),
        ([said("system"), said("user")], [said("system"), said("user")]),
    ],
)
def test_a_user_follows_an_answer(before: Any, after: Any) -> None:
    assert alternating(before) == after


@given(st.lists(st.sampled_from(["user", "assistant", "tool"])))
def test_no_user_follows_a_tool_or_a_user_and_nothing_is_lost(roles: list[str]) -> None:
    messages = [said(role, str(number)) for number, role in enumerate(roles)]
    sent: list[Any] = list(alternating(messages))
    pairs = [(first["role"], second["role"]) for first, second in itertools.pairwise(sent)]
    assert not {("tool", "user"), ("user", "user")} & {*pairs}
    told = [part for message in sent if message["content"] != NOTED for part in message["content"].split("\n\n")]
    assert told == [message["content"] for message in messages]
    assert alternating(sent) == sent
