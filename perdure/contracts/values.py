"""The base of every contract value, raw JSON, and the other names that arguments go by elsewhere."""

import dataclasses
import json
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeGuard, TypeVar, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from perdure.contracts.dimensions import DIMENSIONS

Given = Mapping[str, object]
"""All that was written, by its names."""


def _as_it_is(value: object, _: Given) -> object:
    return value


def _retries(value: object, _: Given) -> object:
    """Retries of a number of calls, the first one counted."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value < 1:
        msg = f"write 1 or more attempts: the first call is one (got {value})"
        raise ValueError(msg)
    return value - 1


def _milliseconds(value: object, _: Given) -> object:
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _jitter(value: object, given: Given) -> object:
    """The upper bound of a jitter that is on or off: it is the first wait."""
    if not isinstance(value, bool):
        return value
    return given.get("backoff_base_factor", given.get("base", 1.0)) if value else 0.0


@dataclass(frozen=True)
class Synonym:
    """A word of another system.

    Attributes:
        field: Our name of the setting.
        read: What is written under the word, as our setting has it.
        inside: The setting is one of this object, which takes the word too.
        also: Another setting that gets the same value, unless it is written itself.
    """

    field: str
    read: Callable[[object, Given], object] = _as_it_is
    inside: bool = False
    also: str = ""


_BUDGETS = {f"max_{row.name}": Synonym(row.name) for row in DIMENSIONS}

_BACKOFF = {
    "backoff_max_tries": Synonym("max_retries"),
    "backoff_max_time": Synonym("max_time"),
    "backoff_base_factor": Synonym("base", also="jitter"),
    "backoff_jitter": Synonym("jitter", _jitter),
}

SYNONYMS: Mapping[str, Mapping[str, Synonym]] = {
    "Agent": {
        "maxSteps": Synonym("max_steps"),
        "generate_params_extra": Synonym("generate_params"),
        **dict.fromkeys((*_BACKOFF, "maxRetries"), Synonym("retry", inside=True)),
        **dict.fromkeys(_BUDGETS, Synonym("budgets", inside=True)),
    },
    "RetryPolicy": {
        **dict.fromkeys(("attempts", "maxAttempts", "max_attempts"), Synonym("max_retries", _retries)),
        "maxRetries": Synonym("max_retries"),
        "baseDelay": Synonym("base", _milliseconds),
        **_BACKOFF,
    },
    "Budgets": _BUDGETS,
    "ToolUse": {"tool_name": Synonym("tool")},
    "ToolFailed": {"tool_name": Synonym("tool")},
    "ToolOutput": {"tool_name": Synonym("tool")},
    "ElapsedTime": {"max_seconds": Synonym("seconds")},
    "GenerationCount": {"max_generations": Synonym("count")},
    "StepCount": {"max_steps": Synonym("count")},
    "NoNewToolUsed": {"for_steps": Synonym("steps")},
    "NoToolCalls": {"for_steps": Synonym("steps")},
}
"""The words that each class takes."""


def translate_names(owner: str, given: Given) -> dict[str, object]:
    """Translate what was written for a class into our names.

    Raises:
        ValueError: A setting stands there under two names; or a word's value cannot be ours.
    """
    words = SYNONYMS.get(owner, {})
    ours: dict[str, object] = {name: value for name, value in given.items() if name not in words}
    said = {name: name for name in ours}
    inner: dict[str, dict[str, object]] = {}
    for word in (name for name in given if name in words):
        synonym = words[word]
        if synonym.inside:
            inner.setdefault(synonym.field, {})[word] = given[word]
        other = said.setdefault(synonym.field, word)
        if other != word and not (synonym.inside and other in words):
            msg = f"{other} and {word} are two names of one setting; write one of them"
            raise ValueError(msg)
        if not synonym.inside:
            ours[synonym.field] = synonym.read(given[word], given)
    for word in (name for name in given if name in words and words[name].also):
        if words[word].also not in said:
            ours[words[word].also] = given[word]
    return {**ours, **inner}


__all__ = [
    "Authored",
    "Items",
    "JsonValue",
    "PublicValue",
    "Tagged",
    "Value",
    "for_code",
    "is_fields",
    "json_object",
    "json_objects",
    "read_moment",
    "refuse_unknown_fields",
    "replace",
    "replace_surrogates",
    "to_json_line",
]

T = TypeVar("T")
Initialiser = TypeVar("Initialiser", bound=Callable[..., None])

if TYPE_CHECKING and sys.version_info >= (3, 13):  # what mypy reads: it checks each name and type
    from copy import replace
else:

    def replace(value: T, /, **changes: object) -> T:
        """The value with other fields, which are not checked again: ``copy.replace``, which Python has since 3.13."""
        if isinstance(value, BaseModel):
            return value.model_copy(update=changes)
        return dataclasses.replace(cast("Any", value), **changes)


_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys; JSON escapes those below a space itself."""

_CHOSEN = frozenset({"literal_error", "string_pattern_mismatch"})
"""Kinds of mistakes whose text is shown: a word that the author chose. Other texts may be credentials."""


def _refuse_unknown(model: type[BaseModel], fields: Mapping[str, object]) -> None:
    if fields.keys() <= model.__pydantic_fields__.keys():
        return  # each value that is made passes here
    unknown = sorted(fields.keys() - model.model_fields.keys() - SYNONYMS.get(model.__name__, {}).keys())
    if unknown and model.model_config.get("extra") != "forbid":  # pydantic refuses it itself, in its own words
        msg = f"{model.__name__} has no field {', '.join(unknown)}; its fields are {', '.join(model.model_fields)}"
        raise ValueError(msg)


def refuse_unknown_fields(model: type[BaseModel]) -> BeforeValidator:
    """For a field that people fill in: a name in its JSON object that the model does not have is refused."""

    def check(value: object) -> object:
        given: object = value
        _refuse_unknown(model, cast("dict[str, object]", given) if isinstance(given, dict) else {})
        return value

    return BeforeValidator(check)


def read_moment(moment: datetime) -> datetime:
    """The moment in UTC.

    Raises:
        ValueError: It has none.
    """
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        msg = "is before or after all time in UTC; write a moment of this age"
        raise ValueError(msg) from None


def to_json_line(value: object) -> str:
    """One line of JSON; characters that would steer a terminal are escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_fields(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value is read from its fields, and is not made yet."""
    return isinstance(value, dict)


class _Tuple:
    """Pydantic's schema of :data:`Items`."""

    def __get_pydantic_core_schema__(self, items: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(GenericAlias(tuple, (*get_args(items), ...)))


Items = Annotated[Sequence[T], _Tuple()]
"""Items of a field that people fill in: a tuple, which type checkers let an author write as a list."""


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


class PublicValue(Value):
    """A value that services in any language read: a payload holds each of its fields, also at their defaults."""


def for_code(initialiser: Initialiser) -> Initialiser:
    """An initialiser that only code calls: values that are read from JSON do without it."""
    initialiser.__dict__["__pydantic_base_init__"] = True  # pydantic's own mark
    return initialiser


class Tagged(Value):
    """One of several kinds of values, told apart by the literal ``type``, which every payload holds."""

    @model_serializer(mode="wrap")
    def _with_its_type(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        written: dict[str, object] = write(self)
        return {"type": type(self).model_fields["type"].default, **written}


class Authored(Value):
    """A value that authors write: what cannot be used is refused in one line, with the class and the field.

    Only a value made in code passes here; one that is read, or stands as an object in another one, is pydantic's alone.
    """

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, given: object) -> object:
        return translate_names(cls.__name__, given) if cls.__name__ in SYNONYMS and is_fields(given) else given

    @for_code
    def __init__(self, **fields: Any) -> None:  # noqa: ANN401 - pydantic checks each field
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ValueError(_mistake(type(self), error)) from None


def _mistake(model: type[BaseModel], error: ValidationError) -> str:
    """The first mistake, as ``Class: field: what is wrong (got …)``."""
    first, *others = error.errors(include_url=False)
    field, kind, got = ".".join(str(part) for part in first["loc"]), first["type"], first["input"]
    if kind == "extra_forbidden":
        said = f"there is no such field; the fields are {', '.join(model.model_fields)}"
    else:
        said = " ".join(first["msg"].removeprefix("Value error, ").split())
    shows = kind in _CHOSEN or (kind != "missing" and isinstance(got, int | float | timedelta | Decimal | None))
    parts = [model.__name__, *([field] if field else []), f"{said} (got {got!r})" if shows else said]
    return ": ".join(parts) + (f"; and {len(others)} more" if others else "")


def describe_mistake(error: ValidationError, *, at_root: str = "") -> str:
    """The first mistake as ``field: what is wrong``, in one line and without the value, which may be a secret.

    Args:
        error: What pydantic found.
        at_root: Stands in place of the field where the value as a whole is wrong.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or at_root
    said = first["msg"].removeprefix("Value error, ")
    return f"{field}: {said}" if field else said


def guess_name(wrong: str, known: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """The end of a sentence about a name that does not exist: ``did you mean 'x'?``, or empty.

    Args:
        wrong: What was written.
        known: The names that there are.
        also: Names that others have for the same, by these names.
    """
    meant = (also or {}).get(wrong)
    near = [meant] if meant else get_close_matches(wrong, [*known], n=1, cutoff=0.75)
    return f"did you mean {near[0]!r}?" if near else ""


def size_of(values: Iterable[BaseModel]) -> int:
    """Size of values in bytes, each as JSON in UTF-8."""
    return sum(len(value.model_dump_json().encode()) for value in values)


def find_repeated(names: Iterable[str]) -> str:
    """The names that stand there twice, in order, joined by commas; empty if none does."""
    return ", ".join(sorted(name for name, count in Counter(names).items() if count > 1))


def json_objects(value: JsonValue) -> Iterator[dict[str, JsonValue]]:
    """Every object in a JSON value, itself included, however deep; in no order to rely on."""
    unread = [value]
    while unread:
        part = unread.pop()
        if isinstance(part, dict):
            yield part
        if isinstance(part, dict | list):
            unread.extend(part.values() if isinstance(part, dict) else part)


_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


def json_object(text: str | bytes) -> dict[str, JsonValue]:
    """The JSON object that a text holds.

    Raises:
        ValueError: The text is not JSON, or not an object; the message is one line.
    """
    try:
        value = _OBJECT.validate_json(text)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from error
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        msg = "a number is NaN or infinite, which JSON does not have"
        raise ValueError(msg) from None
    return value


def spell_json(value: JsonValue) -> JsonValue:
    """The value with a text in place of each number that JSON does not have: NaN, Infinity, -Infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else SPELLED.get(value, "NaN")
    if isinstance(value, dict):
        return {name: spell_json(inner) for name, inner in value.items()}
    return [spell_json(inner) for inner in value] if isinstance(value, list) else value


SPELLED: Mapping[float, str] = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""Infinite numbers as texts."""


def _spell_schema(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: spell_json(inner) for name, inner in schema.items()}


Schema = Annotated[dict[str, JsonValue], AfterValidator(_spell_schema)]
"""A JSON schema. A number that JSON does not have, such as a default of Python's, is a text in it."""


def is_like(name: str, pattern: str) -> bool:
    """Whether the whole name fits a pattern in which ``*`` is any text and ``?`` one character.

    Takes no longer than the lengths of both suggest, however many stars there are; workflows call it.
    """
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # fnmatch alone knows sets in brackets too


def replace_surrogates(text: str) -> str:
    """The text with halves of characters (lone surrogates) replaced: models and tools send them, no store has them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _check_plain_text(text: str) -> str:
    if _STEERING.search(text):
        msg = "has a control character, which databases refuse and terminals obey; send one line of plain text"
        raise ValueError(msg)
    return text


Label = Annotated[str, Field(max_length=200), AfterValidator(_check_plain_text)]
"""An id or a name that a caller chooses: one line of plain text, at most 200 characters."""

_UNSEEN = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters without a glyph that Unicode counts among letters, marks and symbols."""


def is_visible(text: str) -> bool:
    """Whether a text has a character that can be seen: no space, control, format character, filler or mark alone."""
    return any(
        character not in _UNSEEN and (kind := unicodedata.category(character))[0] not in "ZM" and kind not in _HIDDEN
        for character in text
    )


_HIDDEN = frozenset({"Cc", "Cf", "Cs"})


def check_visible(prompt: str) -> str:
    """The prompt.

    Raises:
        PydanticCustomError: It has no visible character, so that providers would refuse it, and every later message.
    """
    if not is_visible(prompt):
        kind, message = "blank", "has no visible character; say what is to be done"
        raise PydanticCustomError(kind, message)
    return prompt
