"""perdure runs LLM agents as durable jobs on Temporal: the names an author of agents needs.

The client stands in ``perdure.client``; importing this package imports neither it nor Temporal.
"""

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.author_warnings import AgentWarning
from perdure.agents.builtin_tools import ask_user, clear_todo, finish, read_output, todo
from perdure.agents.context import DidNotHappen, EffectUnknown, Happened, ToolContext
from perdure.agents.delegates import Delegate, spawn_agent
from perdure.agents.environment import Secret, Setting
from perdure.agents.files import File, Image
from perdure.agents.hooks import Hook, HookContext, HookDefinitionError, StepEnd, hook
from perdure.agents.tool import Tool, ToolDefinitionError, caller_tool, tool
from perdure.agents.toolset import Toolset, tool_method
from perdure.contracts.agents import Compaction
from perdure.contracts.budgets import Budgets, Usage
from perdure.contracts.errors import ErrorDetail, ModelError, ReasonCode
from perdure.contracts.hooks import Continue, Fail, Finish, HookRule, Retry, RetryWithFeedback
from perdure.contracts.input_requests import ApprovalPolicy, ApprovalRule
from perdure.contracts.mcp import HttpServerConfig, OAuthConfig, StdioServerConfig
from perdure.contracts.retention import Retention
from perdure.contracts.retries import Fallback, RetryPolicy
from perdure.contracts.turn_context import TurnContext
from perdure.contracts.turns import StopReason, TurnRequest, TurnResult
from perdure.trajectory import Trajectory

__all__ = [
    "Agent",
    "AgentDefinitionError",
    "AgentWarning",
    "ApprovalPolicy",
    "ApprovalRule",
    "Budgets",
    "Compaction",
    "Continue",
    "Delegate",
    "DidNotHappen",
    "EffectUnknown",
    "ErrorDetail",
    "Fail",
    "Fallback",
    "File",
    "Finish",
    "Happened",
    "Hook",
    "HookContext",
    "HookDefinitionError",
    "HookRule",
    "HttpServerConfig",
    "Image",
    "ModelError",
    "OAuthConfig",
    "ReasonCode",
    "Retention",
    "Retry",
    "RetryPolicy",
    "RetryWithFeedback",
    "Secret",
    "Setting",
    "StdioServerConfig",
    "StepEnd",
    "StopReason",
    "Tool",
    "ToolContext",
    "ToolDefinitionError",
    "Toolset",
    "Trajectory",
    "TurnContext",
    "TurnRequest",
    "TurnResult",
    "Usage",
    "ask_user",
    "caller_tool",
    "clear_todo",
    "finish",
    "hook",
    "read_output",
    "spawn_agent",
    "todo",
    "tool",
    "tool_method",
]
