"""Conversations that sessions begin with: what a provider would refuse later is refused before the turn starts."""

from typing import Any

import pytest

from perdure.contracts.messages import AssistantMessage, ConversationError, ToolMessage, check_history

USER: dict[str, Any] = {"role": "user", "content": "hi"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}


def asking(call_id: str = "c1", name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ([USER, asking(name="look at"), result()], "message 2: a call's tool is named 'look at'; a name has 1 to 64"),
        ([USER, asking(name=""), result()], "message 2: a call's tool is named ''"),
        ([USER, asking(name="x" * 65), result()], "message 2: a call's tool is named 'xxx"),
        ([USER, asking(name="look\n"), result()], "message 2: a call's tool is named"),
        ([USER, asking(arguments="[1]"), result()], "message 2: the arguments of call 'c1' are no JSON object: "),
        ([USER, asking(arguments="{"), result()], "message 2: the arguments of call 'c1' are no JSON object: "),
        ([USER, asking(arguments='{"a": NaN}'), result()], "message 2: the arguments of call 'c1' are no JSON object"),
        (
            [USER, asking("a.b"), result("a.b"), asking("a:b"), result("a:b")],
            "message 4: the id 'a:b' of a call becomes",
        ),
        ([USER, {"role": "user", "content": " \n"}], "message 2: this message of the user is empty; leave it out"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "message 1: this message of the user is empty"),
        (
            [SYSTEM, {"role": "assistant", "content": "hi"}],
            "message 2: a conversation begins with a message of the user",
        ),
        ([asking(), result()], "message 1: a conversation begins with a message of the user"),
    ],
)
def test_what_providers_refuse_is_refused_in_one_line_with_the_message(messages: list[Any], cause: str) -> None:
    with pytest.raises(ConversationError) as refusal:
        check_history(messages)
    assert str(refusal.value).startswith(cause)
    assert "\n" not in str(refusal.value)


def test_odd_characters_of_call_ids_are_replaced_in_calls_and_results_alike() -> None:
    """Kimi's models number their calls ``functions.look:0``, which other providers refuse."""
    read = check_history([SYSTEM, USER, asking("functions.look:0", arguments=""), result("functions.look:0"), USER])
    _, asks, told, _ = read
    assert isinstance(asks, AssistantMessage)
    assert isinstance(told, ToolMessage)
    assert (asks.tool_calls[0].id, told.call_id) == ("functions_look_0", "functions_look_0")
    assert asks.tool_calls[0].arguments == "{}"
