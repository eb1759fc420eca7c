"""Stop conditions for ``Agent(stop_conditions=[…])``: when a turn is finished before its model says so.

Each counts over the whole turn and is looked at when a step has ended. Combine them with ``&``, ``|`` and ``~``, give
one a name with ``.named("…")``, or all with a map ``{"name": …}``: the turn's ``stopped_by`` says it. Source:
Dreadnode's stop factories.

    from perdure import Agent, stop

    Agent(…, stop_conditions=[stop.tool_use("deploy") & ~stop.tool_error(), stop.step_count(50)])
"""

from decimal import Decimal

from perdure.contracts import stops
from perdure.contracts.stops import AnyCondition, Tokens


def always() -> AnyCondition:
    """After the first step."""
    return stops.Always()


def never() -> AnyCondition:
    """At no time. A text without calls then means that the turn has stalled."""
    return stops.Never()


def any_tool_use(count: int = 1) -> AnyCondition:
    """So many tool calls have a result, errors among them."""
    return stops.AnyToolUse(count=count)


def tool_use(tool: str, count: int = 1) -> AnyCondition:
    """The tool was called successfully so many times."""
    return stops.ToolUse(tool=tool, count=count)


def consecutive_errors(count: int) -> AnyCondition:
    """So many tool calls in a row failed, whether or not the tool's ``catch`` lists the error."""
    return stops.ConsecutiveErrors(count=count)


def tool_error(tool: str | None = None) -> AnyCondition:
    """A call failed, of one tool or of any: the turn is finished, also where ``abort`` would end it in error."""
    return stops.ToolFailed(tool=tool)


def elapsed_time(seconds: float) -> AnyCondition:
    """The turn has run longer than so many seconds; time spent waiting for people is left out."""
    return stops.ElapsedTime(seconds=seconds)


def estimated_cost(limit: Decimal | float | str) -> AnyCondition:
    """The turn has cost more than so many US dollars."""
    return stops.EstimatedCost(limit=limit)  # type: ignore[arg-type] # pydantic reads all three, and refuses what is none


def token_usage(limit: int, mode: Tokens = "total") -> AnyCondition:
    """The turn has used more than so many tokens: in total, read (``in``), or written (``out``)."""
    return stops.TokenUsage(limit=limit, mode=mode)


def generation_count(count: int, *, retries: bool = False) -> AnyCondition:
    """The turn's own model has answered so many times; with ``retries``, calls that were sent again count too."""
    return stops.GenerationCount(count=count, retries=retries)


def step_count(count: int) -> AnyCondition:
    """The turn has made so many steps."""
    return stops.StepCount(count=count)


def no_new_tool_used(steps: int) -> AnyCondition:
    """So many steps in a row used no tool that the turn had not used before."""
    return stops.NoNewToolUsed(steps=steps)


def no_tool_calls(steps: int = 1) -> AnyCondition:
    """So many steps in a row called no tool."""
    return stops.NoToolCalls(steps=steps)


def output(
    pattern: str,
    *,
    case_sensitive: bool = False,
    exact: bool = False,
    regex: bool = False,
    catch: bool = False,
    default: bool = False,
) -> AnyCondition:
    """The model's text contains the pattern; with ``exact`` it is the pattern, with ``regex`` the pattern is found.

    A search that takes longer than a second ends the turn with an error; with ``catch`` it counts as ``default``. An
    expression may come to 2,000 parts with its repeats ``{n}`` written out; any other ``{`` is to be escaped.
    """
    return stops.Output(
        pattern=pattern, case_sensitive=case_sensitive, exact=exact, regex=regex, catch=catch, default=default
    )


def tool_output(  # noqa: PLR0913 - the settings of one search
    pattern: str,
    tool: str | None = None,
    *,
    case_sensitive: bool = False,
    exact: bool = False,
    regex: bool = False,
    catch: bool = False,
    default: bool = False,
) -> AnyCondition:
    """The same of the result of a call, of one tool or of any; the result is kept.

    Only results of tools with a body and of delegates are looked through, not those of ``todo`` or answers of people.
    """
    return stops.ToolOutput(
        pattern=pattern,
        tool=tool,
        case_sensitive=case_sensitive,
        exact=exact,
        regex=regex,
        catch=catch,
        default=default,
    )
