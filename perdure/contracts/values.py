"""The base of every contract value, and raw JSON."""

from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

__all__ = ["JsonValue", "Value", "json_object"]


class Value(BaseModel):
    """A frozen value. Unknown fields are ignored, so that an older reader accepts what a newer writer adds."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_timedelta="float")

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
