"""Stop conditions: when a turn is finished before its model says so. All data, so that a request may bring its own.

Source of the thirteen conditions: Dreadnode's stop factories, counted over the whole turn. ``perdure.stop`` makes them.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)

from perdure.contracts.values import Authored, Tagged, is_fields, replace

MAX_PARTS = 2_000
"""Most parts of an expression with its counted repeats written out: compiling it takes two megabytes then."""

MAX_WIDE_SETS = 10
"""Most sets of characters beyond Latin-1 of an expression: to compile each takes up to ten milliseconds."""

MAX_NESTING = 50
"""Most brackets within one another."""

_TOKEN = re.compile(
    r"""
    \\N\{[^{}]*\} | \\.
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<remark>\(\?[a-zA-Z-]*[x#])
    | (?P<open>\()
    | (?P<close>\))
    | (?P<count>\{(?:(?P<least>[0-9]+)(?:,[0-9]*)?|,[0-9]*)\})
    | (?P<brace>\{)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)


def check_expression(pattern: str) -> None:
    """Look at an expression before anything compiles it.

    Raises:
        ValueError: It cannot be searched for; the message is one line.
    """
    why = _refusal(pattern)
    if why is None:
        try:
            read_expression(pattern)
        except ValueError as error:
            why = str(error)
    if why is not None:
        msg = f"pattern {pattern!r} {why}"
        raise ValueError(msg)


def read_expression(pattern: str) -> None:
    """See that a text is one of Python's expressions, and no compiler works long on it.

    Raises:
        ValueError: It is none; the message has no subject.
    """
    if count_wide_sets(pattern) > MAX_WIDE_SETS:
        msg = f"has more than {MAX_WIDE_SETS} sets […] with characters beyond Latin-1; use fewer"
        raise ValueError(msg)
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        msg = f"is no regular expression: {error}"
        raise ValueError(msg) from None


def count_wide_sets(pattern: str) -> int:
    """Count the sets […] with characters beyond Latin-1: to compile one takes up to ten milliseconds."""
    sets = (token["set"] for token in _TOKEN.finditer(pattern) if token.lastgroup == "set")
    return sum(not part.isascii() or _WIDE.search(part) is not None for part in sets)


_WIDE = re.compile(r"\\[uUN]")


def check_length(pattern: str) -> None:
    """Refuse an expression that is too long.

    Raises:
        ValueError: It is.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        msg = f"pattern {pattern[:40]!r}… has {len(pattern):,} characters, the limit is {MAX_PATTERN_CHARACTERS:,}"
        raise ValueError(msg)


def _refusal(pattern: str) -> str | None:
    sizes, last = [0], 0  # of the brackets that are open, the whole first; of the part that a count would repeat
    for token in _TOKEN.finditer(pattern):
        why = _difference(token)
        if why is not None:
            return why
        if token.lastgroup == "open":
            sizes.append(0)
            if len(sizes) > MAX_NESTING + 1:
                return f"has more than {MAX_NESTING} brackets within one another"
            continue
        if token.lastgroup == "count":
            added = last * max(0, int(token["least"] or 0) - 1)
            last += added
        else:
            added = last = sizes.pop() + 1 if token.lastgroup == "close" and len(sizes) > 1 else 1
        sizes[-1] += added
        if sizes[-1] > MAX_PARTS:
            return f"has repeats {{…}} that come to more than {MAX_PARTS:,} parts; use smaller counts, or + or *"
    return None


def _difference(token: re.Match[str]) -> str | None:
    """Reason the two libraries would read the expression differently."""
    if token.lastgroup == "brace":
        return r"has a { that begins no count such as {2} or {1,3}; write \{"
    if token.lastgroup == "remark":
        return "has (?x) or (?#…), which are not taken; leave spaces and comments out"
    if token.lastgroup == "set" and "[:" in re.sub(r"\\.", "", token["set"])[1:]:
        return "has [: within […]; write the characters in place of a class of that name, such as [a-z]"
    return None


MAX_CONDITIONS = 50
"""Most conditions of an agent, parts of combined ones counted: they are in the history of each of its turns."""

MAX_PATTERN_CHARACTERS = 1_000
"""Longest pattern that a text is looked through for."""

Tokens = Literal["total", "in", "out"]
"""Which tokens are counted: read and written, read, or written."""


class Condition(Tagged, Authored):
    """A stop condition. Combine them with ``&``, ``|`` and ``~``.

    Attributes:
        name: What the turn's ``stopped_by`` says when the condition ends it; by default what it looks at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="", max_length=200)

    def __and__(self, other: "AnyCondition") -> "AllOf":
        """A condition that is met when both are, at the end of one step."""
        return AllOf(conditions=(self, other))  # type: ignore[arg-type]  # every condition is one of the union

    def __or__(self, other: "AnyCondition") -> "AnyOf":
        """A condition that is met when one of both is."""
        return AnyOf(conditions=(self, other))  # type: ignore[arg-type]

    def __invert__(self) -> "Not":
        """A condition that is met when this one is not, at the end of a step."""
        return Not(condition=self)  # type: ignore[arg-type]

    def named(self, name: str) -> "AnyCondition":
        """The same condition under a name of its own."""
        return replace(self, name=name)  # type: ignore[return-value]


class Always(Condition):
    """Met at the end of the first step."""

    type: Literal["always"] = "always"


class Never(Condition):
    """Never met; with this condition, a text without calls means that the turn has stalled."""

    type: Literal["never"] = "never"


class AnyToolUse(Condition):
    """Met when ``count`` tool calls have a result, errors included."""

    type: Literal["any_tool_use"] = "any_tool_use"
    count: int = Field(default=1, ge=1)


class ToolUse(Condition):
    """Met when one tool was called successfully ``count`` times."""

    type: Literal["tool_use"] = "tool_use"
    tool: str = Field(min_length=1)
    count: int = Field(default=1, ge=1)


class ConsecutiveErrors(Condition):
    """Met when ``count`` tool calls in a row failed, whether or not the tool's ``catch`` lists the error."""

    type: Literal["consecutive_errors"] = "consecutive_errors"
    count: int = Field(ge=1)


class ToolFailed(Condition):
    """A tool call failed; of one tool, or of any. The turn is then finished, where ``abort`` would end it in error."""

    type: Literal["tool_error"] = "tool_error"
    tool: str | None = None


class ElapsedTime(Condition):
    """Met when the turn has run longer than ``seconds``, waits for people left out."""

    type: Literal["elapsed_time"] = "elapsed_time"
    seconds: float = Field(gt=0, allow_inf_nan=False)


class EstimatedCost(Condition):
    """Met when the turn has cost more than ``limit`` US dollars."""

    type: Literal["estimated_cost"] = "estimated_cost"
    limit: Decimal = Field(ge=0)


class TokenUsage(Condition):
    """Met when the turn has used more than ``limit`` tokens."""

    type: Literal["token_usage"] = "token_usage"
    limit: int = Field(ge=0)
    mode: Tokens = "total"


class GenerationCount(Condition):
    """Met when the turn's own model has answered ``count`` times; with ``retries``, repeated calls count too."""

    type: Literal["generation_count"] = "generation_count"
    count: int = Field(ge=1)
    retries: bool = False


class StepCount(Condition):
    """Met when the turn has made ``count`` steps."""

    type: Literal["step_count"] = "step_count"
    count: int = Field(ge=1)


class NoNewToolUsed(Condition):
    """Met when ``steps`` steps in a row used no tool that was new in the turn."""

    type: Literal["no_new_tool_used"] = "no_new_tool_used"
    steps: int = Field(ge=1)


class NoToolCalls(Condition):
    """Met when ``steps`` steps in a row called no tool."""

    type: Literal["no_tool_calls"] = "no_tool_calls"
    steps: int = Field(default=1, ge=1)


class TextCondition(Condition):
    """A condition on a text, looked at where the whole text is: by activities.

    Attributes:
        pattern: What the text contains; with ``exact`` what it is; with ``regex`` what is found in it.
        case_sensitive: Whether capitals matter.
        catch: Whether a search that takes too long or fails counts as ``default``; else it ends the turn with an error.
        default: What then holds.
    """

    pattern: str = Field(min_length=1, max_length=MAX_PATTERN_CHARACTERS)
    case_sensitive: bool = False
    exact: bool = False
    regex: bool = False
    catch: bool = False
    default: bool = False

    @model_validator(mode="before")
    @classmethod
    def _compiled_is_its_text(cls, given: object) -> object:
        compiled = given.get("pattern") if is_fields(given) else None
        if not isinstance(compiled, re.Pattern) or not is_fields(given):
            return given
        return {**given, **_settings_of(cast("re.Pattern[str]", compiled))}

    @model_validator(mode="after")
    def _can_be_searched(self) -> "TextCondition":
        if self.exact and self.regex:
            msg = "exact and regex exclude each other; write ^ and $ into the expression"
            raise ValueError(msg)
        if self.regex:
            check_expression(self.pattern)
        return self


def _settings_of(compiled: re.Pattern[Any]) -> dict[str, object]:
    """The settings that say the same as a compiled expression, whose flags stand before it.

    Raises:
        ValueError: It is for bytes.
    """
    if not isinstance(compiled.pattern, str):
        msg = "the expression is for bytes; compile a text"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes it for a mistake of the author
    letters = "".join(letter for flag, letter in _FLAGS.items() if compiled.flags & flag)
    is_sensitive = not compiled.flags & re.IGNORECASE
    pattern = f"(?{letters}){compiled.pattern}" if letters else compiled.pattern
    return {"pattern": pattern, "regex": True, "case_sensitive": is_sensitive}


_FLAGS = {re.ASCII: "a", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}
"""Letters of the flags of a compiled expression, within an expression."""


class Output(TextCondition):
    """The model's last text."""

    type: Literal["output"] = "output"


class ToolOutput(TextCondition):
    """The result of a call of this step, of one tool with a body or delegate, or of any. Errors are no results."""

    type: Literal["tool_output"] = "tool_output"
    tool: str | None = None


class Combined(Condition):
    """A condition that is made of others."""

    @model_validator(mode="after")
    def _is_bounded(self) -> "Combined":
        check_count((self,))  # type: ignore[arg-type]  # every condition is one of the union
        return self


class AllOf(Combined):
    """Met when all of these are, at the end of one step."""

    type: Literal["all_of"] = "all_of"
    conditions: tuple["AnyCondition", ...] = Field(min_length=1)


class AnyOf(Combined):
    """Met when one of these is, or more."""

    type: Literal["any_of"] = "any_of"
    conditions: tuple["AnyCondition", ...] = Field(min_length=1)


class Not(Combined):
    """Met when another condition is not, at the end of a step."""

    type: Literal["not"] = "not"
    condition: "AnyCondition"


AnyCondition = Annotated[
    Always
    | Never
    | AnyToolUse
    | ToolUse
    | ConsecutiveErrors
    | ToolFailed
    | ElapsedTime
    | EstimatedCost
    | TokenUsage
    | GenerationCount
    | StepCount
    | NoNewToolUsed
    | NoToolCalls
    | Output
    | ToolOutput
    | AllOf
    | AnyOf
    | Not,
    Field(discriminator="type"),
]
"""Any stop condition; in JSON an object whose ``type`` says which."""


def walk_conditions(conditions: tuple[AnyCondition, ...]) -> Iterator[AnyCondition]:
    """Every condition, those within others included, in the order in which they are written."""
    for condition in conditions:
        yield condition
        if isinstance(condition, AllOf | AnyOf):
            yield from walk_conditions(condition.conditions)
        elif isinstance(condition, Not):
            yield from walk_conditions((condition.condition,))


def check_count(conditions: tuple[AnyCondition, ...]) -> tuple[AnyCondition, ...]:
    """The same conditions, if they are not too many.

    Raises:
        ValueError: They are.
    """
    count = sum(1 for _ in walk_conditions(conditions))
    if count > MAX_CONDITIONS:
        msg = f"{count} conditions, those within others counted; {MAX_CONDITIONS} are the most"
        raise ValueError(msg)
    return conditions


def _as_list(value: object) -> object:
    """A map of conditions as a list of conditions with these names."""
    if isinstance(value, Condition) or (isinstance(value, dict) and isinstance(cast("object", value.get("type")), str)):
        msg = "this is one condition; write a list: stop_conditions=[…]"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes it for a mistake of the author
    if not isinstance(value, dict):
        return value
    return tuple(_with_name(name, condition) for name, condition in cast("dict[object, object]", value).items())


def _with_name(name: object, condition: object) -> object:
    if isinstance(condition, Condition):
        condition = condition.model_dump()
    return {**cast("dict[object, object]", condition), "name": name} if isinstance(condition, dict) else condition


StopConditions = Annotated[
    tuple[AnyCondition, ...],
    Field(max_length=MAX_CONDITIONS),
    AfterValidator(check_count),
    BeforeValidator(_as_list),
]
"""The stop conditions of an agent or of a request: the first that holds at the end of a step ends the turn.

A map gives each its name.
"""

for _combined in (AllOf, AnyOf, Not):
    _combined.model_rebuild()

CONDITIONS: TypeAdapter[tuple[AnyCondition, ...]] = TypeAdapter(StopConditions)


def text_conditions(conditions: tuple[AnyCondition, ...]) -> list[Output | ToolOutput]:
    """The conditions on texts; activities name those that are met by their index in this list."""
    return [part for part in walk_conditions(conditions) if isinstance(part, Output | ToolOutput)]
