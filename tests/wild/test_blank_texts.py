"""Blank texts that reach a provider, which refuses the whole conversation for one of them, and every later message.

Seen in the public trackers of agent frameworks and gateways: Anthropic and Bedrock refuse text blocks without a
character that is no space, Moonshot and Z.ai empty contents, and a session that holds one is refused for ever.
"""

from typing import Any

import pytest

from perdure.activities.models.blank_texts import without_blanks
from perdure.activities.models.model_call import Answer, complete
from perdure.activities.models.record_answer import step_of
from perdure.client.errors import RequestRefusedError
from perdure.client.requests import turn_request
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.generations import Generate
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.contracts.turns import Continuation
from perdure.contracts.values import is_visible
from perdure.llm.openai_format import wire
from perdure.testing import Script, ScriptedProvider, say

BLANKS = ["", " ", "\n\n", "\t \r\n", "\u00a0", "\u200b", "\u200b \u2060", "\ufeff", "\u3164", "\u2800", "\x00\x1b"]
LOOK = ToolDeclaration(name="look", reference="t:look", description="", parameters={"type": "object", "properties": {}})
CALL = ToolCall(id="call_1", name="look")


@pytest.mark.parametrize("blank", BLANKS)
def test_no_text_that_is_sent_is_blank(blank: str) -> None:
    """Whatever a session holds from before."""
    stored: list[Message] = [
        UserMessage(content=blank),
        AssistantMessage(content=blank, tool_calls=(CALL,)),
        ToolMessage(call_id="call_1", name="look", content=blank),
        AssistantMessage(content=blank),
        UserMessage(content="go on"),
    ]
    prompt: Any = {"role": "system", "content": blank}
    sent = without_blanks([prompt, *map(wire, stored)])
    assert [message["content"] for message in sent] == ["(no text)", None, "(no output)", "(no text)", "go on"]


def test_blank_blocks_beside_a_picture_or_a_text_are_left_out() -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": "data:"}}
    messages: list[Any] = [
        {"role": "user", "content": [picture, {"type": "text", "text": " "}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "\n"}]},
        {"role": "user", "content": [{"type": "text", "text": "\u200b"}, {"type": "text", "text": "go"}]},
    ]
    contents = [message["content"] for message in without_blanks(messages)]
    assert contents == [[picture], "(no output)", [{"type": "text", "text": "go"}]]


@pytest.mark.parametrize("wire_name", ["openai", "anthropic"])
async def test_a_provider_reads_none_over_http(wire_name: str) -> None:
    messages = [wire(UserMessage(content="go")), wire(AssistantMessage(content=" \n", tool_calls=(CALL,)))]
    messages.append(wire(ToolMessage(call_id="call_1", name="look", content="")))
    async with ScriptedProvider(Script(replies=(say("unread"), say("done")))) as provider:
        address = provider.anthropic_url if wire_name == "anthropic" else provider.url
        params: Any = {"api_base": address, "api_key": "sk-scripted-blank-01"}
        using = AgentDefinition(name="a", model=f"{wire_name}/m", tools=(LOOK,), generate_params=params)
        await complete(using, messages)
        read = provider.requests[0].request.messages
    assert [message["role"] for message in read] == ["user", "assistant", "tool"]
    assert read[1].get("content") in (None, "")
    assert "(no output)" in str(read[2]["content"])


@pytest.mark.parametrize("blank", BLANKS[1:])
def test_a_blank_prompt_is_refused_before_anything_starts(blank: str) -> None:
    with pytest.raises(RequestRefusedError, match="prompt: has no visible character"):
        turn_request("s", {"agent": "a", "prompt": blank})
    assert Continuation(agent="a", prompt=blank).prompt == blank  # a run of an older release goes on


@pytest.mark.parametrize("seen", [".", "ä", "漢", "🙂", "e\u0301", "\ue000", " x ", "0"])
def test_what_can_be_seen_is_a_prompt(seen: str) -> None:
    assert is_visible(seen)


def ledgers_arguments(arguments: str) -> tuple[str, str]:
    """The arguments of the answer's call for the tool's body, and for people."""
    using = AgentDefinition(name="a", model="openai/m", tools=(LOOK,))
    request = Generate(session="s", turn=1, step=1, parent="p", definition=using.digest())
    call = RawCall(name="look", arguments=arguments)
    answer = Answer(text="", calls=(call,), thinking=(), finish_reason="tool_calls", usage=Usage(), cost_usd=None)
    step, ledger = step_of(request, using, (), answer, ())
    return ledger[0].arguments, step.calls[0].arguments


@pytest.mark.parametrize("nothing", ["", " ", "null", " null\n", "None", '""', "[]", "{}"])
def test_a_call_without_arguments_has_none_however_the_model_writes_it(nothing: str) -> None:
    """Seen with several open models behind OpenAI-shaped servers."""
    assert ledgers_arguments(nothing) == ("{}", "{}")


@pytest.mark.parametrize("something", ["[1]", "nul", '"x"', "0", "{", '{"a": null}'])
def test_other_arguments_stay_as_they_are(something: str) -> None:
    assert ledgers_arguments(something)[0] == something
