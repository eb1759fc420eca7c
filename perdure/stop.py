"""Stop conditions for ``Agent(stop_conditions=[…])``: they finish a turn before its model does, and are no cancels.

Each condition counts over the whole turn, and is checked at the end of each step. Combine them with ``&``, ``|`` and
``~``. Name one with ``name=`` or ``.named("…")``, or all with a map ``{"name": …}``: the turn's ``stopped_by`` has the
name. Source: Dreadnode's stop factories, whose keywords (``tool_name``, ``max_seconds``, ``for_steps`` …) work too.

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
    """Holds after the first step."""
    return conditions.Always(name=name)


def never(*, name: str = "") -> AnyCondition:
    """Holds never. With it, a text without calls means that the turn has stalled."""
    return conditions.Never(name=name)


def any_tool_use(count: int = 1, *, name: str = "") -> AnyCondition:
    """Holds once ``count`` tool calls have a result; errors count too."""
    return conditions.AnyToolUse(count=count, name=name)


def tool_use(tool: str | None = None, count: int = 1, *, tool_name: str | None = None, name: str = "") -> AnyCondition:
    """Holds once the tool was called successfully ``count`` times."""
    return _make_condition(conditions.ToolUse, tool=tool, tool_name=tool_name, count=count, name=name)


def consecutive_errors(count: int, *, name: str = "") -> AnyCondition:
    """Holds once ``count`` tool calls in a row have failed, whether or not the tool's ``catch`` lists the error."""
    return conditions.ConsecutiveErrors(count=count, name=name)


def tool_error(tool: str | None = None, *, tool_name: str | None = None, name: str = "") -> AnyCondition:
    """Holds once a call has failed, of one tool or any. The turn finishes even if ``abort`` would end it in error."""
    return _make_condition(conditions.ToolFailed, tool=tool, tool_name=tool_name, name=name)


def elapsed_time(seconds: float | None = None, *, max_seconds: float | None = None, name: str = "") -> AnyCondition:
    """Holds once the turn has run longer than ``seconds``, without waits for people and pauses."""
    return _make_condition(conditions.ElapsedTime, seconds=seconds, max_seconds=max_seconds, name=name)


def estimated_cost(limit: Decimal | float | str, *, name: str = "") -> AnyCondition:
    """Holds once the turn has cost more than ``limit`` US dollars."""
    return _make_condition(conditions.EstimatedCost, limit=limit, name=name)


def token_usage(limit: int, mode: Tokens = "total", *, name: str = "") -> AnyCondition:
    """Holds once the turn has used more than ``limit`` tokens: in total, read (``in``), or written (``out``)."""
    return conditions.TokenUsage(limit=limit, mode=mode, name=name)


def generation_count(
    count: int | None = None, *, retries: bool = False, max_generations: int | None = None, name: str = ""
) -> AnyCondition:
    """Holds once the turn's own model has answered ``count`` times; with ``retries``, retried calls count too."""
    return _make_condition(
        conditions.GenerationCount, count=count, max_generations=max_generations, retries=retries, name=name
    )


def step_count(count: int | None = None, *, max_steps: int | None = None, name: str = "") -> AnyCondition:
    """Holds once the turn has made ``count`` steps."""
    return _make_condition(conditions.StepCount, count=count, max_steps=max_steps, name=name)


def no_new_tool_used(steps: int | None = None, *, for_steps: int | None = None, name: str = "") -> AnyCondition:
    """Holds once ``steps`` steps in a row used no tool for the first time in the turn."""
    return _make_condition(conditions.NoNewToolUsed, steps=steps, for_steps=for_steps, name=name)


def no_tool_calls(steps: int | None = None, *, for_steps: int | None = None, name: str = "") -> AnyCondition:
    """Holds once ``steps`` steps in a row, one by default, called no tool."""
    return _make_condition(conditions.NoToolCalls, steps=steps, for_steps=for_steps, name=name)


def output(
    pattern: str | re.Pattern[str],
    *,
    case_sensitive: bool = False,
    exact: bool = False,
    regex: bool = False,
    catch: bool = False,
    default: bool = False,
    name: str = "",
) -> AnyCondition:
    """Holds if the model's text contains the pattern, equals it (``exact``), or matches it (``regex``).

    A compiled expression keeps its own flags. A search that takes longer than a second ends the turn with an error;
    with ``catch`` its result is ``default`` instead. An expression may have 2,000 parts, with repeats ``{n}`` written
    out; any other ``{`` has to be escaped.
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


def tool_output(
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
    """Holds if the result of a call matches, of one tool or of any; the settings are those of :func:`output`.

    Only results of tools with a body and of delegates are searched, not those of ``todo`` or answers of people.
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
    """A condition with the settings that were given, by perdure's keywords or by Dreadnode's."""
    return kind(**{name: value for name, value in settings.items() if value is not None})
