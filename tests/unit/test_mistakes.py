"""The first mistake of a value in one line, and names that stand there twice: said by one helper each."""

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from perdure.contracts.values import describe_mistake, find_repeated


class Order(BaseModel):
    count: int = Field(ge=1)
    lines: list["Order"] = []

    @field_validator("count")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            msg = "write an even number"
            raise ValueError(msg)
        return value


def mistake(given: object) -> ValidationError:
    with pytest.raises(ValidationError) as found:
        Order.model_validate(given)
    return found.value


def test_the_first_mistake_is_one_line_with_its_place_and_without_the_value() -> None:
    assert describe_mistake(mistake({"count": 3, "lines": 1})) == "count: write an even number"
    below = mistake({"count": 2, "lines": [{"count": "sk-secret"}]})
    assert describe_mistake(below).startswith("lines.0.count: Input should be a valid integer")
    assert "sk-secret" not in describe_mistake(below)


def test_a_value_that_is_wrong_as_a_whole_goes_by_the_name_it_is_given() -> None:
    said = "Input should be a valid dictionary or instance of Order"
    assert describe_mistake(mistake(3)) == said
    assert describe_mistake(mistake(3), at_root="request") == f"request: {said}"


def test_names_that_stand_there_twice_are_listed_in_order_each_once() -> None:
    assert find_repeated(["b", "a", "b", "a", "b", "c"]) == "a, b"
    assert find_repeated(["a", "b"]) == ""
