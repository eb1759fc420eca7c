"""The base of every contract value, and the alias for raw JSON."""

from pydantic import BaseModel, ConfigDict, JsonValue

__all__ = ["JsonValue", "Value"]


class Value(BaseModel):
    """A frozen value. Unknown fields are ignored, so that an older reader accepts what a newer writer adds."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_timedelta="float")
