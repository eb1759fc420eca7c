"""The cases of a program in Python: each is a function of an agent's name, which is its own, that gives a text."""

import asyncio
import inspect
import json
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

FIVE = ["effect one", "two", "three", "four", "five"]
TWO_RIVERS = ["effect river", "again river"]


class River(BaseModel):
    """The form of an answer."""

    name: str
    length: int

    def __str__(self) -> str:
        return f"{self.name} {self.length}"


def user(text: str) -> Any:
    """A message of the user, as OpenAI's API has it."""
    return {"role": "user", "content": text}


FUNCTIONS: Any = [
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
]
"""Functions of a program, as Chat Completions has them."""


def named(model: str) -> Any:
    """Options of a request of the conversation that is named as the agent."""
    return {"extra_headers": {"X-Chat": model}}


def talk(asking: Callable[..., Any], model: str, texts: list[str], **more: Any) -> str:
    """Say one text after the other, and run the functions that the messages call; the text of the last answer."""
    messages: list[Any] = []
    message: Any = None
    for said in texts:
        messages.append(user(said))
        while True:
            message = asking(model, messages, **more)
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = f"{call.function.name} seen"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return str(message.content)


async def outcome(case: Callable[[str], str | Awaitable[str]]) -> str:
    """The text of a case, or the class and the status of its exception."""
    try:
        said = case(case.__name__)
        return await said if inspect.isawaitable(said) else said
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__} {getattr(error, 'status_code', '')}".strip()


def tell(*cases: Callable[[str], str | Awaitable[str]]) -> None:
    """Print the outcome of each case, as one object of JSON."""

    async def outcomes() -> dict[str, str]:
        return {case.__name__: await outcome(case) for case in cases}

    print(json.dumps(asyncio.run(outcomes())))
