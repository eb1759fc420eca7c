"""perdure runs LLM agents as durable jobs on Temporal: the names an author of agents needs.

The client stands in ``perdure.client``; importing this package imports neither it nor Temporal.
"""

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.tool import Tool, ToolContext, ToolDefinitionError, tool
from perdure.contracts.agents import Compaction
from perdure.contracts.budgets import Budgets, Usage
from perdure.contracts.errors import ErrorDetail, ModelError, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.turns import StopReason, TurnRequest, TurnResult

__all__ = [
    "Agent",
    "AgentDefinitionError",
    "Budgets",
    "Compaction",
    "ErrorDetail",
    "ModelError",
    "ReasonCode",
    "RetryPolicy",
    "StopReason",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "TurnRequest",
    "TurnResult",
    "Usage",
    "tool",
]
