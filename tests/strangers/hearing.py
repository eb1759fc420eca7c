"""Hearing of models that the strangers' agents have: their people name in words what is to be called."""

from collections.abc import Mapping
from typing import Any

from perdure.testing import ChatRequest, Reply, call


def hear(request: ChatRequest) -> tuple[list[str], int]:
    """What users and tools have said, in order, and the place of the last message of a user."""
    said = [message for message in request.messages if message["role"] in {"user", "tool"}]
    last = max(number for number, message in enumerate(said) if message["role"] == "user")
    return [str(message["content"]) for message in said], last


def obey(request: ChatRequest, calls: Mapping[str, tuple[str, Any]]) -> Reply | None:
    """The calls that the last message of the user names, unless they have been made."""
    said, last = hear(request)
    asked = [calls[word] for word in said[last].split() if word in calls]
    return call(*asked) if asked and last == len(said) - 1 else None
