"""The names people program against: taking one away is a breaking change, adding one is a decision."""

import importlib

import pytest

PUBLIC = {
    "perdure": [
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
    ],
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_module_offers_exactly_these_names(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == PUBLIC[module]


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_there_and_documented(module: str) -> None:
    offered = importlib.import_module(module)
    undocumented = [name for name in PUBLIC[module] if not getattr(offered, name).__doc__]
    assert undocumented == []
