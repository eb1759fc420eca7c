"""Test your agents: a scripted model behind real HTTP, with faults on demand, and all of perdure around it."""

from perdure.testing import faults
from perdure.testing.environment import Environment, EnvironmentUnavailableError, environment
from perdure.testing.provider import RecordedRequest, ScriptedProvider
from perdure.testing.script import ChatRequest, Fault, Reply, Script, call, call_in_text, say

__all__ = [
    "ChatRequest",
    "Environment",
    "EnvironmentUnavailableError",
    "Fault",
    "RecordedRequest",
    "Reply",
    "Script",
    "ScriptedProvider",
    "call",
    "call_in_text",
    "environment",
    "faults",
    "say",
]
