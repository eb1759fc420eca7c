"""Checks of an image or a PDF that cost little: what every provider refuses is found before it is sent.

Only headers and the chain of parts are read. A file that these checks let pass may still be refused.
"""

import re
import struct
import zlib
from collections.abc import Iterator

MAX_PIXELS = 8_000
"""Longest side of an image. Anthropic refuses longer ones."""

MAX_PAGES = 100
"""Most pages of a PDF. Anthropic refuses more."""

CUT_OFF = "is cut off: its end is missing; send the whole file"

_PDF_END = 4_096
"""Last bytes of a PDF, among which its end mark stands; some writers add bytes behind it."""

_MOST_INFLATED = 20_000_000
"""Most bytes that are inflated to count a PDF's pages."""

_ENCRYPTED = re.compile(rb"/Encrypt\s*(?:\d+\s+\d+\s+R|<<)")
_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_OBJECTS = re.compile(rb"/Type\s*/ObjStm(?:(?!endobj).){0,400}?stream\r?\n", re.DOTALL)


def find_problem(media_type: str, data: bytes) -> str | None:
    """The reason why providers refuse this image or PDF, with the fix; None if none is found."""
    if media_type == "application/pdf":
        return _problem_of_pdf(data)
    sizes = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
    if media_type not in sizes:
        return None
    try:
        size = sizes[media_type](data)
    except (IndexError, struct.error):
        return CUT_OFF
    if size is None:
        return None
    width, height = size
    if not width or not height:
        return "has no pixels; send another image"
    if max(size) > MAX_PIXELS:
        return f"has {width:,} x {height:,} pixels, the limit is {MAX_PIXELS:,} on each side; make it smaller"
    return None


def _png(data: bytes) -> tuple[int, int]:
    size: tuple[int, int] = struct.unpack_from(">II", data, 16)
    at = 8
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        at += length + 12
        if at > len(data):
            raise IndexError
        if kind == b"IEND":
            return size


_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of a JPEG's frame header, which has its size."""

_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers of a JPEG without a length."""


def _jpeg(data: bytes) -> tuple[int, int] | None:
    size: tuple[int, int] | None = None
    at = 2
    while True:
        while data[at] == 0xFF:  # fill bytes may stand before a marker
            at += 1
        marker = data[at]
        if marker in _BARE:
            at += 1
            continue
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 4)
            size = width, height
        if marker == 0xDA:
            if data.find(b"\xff\xd9", at) < 0:  # the end cannot stand inside the compressed data
                raise IndexError
            return size
        if marker == 0xD9:
            return size
        (length,) = struct.unpack_from(">H", data, at + 1)
        at += 1 + max(2, length)


def _gif(data: bytes) -> tuple[int, int]:
    size: tuple[int, int] = struct.unpack_from("<HH", data, 6)
    at = 13 + _colours(data[10])
    is_shown = False
    while True:
        kind = data[at]
        if kind == 0x3B or (is_shown and kind not in {0x21, 0x2C}):
            return size
        if kind == 0x2C:
            at, is_shown = at + 11 + _colours(data[at + 9]), True
        elif kind == 0x21:
            at += 2
        else:
            raise IndexError
        while data[at]:
            at += data[at] + 1
        at += 1
        if is_shown and at == len(data):  # many writers leave the trailer out
            return size


def _colours(packed: int) -> int:
    """Bytes of a GIF's colour table."""
    return 3 * 2 ** ((packed & 7) + 1) if packed & 0x80 else 0


def _webp(data: bytes) -> tuple[int, int] | None:
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise IndexError
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _problem_of_pdf(data: bytes) -> str | None:
    if b"%%EOF" not in data[-_PDF_END:]:
        return CUT_OFF
    if _ENCRYPTED.search(data):
        return "is encrypted, so that no model can read it; save it without a password"
    pages = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(objects)) for objects in _inflate(data))
    if pages > MAX_PAGES:
        return f"has {pages:,} pages, the limit is {MAX_PAGES}; send a part of it, or let a tool read it"
    return None


def _inflate(data: bytes) -> Iterator[bytes]:
    """The compressed objects of a PDF, among which its pages may stand."""
    left = _MOST_INFLATED
    for found in _OBJECTS.finditer(data):
        try:
            objects = zlib.decompressobj().decompress(data[found.end() :], left)
        except zlib.error:
            continue
        left -= len(objects)
        yield objects
        if left <= 0:
            return
