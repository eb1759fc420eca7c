"""What an agent's last answer must be, as a Python type."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError, field_validator
from typing_extensions import TypedDict

from perdure import Agent, AgentDefinitionError, TurnResult
from perdure.agents.settings import adapter_of, problem_of
from perdure.contracts.turns import StopReason


class Meeting(BaseModel):
    title: str
    minutes: int

    @field_validator("minutes")
    @classmethod
    def _is_short(cls, value: int) -> int:
        if value > 60:
            msg = "a meeting takes an hour at most"
            raise ValueError(msg)
        return value


@dataclass
class Point:
    x: int
    y: int


class Named(TypedDict):
    name: str


def _broken(value: int) -> int:
    return 1 // (value - value)


TYPES: list[tuple[Any, str]] = [
    (Meeting, "object"),
    (Point, "object"),
    (Named, "object"),
    (list[int], "array"),
    (TypeAdapter(dict[str, Point]), "object"),
]


def agent(wanted: Any) -> Agent:
    return Agent(name="a", model="openai/x", output_schema=wanted)


@pytest.mark.parametrize(("wanted", "kind"), TYPES)
def test_any_type_that_pydantic_knows_is_a_schema_and_stays_with_a_clone(wanted: Any, kind: str) -> None:
    made = agent(wanted)
    assert made.definition.output_schema is not None
    assert made.definition.output_schema["type"] == kind
    assert made.output_type is not None
    cloned = made.clone(max_steps=3)
    assert cloned.definition.output_schema == made.definition.output_schema
    assert cloned.output_type is not None
    assert cloned.clone(output_schema=None).output_type is None


def test_a_schema_has_no_type_of_its_own() -> None:
    made = agent({"type": "object"})
    assert (made.output_type, made.clone().output_type) == (None, None)


@pytest.mark.parametrize("wanted", ["object", lambda: None, object()])
def test_what_has_no_schema_is_refused_with_what_would_do(wanted: Any) -> None:
    with pytest.raises(AgentDefinitionError, match=r"output_schema: .*JSON schema"):
        agent(wanted)


def test_a_type_of_its_own_says_what_is_wrong_in_one_sentence() -> None:
    adapter = adapter_of(Meeting)
    assert adapter is not None
    assert problem_of(adapter, {"title": "t", "minutes": 30}) is None
    assert problem_of(adapter, {"title": "t", "minutes": 90}) == "at $.minutes: a meeting takes an hour at most"
    places = adapter_of(list[Meeting])
    assert places is not None
    assert (problem_of(places, [{"title": "t", "minutes": 90}]) or "").startswith("at $[0].minutes: ")


def test_a_validator_with_a_bug_is_named() -> None:
    adapter = adapter_of(Annotated[int, AfterValidator(_broken)])
    assert adapter is not None
    problem = problem_of(adapter, 3)
    assert problem is not None
    assert problem.startswith("a validator of output_schema raised ZeroDivisionError: ")
    assert problem.endswith("; correct the validator")


def result(value: Any) -> TurnResult:
    return TurnResult(session="s", turn=2, agent="a", stop_reason=StopReason.FINISHED, value=value)


def test_the_value_of_a_result_is_read_as_the_type() -> None:
    meeting: Meeting = result({"title": "t", "minutes": 30}).value_as(Meeting)
    assert meeting == Meeting(title="t", minutes=30)
    assert result({"x": 1, "y": 2}).value_as(Point) == Point(1, 2)
    assert result([1, 2]).value_as(list[int]) == [1, 2]
    either: int | str = result("x").value_as(TypeAdapter[int | str](int | str))
    assert either == "x"


def test_null_is_the_value_of_a_type_that_has_it() -> None:
    """S-24: and of no other type, and of no turn that ended otherwise."""
    answered = result(None).model_copy(update={"output": "null"})
    assert answered.value_as(TypeAdapter[Meeting | None](Meeting | None)) is None
    with pytest.raises(ValidationError):
        answered.value_as(Meeting)
    with pytest.raises(ValueError, match="without a value"):
        answered.model_copy(update={"stop_reason": StopReason.CANCELLED}).value_as(TypeAdapter[None](None))


@pytest.mark.parametrize("end", [StopReason.FINISHED, StopReason.STALLED])
@pytest.mark.parametrize(
    "text", ["null", " null\n", "```json\nnull\n```", "It is:\n```\n null \n```\nSo it is.", "```json\nnull```"]
)
def test_null_is_a_value_wherever_an_answer_has_it(text: str, end: StopReason) -> None:
    answered = result(None).model_copy(update={"output": text, "stop_reason": end})
    assert answered.value_as(TypeAdapter[int | None](int | None)) is None


@pytest.mark.parametrize(
    "text", ["", "nullable", "null and void", "```\nnull and void\n```", "```\n1\n```\n```\nnull\n```"]
)
def test_a_text_that_speaks_of_null_is_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="without a value"):
        result(None).model_copy(update={"output": text}).value_as(TypeAdapter[int | None](int | None))


def test_a_result_without_a_value_says_what_stopped_it() -> None:
    stopped = result(None).model_copy(update={"stopped_by": "look: enough"})
    said = "ended finished without a value: it was stopped by look: enough, before the model gave an answer that fits"
    with pytest.raises(ValueError, match=said):
        stopped.value_as(Meeting)


def test_a_result_without_a_value_says_why() -> None:
    with pytest.raises(ValueError, match="turn 2 of session s ended finished without a value: its agent has no output"):
        result(None).value_as(Meeting)
    with pytest.raises(ValueError, match="minutes"):
        result({"title": "t"}).value_as(Meeting)
