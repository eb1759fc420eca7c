"""What the model reads of each kind of value that a tool returns."""

import base64
import collections
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from perdure import File, Image
from perdure.activities.toolbox.output import artifacts_of, read
from perdure.agents.context import InvalidOutputError
from perdure.agents.files import MAX_BYTES
from perdure.contracts.tools import CallTool
from perdure.llm.tool_output import MAX_ALL_BYTES, CallResult

PNG = b"\x89PNG\r\n"
CALL = CallTool(session="s", turn=1, step=1, call_id="c1", definition="d")


class Point(BaseModel):
    x: int
    of: Any = None


class Share(BaseModel):
    of: float


class Rounded(BaseModel):
    """It writes its number by itself, and could not write a text."""

    of: float
    next: float | None = None

    @field_serializer("of")
    def write(self, of: float) -> str:
        return f"{of:.1f}"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Pair:
    left: object
    right: object


class Colour(enum.Enum):
    RED = "red"


Named = collections.namedtuple("Named", "a b")

READ: dict[str, tuple[object, str]] = {
    "text": ("as it is", "as it is"),
    "empty": ("", ""),
    "none": (None, "null"),
    "true": (True, "true"),
    "integer": (12345678901234567890, "12345678901234567890"),
    "fraction": (1.5, "1.5"),
    "false": (False, "false"),
    "nought": ([0, -0.0, "", [], {}], '[0,-0.0,"",[],{}]'),
    "nan": (float("nan"), '"NaN"'),
    "infinity": ([float("inf"), -float("inf")], '["Infinity","-Infinity"]'),
    "nan in a model": (Point(x=1, of=float("nan")), '{"x":1,"of":"NaN"}'),
    "nan in a model's field": (Share(of=float("nan")), '{"of":"NaN"}'),
    "infinity in a model's lists": (
        {"a": [Point(x=1, of=[-float("inf"), None])]},
        '{"a":[{"x":1,"of":["-Infinity",null]}]}',
    ),
    "nan in a dataclass": (Pair(None, Point(x=1, of=float("nan"))), '{"left":null,"right":{"x":1,"of":"NaN"}}'),
    "nan beside half a character": (
        ["\ud83d", float("nan"), Point(x=1, of=float("nan"))],
        '["\ufffd", "NaN", {"x": 1, "of": "NaN"}]',
    ),
    "nan that the author writes": (Rounded(of=float("nan")), '{"of":"nan","next":null}'),
    "decimal nan": (Decimal("NaN"), '"NaN"'),
    "wide decimal": (Decimal("1E+400"), '"1E+400"'),
    "date": (date(2026, 11, 21), '"2026-11-21"'),
    "flag": (Access.READ | Access.WRITE, "3"),
    "empty set": (set(), "[]"),
    "list": (["a", 1], '["a",1]'),
    "tuple": (("a", 1), '["a",1]'),
    "named tuple": (Named(1, 2), "[1,2]"),
    "set": ({7}, "[7]"),
    "frozen set": (frozenset({7}), "[7]"),
    "generator": ((n for n in (1, 2)), "[1,2]"),
    "object": ({"a": {"b": None}}, '{"a":{"b":null}}'),
    "keys": ({1: "a", None: "b"}, '{"1":"a","None":"b"}'),
    "umlauts": ({"a": "ü😀"}, '{"a":"ü😀"}'),
    "model": (Point(x=1), '{"x":1,"of":null}'),
    "dataclass": (Pair(1, Point(x=2)), '{"left":1,"right":{"x":2,"of":null}}'),
    "decimal": (Decimal("1.10"), '"1.10"'),
    "time": (datetime(2026, 11, 21, tzinfo=UTC), '"2026-11-21T00:00:00Z"'),
    "duration": (timedelta(seconds=90), '"PT1M30S"'),
    "enum": (Colour.RED, '"red"'),
    "uuid": (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    "path": (Path("/tmp/a"), '"/tmp/a"'),
    "utf-8 bytes": (b"abc", '"abc"'),
    "half a character": ("half \ud83d", "half \ufffd"),
    "half a character inside": ({"a": ["\ud83d", 1]}, '{"a": ["\ufffd", 1]}'),
    "half a character in a model": (Point(x=1, of="\ud83d"), '{"x": 1, "of": "\ufffd"}'),
    "half a character beside a decimal": (["\ud83d", Decimal(1)], '["\ufffd", "1"]'),
}


@pytest.mark.parametrize("kind", READ)
async def test_a_value_is_read_as_text_or_as_json(kind: str) -> None:
    """S-25: no JSON type, and none of those that people return, is refused."""
    value, text = READ[kind]
    assert read(value, "c1") == CallResult(text)


def loop() -> object:
    found: list[object] = []
    found.append(found)
    return found


def deep() -> object:
    found: object = []
    for _ in range(5_000):
        found = [found]
    return found


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "object": (object, "the tool returned a object that cannot be written as JSON: a object has no JSON form"),
    "function": (lambda: {"f": len}, "a builtin_function_or_method has no JSON form"),
    "exception": (lambda: ValueError("x"), "a ValueError has no JSON form"),
    "bytes": (lambda: b"\xff", "invalid utf-8 sequence of 1 bytes from index 0; return perdure.Image or perdure.File"),
    "loop": (loop, "Circular reference detected"),
    "depth": (deep, "serialization depth exceeded"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_value_without_a_json_form_is_refused_with_its_cause(kind: str) -> None:
    """S-25: tool.invalid_output."""
    make, cause = REFUSED[kind]
    with pytest.raises(InvalidOutputError) as refused:
        read(make(), "c1")
    assert cause in str(refused.value)


async def test_ten_megabytes_are_read_whole() -> None:
    assert len((read("x" * 10_000_000, "c1")).text) == 10_000_000
    assert len((read({"x": "x" * 10_000_000}, "c1")).text) == 10_000_008


async def test_an_image_leaves_one_line_with_media_type_size_and_handle() -> None:
    result = read(Image(PNG), "c1")
    assert result.text == "[image, image/png, 6 bytes: artifact art_c1_1]"
    assert [(attachment.media_type, attachment.data) for attachment in result.attachments] == [("image/png", PNG)]


async def test_a_list_with_text_images_and_files_is_read_part_by_part() -> None:
    parts = ["two of them:", Image(PNG, "image/jpeg"), File("my\nplan.pdf", b"%PDF", "application/pdf"), {"n": 1}]
    for value in (parts, tuple(parts)):
        assert (read(value, "c1")).text.splitlines() == [
            "two of them:",
            "[image, image/jpeg, 6 bytes: artifact art_c1_1]",
            "[file my plan.pdf, application/pdf, 4 bytes: artifact art_c1_2]",
            '{"n":1}',
        ]


async def test_an_image_inside_a_value_leaves_its_line_there() -> None:
    """Also beside broken text, where the value is written twice."""
    inside = Point(x=1, of=[Image(PNG)])
    assert (read(inside, "c1")).text == '{"x":1,"of":["[image, image/png, 6 bytes: artifact art_c1_1]"]}'
    result = read({"a": Image(PNG), "b": "\ud83d"}, "c1")
    assert (result.text.count("art_c1_1"), len(result.attachments)) == (1, 1)


async def test_a_file_over_the_limit_is_refused_and_no_more_of_it_is_read(tmp_path: Path) -> None:
    """S-25: tool.invalid_output, with the limit."""
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(MAX_BYTES + 100))
    file = File("large.bin", path=large)
    assert len(file.data) == MAX_BYTES + 1
    with pytest.raises(
        InvalidOutputError, match=r"file large.bin has more than 10,000,000 bytes, the most an artifact"
    ):
        read(file, "c1")
    assert (read(Image(bytes(MAX_BYTES)), "c1")).attachments[0].data == bytes(MAX_BYTES)


async def test_all_files_of_a_call_together_have_a_limit() -> None:
    most = MAX_ALL_BYTES // MAX_BYTES
    assert len((read([Image(bytes(MAX_BYTES))] * most, "c1")).attachments) == most
    with pytest.raises(InvalidOutputError, match=r"the images and files of one call are 60,000,000 bytes, at most 50,"):
        read([Image(bytes(MAX_BYTES))] * (most + 1), "c1")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: File("a"), "File 'a' needs either data or path"),
        (lambda: File("a", b"x", path="/tmp/x"), "File 'a' needs either data or path"),
        (lambda: Image("text"), "Image needs bytes, not str"),  # type: ignore[arg-type]
        (lambda: Image(b"x", "png"), "'png' is no media type; write for example image/png or text/csv"),
        (lambda: Image(b"x", "image/png\nx"), "is no media type"),
    ],
)
def test_what_is_no_image_and_no_file_is_refused_where_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make()


async def test_texts_are_kept_as_texts_without_known_secrets_and_all_else_byte_for_byte() -> None:
    """S-52: a file of text can be read on in, so it is held to what a result is."""
    found = [
        *(Image(PNG), File("a.csv", "ü,sk-secret", "text/csv"), File("b.json", b"\xff", "application/json")),
        File("c.svg", b"<svg/>", "image/svg+xml"),
    ]
    (image, text, broken, drawing) = await artifacts_of(CALL, (read(found, "c1")).attachments, {"sk-secret"})
    assert (image.media_type, image.data) == ("image/png;base64", PNG)
    assert (text.id, text.session, text.media_type, text.text) == ("art_c1_2", "s", "text/csv", "ü,***")
    assert (broken.media_type, base64.b64decode(broken.text)) == ("application/json;base64", b"\xff")
    assert (drawing.content_type, drawing.data, drawing.is_binary) == ("image/svg+xml", b"<svg/>", True)


SECRET = 'geheim-"ü"-7'

HOLDING: dict[str, bytes] = {
    "as it is": SECRET.encode(),
    "as JSON": b'geheim-\\"\\u00fc\\"-7',
    "in a URL": b"geheim-%22%C3%BC%22-7",
    "in UTF-16": SECRET.encode("utf-16-le"),
    "in the other UTF-16": SECRET.encode("utf-16-be"),
}


@pytest.mark.parametrize("spelling", HOLDING)
async def test_a_secret_in_binary_data_becomes_stars_and_all_around_it_stays_in_its_place(spelling: str) -> None:
    """S-52: in images and in files of any kind, also where the media type says text and the bytes are none."""
    secret = HOLDING[spelling]
    data = PNG + secret + b"\xff" + secret + b"\x07end"
    found = [Image(data), File("a", data), File("b.txt", data, "text/plain")]
    kept = await artifacts_of(CALL, (read(found, "c1")).attachments, {SECRET, "PNG"})
    stars = b"*" * len(secret)
    assert [attachment.data for attachment in kept] == [PNG + stars + b"\xff" + stars + b"\x07end"] * 3
