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
