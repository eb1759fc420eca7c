"""Agents that come whole in a start request. What they may use is what the worker has registered, by name."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.data import AgentDataError, Finders, Registered, agent_of, delegate_of, rule_of
from perdure.agents.schemas import MAX_PARTS, has_expressions, parts_in
from perdure.agents.tool import Tool
from perdure.agents.warned import AgentWarning
from perdure.contracts.hooks import HookRule
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.retries import check_no_address
from perdure.contracts.values import JsonValue

PARAMETERS = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "seed",
        "service_tier",
        "stop",
        "temperature",
        "thinking",
        "tool_choice",
        "top_k",
        "top_p",
        "verbosity",
    }
)
"""Arguments of a model call that a request may set. Others could send the worker's keys to any address."""


class InlineAgents:
    """What a worker makes of agents in start requests.

    Args:
        registered: What they may use.
        names: Names of agents that are the worker's own.
    """

    def __init__(self, registered: Registered, names: Collection[str]) -> None:
        self._registered = registered
        self._names = frozenset(names)
        self._find = Finders(
            tools=self._tool, mcp_servers=self._server, skills=_no_skills, hooks=_rule, delegates=delegate_of
        )

    def agent(self, fields: Mapping[str, JsonValue]) -> Agent:
        """The agent that the object describes.

        Raises:
            AgentDefinitionError: It describes none that this worker may run; the message is one line.
        """
        called = f"agent {fields.get('name', '?')!r}"
        for field in ("output_schema", "approvals"):  # first, for even to read an expression can fail
            if has_expressions(fields.get(field)):
                msg = (
                    f"{called}: {field}: pattern and patternProperties may not come in a request; use enum or maxLength"
                )
                raise AgentDataError((field,), msg)
            if parts_in(fields.get(field)) > MAX_PARTS:
                msg = (
                    f"{called}: {field}: a request may have schemas of {MAX_PARTS:,} parts at most; write a shorter one"
                )
                raise AgentDataError((field,), msg)
        with warnings.catch_warnings():  # nobody at the worker can mend what they are about
            warnings.simplefilter("ignore", AgentWarning)
            agent = agent_of(fields, self._find)
        if agent.name in self._names:
            msg = f"{called}: name: this worker has an agent of that name; start that one, or choose another name"
            raise AgentDataError(("name",), msg)
        for field, params in _parameters(agent):
            if odd := sorted(params.keys() - PARAMETERS):
                known = ", ".join(sorted(PARAMETERS))
                msg = f"{called}: {field}: {', '.join(odd)} may not come in a request; what may: {known}"
                raise AgentDataError((field,), msg)
        for model in (*agent.models, *([agent.compaction.model] if agent.compaction.model else [])):
            try:
                check_no_address(model)
            except ValueError as error:
                raise AgentDataError(("model",), f"{called}: {error}") from None
        for rule in agent.approvals.rules:
            guarded = [
                tool.name for tool in agent.definition.tools if tool.requires_approval and rule.matches(tool.name)
            ]
            if rule.decision == "allow" and guarded:
                msg = f"{called}: approvals: {guarded[0]} asks for an approval by itself, which a request may not waive"
                raise AgentDataError(("approvals",), msg)
        return agent

    def _tool(self, item: JsonValue) -> tuple[Tool[..., Any], ...]:
        return (self._registered.tool(_name(item, "a tool")),)

    def _server(self, item: JsonValue) -> tuple[AnyServerConfig, ...]:
        return (self._registered.server(_name(item, "an MCP server")),)


def _parameters(agent: Agent) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    yield "generate_params", agent.generate_params
    for one in agent.fallback_models:
        yield "fallback_models", one.generate_params or {}


def _name(item: JsonValue, kind: str) -> str:
    if isinstance(item, str):
        return item
    msg = f"write the name of {kind} that the worker has registered"
    raise AgentDefinitionError(msg)


def _rule(item: JsonValue) -> tuple[HookRule]:
    rule = rule_of(item)
    if rule is None:
        msg = (
            "a hook of a request is a rule, an object with 'name', 'on' and 'reaction'; functions are the worker's own"
        )
        raise AgentDefinitionError(msg)
    return (rule,)


def _no_skills(_: JsonValue) -> tuple[Any, ...]:
    msg = "skills are read from folders of the worker; no request may bring them"
    raise AgentDefinitionError(msg)
