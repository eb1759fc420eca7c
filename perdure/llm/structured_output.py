"""Answers as JSON: finds the JSON in a model's text, and checks it against the agent's output schema.

Tried are the whole text, then a fenced block, then the outermost brackets. No JSON at all is ``llm.parse_error``, JSON
of another shape is ``llm.schema_violation``. Source: ActiveGraph's structured output.
"""

import math
import re
from collections.abc import Iterator

from pydantic_core import from_json
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import GivenUpError, Watched
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.values import JsonValue

MAX_PROBLEM = 500
"""Longest description of what is wrong with an answer, in characters. It may quote the answer."""

DEEPEST = 64
"""Levels of nesting above which an answer is refused, since the store could not read it again."""

_FENCED = re.compile(r"```[\w-]*\s*\n(?P<json>.*?)```", re.DOTALL)


class AnswerError(ValueError):
    """An answer does not fit the schema; the message is for people and for the model."""

    def __init__(self, code: ReasonCode, problem: str) -> None:
        super().__init__(f"{REASONS[code].cause}: {problem[:MAX_PROBLEM].rstrip('.')}.")
        self.code = code


def check_answer(text: str, schema: dict[str, JsonValue]) -> JsonValue:
    """The JSON value in an answer.

    Raises:
        AnswerError: There is no JSON (``llm.parse_error``), or it does not fit (``llm.schema_violation``).
    """
    value = value_in(text)
    try:  # with an empty registry, so that nothing is fetched
        problem = next(iter(Watched(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
    except RecursionError:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, "it is nested too deeply") from None
    except GivenUpError as error:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, f"{error}; simplify output_schema") from None
    except Exception as error:  # a schema may fail in any way, and a retry would cost another answer
        cause = f"the schema cannot be applied ({type(error).__name__}: {error}); correct output_schema"
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, cause) from error
    if problem is not None:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, f"at {problem.json_path}: {problem.message}")
    return value


def value_in(text: str) -> JsonValue:
    """The first candidate that is JSON which the store can keep: without lone surrogates and infinite numbers.

    Raises:
        AnswerError: There is no JSON (``llm.parse_error``).
    """
    problems: list[str] = []
    for candidate in _candidates(text):
        try:
            value: JsonValue = from_json(candidate, allow_inf_nan=False)
            _check_plain(value, DEEPEST)
        except ValueError as error:
            problems.append(str(error))
        else:
            return value
    raise AnswerError(ReasonCode.LLM_PARSE_ERROR, problems[0])


def _check_plain(value: JsonValue, depth: int) -> None:
    if depth == 0:
        msg = f"it is nested more than {DEEPEST} deep"
        raise ValueError(msg)
    if isinstance(value, float) and not math.isfinite(value):
        msg = "a number in it is too large"
        raise ValueError(msg)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_plain(inner, depth - 1)


def _candidates(text: str) -> Iterator[str]:
    yield text
    yield from (block["json"] for block in _FENCED.finditer(text))
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            yield text[start : end + 1]
