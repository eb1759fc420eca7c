"""The base of every contract value, and raw JSON."""

from collections.abc import Mapping
from typing import Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue, TypeAdapter, ValidationError

__all__ = ["JsonValue", "Value", "json_object", "known_fields"]


def _refuse_unknown(model: type[BaseModel], fields: Mapping[str, object]) -> None:
    unknown = sorted(fields.keys() - model.model_fields.keys())
    if unknown and model.model_config.get("extra") != "forbid":  # pydantic refuses it itself, in its own words
        msg = f"{model.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(model.model_fields)}"
        raise ValueError(msg)


def known_fields(model: type[BaseModel]) -> BeforeValidator:
    """For a field that people fill in: a name in its JSON object that the model does not have is refused."""

    def check(value: object) -> object:
        given: object = value
        _refuse_unknown(model, cast("dict[str, object]", given) if isinstance(given, dict) else {})
        return value

    return BeforeValidator(check)


class Value(BaseModel):
    """A frozen value.

    An unknown field is refused where a value is made in code, and ignored where one is read, so that an older reader
    accepts what a newer writer adds.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_timedelta="float")

    def __new__(cls, *_: object, **fields: object) -> Self:
        """Reading goes past the names: pydantic then gives no fields here."""
        _refuse_unknown(cls, fields)
        return super().__new__(cls)

    def sparse(self) -> Self:
        """The same value with whatever has its default unset, so that no payload holds it."""
        return type(self).model_validate(self.model_dump(exclude_defaults=True))


_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


def json_object(text: str) -> dict[str, JsonValue]:
    """The JSON object that a text holds.

    Raises:
        ValueError: The text is no JSON, or no object; the message is one line.
    """
    try:
        return _OBJECT.validate_json(text)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from error
