"""Stop conditions for ``Agent(stop_conditions=[…])``: when a turn is finished before its model says so.

Each counts over the whole turn and is looked at when a step has ended. Combine them with ``&``, ``|`` and ``~``, give
one a name with ``name=`` or ``.named("…")``, or all with a map ``{"name": …}``: the turn's ``stopped_by`` says it.
Source: Dreadnode's stop factories, whose keywords (``tool_name``, ``max_seconds``, ``for_steps`` …) are taken too.

    from perdure import Agent, stop

    Agent(…, stop_conditions=[stop.tool_use("deploy") & ~stop.tool_error(), stop.step_count(50)])
"""

import re
from decimal import Decimal
from typing import Any, TypeVar

from perdure.contracts import conditions
from perdure.contracts.conditions import AnyCondition, Condition, Tokens

C = TypeVar("C", bound=Condition)


def always(*, name: str = "") -> AnyCondition:
    """After the first step."""
    return conditions.Always(name=name)


def never(*, name: str = "") -> AnyCondition:
    """At no time. A text without calls then means that the turn has stalled."""
    return conditions.Never(name=name)


def any_tool_use(count: int = 1, *, name: str = "") -> AnyCondition:
    """So many tool calls have a result, errors among them."""
    return conditions.AnyToolUse(count=count, name=name)


def tool_use(tool: str | None = None, count: int = 1, *, tool_name: str | None = None, name: str = "") -> AnyCondition:
    """The tool was called successfully so many times."""
    return _make_condition(conditions.ToolUse, tool=tool, tool_name=tool_name, count=count, name=name)


def consecutive_errors(count: int, *, name: str = "") -> AnyCondition:
    """So many tool calls in a row failed, whether or not the tool's ``catch`` lists the error."""
    return conditions.ConsecutiveErrors(count=count, name=name)


def tool_error(tool: str | None = None, *, tool_name: str | None = None, name: str = "") -> AnyCondition:
    """A call failed, of one tool or of any: the turn is finished, also where ``abort`` would end it in error."""
    return _make_condition(conditions.ToolFailed, tool=tool, tool_name=tool_name, name=name)


def elapsed_time(seconds: float | None = None, *, max_seconds: float | None = None, name: str = "") -> AnyCondition:
    """The turn has run longer than so many seconds; time spent waiting for people is left out."""
    return _make_condition(conditions.ElapsedTime, seconds=seconds, max_seconds=max_seconds, name=name)


def estimated_cost(limit: Decimal | float | str, *, name: str = "") -> AnyCondition:
    """The turn has cost more than so many US dollars."""
    return _make_condition(conditions.EstimatedCost, limit=limit, name=name)


def token_usage(limit: int, mode: Tokens = "total", *, name: str = "") -> AnyCondition:
    """The turn has used more than so many tokens: in total, read (``in``), or written (``out``)."""
    return conditions.TokenUsage(limit=limit, mode=mode, name=name)


def generation_count(
    count: int | None = None, *, retries: bool = False, max_generations: int | None = None, name: str = ""
) -> AnyCondition:
    """The turn's own model has answered so many times; with ``retries``, calls that were sent again count too."""
    return _make_condition(
        conditions.GenerationCount, count=count, max_generations=max_generations, retries=retries, name=name
    )


def step_count(count: int | None = None, *, max_steps: int | None = None, name: str = "") -> AnyCondition:
    """The turn has made so many steps."""
    return _make_condition(conditions.StepCount, count=count, max_steps=max_steps, name=name)


def no_new_tool_used(steps: int | None = None, *, for_steps: int | None = None, name: str = "") -> AnyCondition:
    """So many steps in a row used no tool that the turn had not used before."""
    return _make_condition(conditions.NoNewToolUsed, steps=steps, for_steps=for_steps, name=name)


def no_tool_calls(steps: int | None = None, *, for_steps: int | None = None, name: str = "") -> AnyCondition:
    """So many steps in a row, one by default, called no tool."""
    return _make_condition(conditions.NoToolCalls, steps=steps, for_steps=for_steps, name=name)


def output(  # noqa: PLR0913 - the settings of one search
    pattern: str | re.Pattern[str],
    *,
    case_sensitive: bool = False,
    exact: bool = False,
    regex: bool = False,
    catch: bool = False,
    default: bool = False,
    name: str = "",
) -> AnyCondition:
    """The model's text contains the pattern; with ``exact`` it is the pattern, with ``regex`` the pattern is found.

    A compiled expression is found with its own flags. A search that takes longer than a second ends the turn with an
    error; with ``catch`` it counts as ``default``. An expression may come to 2,000 parts with its repeats ``{n}``
    written out; any other ``{`` is to be escaped.
    """
    return _make_condition(
        conditions.Output,
        pattern=pattern,
        case_sensitive=case_sensitive,
        exact=exact,
        regex=regex,
        catch=catch,
        default=default,
        name=name,
    )


def tool_output(  # noqa: PLR0913 - the settings of one search
    pattern: str | re.Pattern[str],
    tool: str | None = None,
    *,
    case_sensitive: bool = False,
    exact: bool = False,
    regex: bool = False,
    catch: bool = False,
    default: bool = False,
    tool_name: str | None = None,
    name: str = "",
) -> AnyCondition:
    """The same of the result of a call, of one tool or of any; the result is kept.

    Only results of tools with a body and of delegates are looked through, not those of ``todo`` or answers of people.
    """
    return _make_condition(
        conditions.ToolOutput,
        pattern=pattern,
        tool=tool,
        tool_name=tool_name,
        case_sensitive=case_sensitive,
        exact=exact,
        regex=regex,
        catch=catch,
        default=default,
        name=name,
    )


def _make_condition(kind: type[C], **settings: Any) -> C:  # noqa: ANN401 - pydantic checks each setting
    """A condition with the settings that were given, some of them in a word of another system."""
    return kind(**{name: value for name, value in settings.items() if value is not None})
