"""Reasoning that a provider does not take back: the call goes on without it, and so does the session.

Seen in the public trackers of coding agents and gateways: a signature of another day or of another key, encrypted
reasoning of another organisation, a reasoning item without what followed it, a server that does not know the field.
"""

from collections.abc import Callable

import pytest

from perdure import Agent, tool
from perdure.testing import Fault, Reply, faults, say
from perdure.testing.script import ChatRequest
from tests.memory import Run

WORDS = {
    "anthropic, a signature": "messages.1.content.0: Invalid `signature` in `thinking` block",
    "anthropic, changed": "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant "
    "message cannot be modified. These blocks must remain as they were in the original response.",
    "bedrock": "The model returned the following errors: messages.1.content.0.thinking: Extra inputs are not permitted",
    "gemini": "Thought signature is not valid.",
    "gemini, corrupted": "Corrupted thought signature.",
    "openai, encrypted": "The encrypted content gAAAAABo could not be verified. Reason: Encrypted content could not be "
    "decrypted or parsed.",
    "openai, alone": "Item 'rs_68' of type 'reasoning' was provided without its required following item.",
    "openai, in a chat": "Unknown parameter: 'messages[1].reasoning_content'.",
    "mistral": "body.messages.1.assistant.reasoning_content: Extra inputs are not permitted",
    "groq": "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
    "'reasoning_content' is unsupported)]",
}


@tool
def look() -> str:
    """Look."""
    return "seen"


def strict(fault: Fault) -> Callable[[ChatRequest], Reply]:
    """A model at a provider that refuses what it thought."""

    def answer(request: ChatRequest) -> Reply:
        done = sum(message["role"] == "tool" for message in request.messages) == 2
        reply = say("done") if done else Reply(calls=(("look", {}),), message={"reasoning_content": "I look."})
        is_refused = "reasoning_content" in str(request.messages)
        return reply.model_copy(update={"faults": (fault,) * 30}) if is_refused else reply

    return answer


@pytest.mark.parametrize("name", WORDS)
async def test_reasoning_that_is_refused_is_left_out_and_the_session_goes_on(run: Run, name: str) -> None:
    agent, script = Agent(name="a", model="hosted_vllm/m", tools=[look]), strict(faults.error(400, WORDS[name]))
    first = await run(agent, script=script)
    assert (first["stop_reason"], first["output"]) == ("finished", "done"), first["error"]
    assert len(run.requests) == 4, "one is refused, and remembered"
    assert (await run(agent, script=script, prompt="and now?"))["stop_reason"] == "finished"


async def test_a_refusal_that_only_speaks_of_reasoning_is_told(run: Run) -> None:
    fault = faults.error(400, "reasoning_effort: Input should be 'low', 'medium' or 'high'")
    thought = Reply(calls=(("look", {}),), message={"reasoning_content": "I look."})
    script = [thought, say("done").after(*[fault] * 30)]
    result = await run(Agent(name="a", model="hosted_vllm/m", tools=[look]), *script)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.request_error")
    assert len(run.requests) == 2
