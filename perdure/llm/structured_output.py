"""Answers as JSON: found in what a model wrote, and held to the agent's output schema.

Source: ActiveGraph's structured output: the raw text, then a fenced block, then the outermost brackets; no JSON at all
is ``llm.parse_error``, JSON of another shape ``llm.schema_violation``.
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
"""Longest description of what is wrong with an answer; it may quote the answer."""

DEEPEST = 64
"""An answer that is nested deeper is refused: the store could not read it again."""

_FENCED = re.compile(r"```[\w-]*\s*\n(?P<json>.*?)```", re.DOTALL)


class AnswerError(ValueError):
    """An answer is not what the schema asks for; the message is for the model as well."""

    def __init__(self, code: ReasonCode, problem: str) -> None:
        super().__init__(f"{REASONS[code].cause}: {problem[:MAX_PROBLEM].rstrip('.')}.")
        self.code = code


def check_answer(text: str, schema: dict[str, JsonValue]) -> JsonValue:
    """The JSON of an answer.

    Raises:
        AnswerError: There is none (``llm.parse_error``), or it does not fit (``llm.schema_violation``).
    """
    value = _parse(text)
    try:  # with an empty registry, so that nothing is fetched
        problem = next(iter(Watched(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
    except RecursionError:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, "it is nested too deeply") from None
    except GivenUpError as error:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, f"{error}; simplify output_schema") from None
    except Exception as error:  # whatever a schema makes of an answer; another try would pay again
        cause = f"the schema cannot be applied ({type(error).__name__}: {error}); correct output_schema"
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, cause) from error
    if problem is not None:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, f"at {problem.json_path}: {problem.message}")
    return value


def is_strict(schema: JsonValue) -> bool:
    """Whether every object of the schema names all its properties and requires them: OpenAI's condition for strict."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        names = set(properties) if isinstance(properties, dict) else set[str]()
        required = schema.get("required", [])
        closed = schema.get("additionalProperties") is False
        if not closed or not isinstance(required, list) or set(map(str, required)) != names:
            return False
    return all(is_strict(part) for part in schema.values())


def _parse(text: str) -> JsonValue:
    """The first candidate that is JSON; what no store could keep is none: halves of characters, numbers beyond any."""
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
