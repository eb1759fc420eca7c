"""What one provider is sent of a conversation: marks for its cache, and nothing that it refuses."""

import copy
from typing import Any

import pytest

from perdure.activities.models.litellm_call import complete
from perdure.activities.models.provider_messages import add_cache_marks
from perdure.contracts.agents import AgentDefinition
from perdure.testing import Script, ScriptedProvider, say

MARK = {"type": "ephemeral"}

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first"},
    {"role": "user", "content": "two"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "nothing"},
]


async def sent(definition: AgentDefinition, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The body of the request over HTTP."""
    script = Script(replies=(say("?"), say("?"), say("done")))
    async with ScriptedProvider(script) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted-0123456789")
        monkeypatch.setenv("ANTHROPIC_API_BASE", provider.anthropic_url)
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        before = copy.deepcopy(CONVERSATION)
        await complete(definition, CONVERSATION)
        assert before == CONVERSATION
        return provider.requests[0].body


async def test_anthropic_keeps_the_system_prompt_and_the_last_two_messages_that_are_no_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = await sent(AgentDefinition(name="a", model="anthropic/claude-x"), monkeypatch)
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": MARK}]
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert [(block["type"], "cache_control" in block) for block in blocks] == [
        ("text", False),
        ("text", False),
        ("text", True),
        ("tool_use", False),
        ("tool_result", True),
    ]


@pytest.mark.parametrize(
    "definition",
    [
        AgentDefinition(name="a", model="anthropic/claude-x", cache="off"),
        AgentDefinition(name="a", model="openai/scripted"),
    ],
    ids=["off", "another provider"],
)
async def test_nothing_is_marked_elsewhere(definition: AgentDefinition, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cache_control" not in str(await sent(definition, monkeypatch))


def test_an_empty_text_is_not_marked() -> None:
    """Anthropic refuses the mark on it."""
    messages: list[Any] = [{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": "1", "content": " "}]
    assert add_cache_marks(AgentDefinition(name="a", model="anthropic/x"), messages)[1] == messages[1]


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("bedrock/anthropic.claude-x", True),
        ("vertex_ai/claude-x", True),
        ("openrouter/anthropic/claude-x", True),
        ("vertex_ai/gemini-x", False),
        ("mistral/x", False),
    ],
)
def test_marks_are_for_models_of_anthropic_wherever_they_run(model: str, takes: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "a"}]
    assert (add_cache_marks(AgentDefinition(name="a", model=model), messages) != messages) is takes
