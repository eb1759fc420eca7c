"""Test your agents: a scripted model behind real HTTP, with faults on demand."""

from perdure.testing import faults
from perdure.testing.provider import RecordedRequest, ScriptedProvider
from perdure.testing.script import ChatRequest, Fault, Reply, Script, call, call_in_text, say

__all__ = [
    "ChatRequest",
    "Fault",
    "RecordedRequest",
    "Reply",
    "Script",
    "ScriptedProvider",
    "call",
    "call_in_text",
    "faults",
    "say",
]
