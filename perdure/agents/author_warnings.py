"""Warnings for authors: what an agent may say, but what is unsafe or has no effect."""

import inspect
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from perdure.contracts.agents import AgentDefinition, is_destination
from perdure.contracts.conditions import AnyCondition, ToolOutput, ToolUse, walk_conditions
from perdure.contracts.events import EVENT_TYPES
from perdure.contracts.hooks import EVENTS_AT, Continue, HookDeclaration, HookRule, Reaction
from perdure.contracts.input_requests import ApprovalRule
from perdure.contracts.mcp import AnyServerConfig


class AgentWarning(UserWarning):
    """Something that an author wrote is unsafe, or comes to nothing; the message says why, and what to write."""


MEANT = {
    "system_prompt": "instructions",
    "system": "instructions",
    "prompt": "instructions",
    "output_type": "output_schema",
    "response_format": "output_schema",
    "max_turns": "max_steps",
    "max_iterations": "max_steps",
    "functions": "tools",
    "subagents": "delegates",
    "handoffs": "delegates",
    "temperature": "generate_params",
    "max_tokens": "generate_params",
}
"""Settings by the names that other libraries have for them."""

RUNS = frozenset({"run", "run_sync", "arun", "invoke", "ainvoke", "start", "kickoff"})
"""Methods with which agents of other libraries run."""


def tell_how_to_run(agent: str, method: str) -> str:
    """Tell how to run the agent, in place of a method that would run it."""
    return (
        f"an agent has no {method}; run it with run_in_memory(agent, prompt) of perdure.testing, with "
        f"'perdure run {agent} PROMPT', or with Client.start({agent!r}, prompt)"
    )


def warn(messages: Iterator[str]) -> None:
    """Warn at the line of the author, which is the first outside of perdure."""
    for message in messages:
        frame, level = inspect.currentframe(), 1
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("perdure."):
            frame, level = frame.f_back, level + 1
        warnings.warn(message, AgentWarning, stacklevel=level)


def check_agent(agent: AgentDefinition, servers: Sequence[AnyServerConfig]) -> Iterator[str]:
    """Check the parts of an agent against each other; yield a warning each."""
    called = f"agent {agent.name!r}"
    yield from _check_conditions(f"{called}: stop_conditions", agent.stop_conditions, agent, servers)
    for hook in agent.hooks:
        if hook.when is not None:
            yield from _check_conditions(f"{called}: hook {hook.name!r}: when", (hook.when,), agent, servers)
        if isinstance(hook, HookRule):
            yield from (f"{called}: {told}" for told in (*_check_settings(hook), *_check_rule(hook)))
    yield from (f"{called}: {told}" for told in _check_fallbacks(agent))
    rules = agent.approvals.rules
    for at, rule in enumerate(rules):
        first = next((earlier for earlier in rules[:at] if _covers(earlier, rule)), None)
        if first is not None and first.decision != rule.decision:
            yield (
                f"{called}: approvals: the rule that would {rule.decision} {rule.tool!r} never applies, because the "
                f"one for {first.tool!r} ({first.decision}) stands before it and fits every call; put it in front"
            )


def _check_fallbacks(agent: AgentDefinition) -> Iterator[str]:
    """Warn of settings that a fallback goes without; an address, a key and a price are of one model anyway."""
    for fallback in agent.fallback_models:
        lost = () if fallback.generate_params is not None else sorted(agent.lost_parameters(fallback.model))
        lost = [name for name in lost if not is_destination(name) and "cost" not in name and "pricing" not in name]
        if lost:
            yield (
                f"the fallback {fallback.model!r} is called without {' and '.join(lost)}, which its provider may not "
                "know; give it settings of its own with Fallback(generate_params=…)"
            )


def check_hook(function: Callable[..., object], hook: HookDeclaration) -> Iterator[str]:
    """Check a hook's function against its declaration; yield a warning each."""
    called = f"hook {hook.name!r}"
    yield from _check_settings(hook)
    at_the_end = EVENTS_AT["end"].issuperset(hook.on)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        yield f"{called} yields, so its body never runs; use return"
        return
    for kind in _returned_classes_of(function):
        if issubclass(kind, Reaction) and at_the_end:
            yield (
                f"{called}: its {kind.__name__} is ignored, because the turn has ended by then; "
                "return None, or be on an event before the end, such as 'step_end'"
            )
        elif not issubclass(kind, Reaction) and not issubclass(Reaction, kind):
            yield f"{called}: the {kind.__name__} that it returns is no reaction and ignored; return a reaction or None"


def check_question(name: str, settings: typing.Iterable[str]) -> Iterator[str]:
    """Check the settings of a tool that people answer; warn of each that needs a body, which never runs."""
    for setting in sorted({"idempotent", "needs", "reconcile", "task_queue"}.intersection(settings)):
        yield f"tool {name!r}: {setting} is about a body, and that of an interactive tool never runs; leave it out"


def _check_settings(hook: HookRule | HookDeclaration) -> Iterator[str]:
    events = [EVENT_TYPES[event] for event in hook.events if event in EVENT_TYPES]
    if hook.tool is not None and not any("tool" in event.model_fields for event in events):
        yield (
            f"hook {hook.name!r}: tool={hook.tool!r} is not looked at, because {', '.join(hook.events)} is about no "
            "tool; leave it out, or be on an event of a tool, such as 'tool_end'"
        )


def _check_rule(rule: HookRule) -> Iterator[str]:
    if isinstance(rule.reaction, Continue) and "step_end" in rule.on and rule.when is None and rule.times is None:
        yield (
            f"hook {rule.name!r}: the turn goes on after every step, so that only its limits or a stop end it; "
            "give the rule times= or when="
        )


def _check_conditions(
    where: str, conditions: tuple[AnyCondition, ...], agent: AgentDefinition, servers: Sequence[AnyServerConfig]
) -> Iterator[str]:
    """Warn of conditions on a tool that the agent does not have, or on a text that is never searched."""
    names = [tool.name for tool in agent.tools]
    unread = {tool.name for tool in agent.tools if tool.builtin is not None or tool.interactive}
    prefixes = tuple(f"{server.name}__" for server in servers)
    for condition in walk_conditions(conditions):
        tool = condition.tool if isinstance(condition, ToolUse | ToolOutput) else None
        if tool is not None and tool not in names and not tool.startswith(prefixes):
            known = ", ".join([*names, *(f"{prefix}…" for prefix in prefixes)]) or "none"
            cause = f"because there is no such tool; the tools are {known}"
            yield f"{where}: {condition.type} of {tool!r} never holds, {cause}"
        elif isinstance(condition, ToolOutput) and tool in unread:
            yield (
                f"{where}: tool_output of {tool!r} never holds, because only results of tools with a body and of "
                f"delegates are looked through; use stop.tool_use({tool!r})"
            )


def _covers(first: ApprovalRule, second: ApprovalRule) -> bool:
    """Whether the first holds for every call that the second is about."""
    if first.arguments is not None:
        return False
    return first.tool in {"*", second.tool} or (not second.is_pattern and first.matches(second.tool))


def _returned_classes_of(function: Callable[..., object]) -> Iterator[type[object]]:
    """The classes that the function is annotated to return, without None; nothing if they cannot be told."""
    try:
        hint: object = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # a name for type checkers only
        return
    is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    kinds: tuple[object, ...] = typing.get_args(hint) if is_union else (hint,)
    for kind in kinds:
        if isinstance(kind, type) and kind not in {types.NoneType, typing.Any} and not hasattr(kind, "_is_protocol"):
            yield cast("type[object]", kind)
