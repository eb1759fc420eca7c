"""perdure runs LLM agents as durable jobs on Temporal: the names an author of agents needs.

The client stands in ``perdure.client``; importing this package imports neither it nor Temporal.
"""

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.context import ToolContext
from perdure.agents.effects import DidNotHappen, EffectUnknown, Happened
from perdure.agents.files import File, Image
from perdure.agents.needs import Secret, Setting
from perdure.agents.outputs import read_output
from perdure.agents.people import ask_user
from perdure.agents.tool import Tool, ToolDefinitionError, tool
from perdure.agents.toolset import Toolset, tool_method
from perdure.contracts.agents import Compaction
from perdure.contracts.budgets import Budgets, Usage
from perdure.contracts.errors import ErrorDetail, ModelError, ReasonCode
from perdure.contracts.mcp import HttpServerConfig, OAuthConfig, StdioServerConfig
from perdure.contracts.people import ApprovalPolicy, ApprovalRule
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.turns import StopReason, TurnRequest, TurnResult

__all__ = [
    "Agent",
    "AgentDefinitionError",
    "ApprovalPolicy",
    "ApprovalRule",
    "Budgets",
    "Compaction",
    "DidNotHappen",
    "EffectUnknown",
    "ErrorDetail",
    "File",
    "Happened",
    "HttpServerConfig",
    "Image",
    "ModelError",
    "OAuthConfig",
    "ReasonCode",
    "RetryPolicy",
    "Secret",
    "Setting",
    "StdioServerConfig",
    "StopReason",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "Toolset",
    "TurnRequest",
    "TurnResult",
    "Usage",
    "ask_user",
    "read_output",
    "tool",
    "tool_method",
]
