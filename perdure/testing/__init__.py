"""Test your agents: a scripted model behind real HTTP with faults on demand, turns in memory, and simulations of them.

``run_in_memory``, ``simulate`` and what belongs to them are imported when they are first named: they bring the worker's
libraries with them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from perdure.libraries import check_sdk
from perdure.testing import faults
from perdure.testing.environment import Environment, EnvironmentUnavailableError, environment
from perdure.testing.provider import RecordedRequest, ScriptedProvider
from perdure.testing.script import ChatRequest, Fault, Reply, Script, call, call_in_text, say

if TYPE_CHECKING:
    from perdure.testing.in_memory import InMemoryError, InMemoryRun, Said, answer, approve, deny, result, run_in_memory
    from perdure.testing.simulation import Simulated, SimulationError, simulate

__all__ = [
    "ChatRequest",
    "Environment",
    "EnvironmentUnavailableError",
    "Fault",
    "InMemoryError",
    "InMemoryRun",
    "RecordedRequest",
    "Reply",
    "Said",
    "Script",
    "ScriptedProvider",
    "Simulated",
    "SimulationError",
    "answer",
    "approve",
    "call",
    "call_in_text",
    "deny",
    "environment",
    "faults",
    "result",
    "run_in_memory",
    "say",
    "simulate",
]

_IN_MEMORY = frozenset({"InMemoryError", "InMemoryRun", "Said", "answer", "approve", "deny", "result", "run_in_memory"})
_SIMULATION = frozenset({"Simulated", "SimulationError", "simulate"})


def __getattr__(name: str) -> object:
    module = "in_memory" if name in _IN_MEMORY else "simulation" if name in _SIMULATION else None
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    check_sdk()
    return getattr(import_module(f"{__name__}.{module}"), name)
