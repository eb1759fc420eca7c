"""Pictures and PDFs that every provider refuses, found before a message holds them and wedges its session.

Seen in the public trackers of agent frameworks and browsers' tools: screenshots of whole pages longer than 8,000
pixels, downloads that were cut off, PDFs with a password or with hundreds of pages.
"""

import struct
import zlib

import pytest

from perdure.contracts.file_checks import CUT_OFF, find_problem
from perdure.contracts.files import ContentError, part_of
from tests.pictures import GIF, JPEG, PDF, PNG, WEBP, pdf_of, png_of, webp_of

WHOLE = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP, "application/pdf": PDF}


@pytest.mark.parametrize("media_type", WHOLE)
def test_a_whole_file_passes_and_each_beginning_of_it_does_not(media_type: str) -> None:
    data = WHOLE[media_type]
    assert find_problem(media_type, data) is None
    assert part_of("s", "a", data).media_type == media_type
    ends = range(12 if media_type != "image/gif" else 6, len(data) - 6)
    assert {find_problem(media_type, data[:end]) for end in ends} == {CUT_OFF}


def test_bytes_behind_the_end_do_no_harm() -> None:
    for media_type, data in WHOLE.items():
        assert find_problem(media_type, data + b"\n\0\0trailing") is None


@pytest.mark.parametrize(("width", "height"), [(8_000, 1), (1, 8_000)])
def test_the_longest_side_passes(width: int, height: int) -> None:
    assert find_problem("image/png", png_of(width, height)) is None
    assert find_problem("image/webp", webp_of(width, height)) is None


@pytest.mark.parametrize(("width", "height"), [(8_001, 1), (1, 8_001), (20_000, 20_000)])
def test_a_longer_side_is_told_with_the_limit(width: int, height: int) -> None:
    jpeg = JPEG.replace(b"\x08" + struct.pack(">HH", 1, 1), b"\x08" + struct.pack(">HH", height, width))
    gif = GIF[:6] + struct.pack("<HH", width, height) + GIF[10:]
    for media_type, data in (("image/png", png_of(width, height)), ("image/jpeg", jpeg), ("image/gif", gif)):
        problem = find_problem(media_type, data)
        assert problem == f"has {width:,} x {height:,} pixels, the limit is 8,000 on each side; make it smaller"
    with pytest.raises(ContentError, match=r"'shot.png' \(image/png\) has .* make it smaller"):
        part_of("s", "shot.png", png_of(width, height))


def test_no_pixels_at_all() -> None:
    assert find_problem("image/png", png_of(0, 10)) == "has no pixels; send another image"


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_pdf_of_100_pages_passes_and_one_of_101_does_not(is_packed: bool) -> None:
    """Also where newer writers pack the pages into compressed objects."""
    assert find_problem("application/pdf", pdf_of(100, is_packed=is_packed)) is None
    problem = find_problem("application/pdf", pdf_of(101, is_packed=is_packed))
    assert problem == "has 101 pages, the limit is 100; send a part of it, or let a tool read it"


def test_an_encrypted_pdf_is_refused_and_one_that_speaks_of_it_is_not() -> None:
    locked = PDF.replace(b"/Root", b"/Encrypt 5 0 R /Root")
    assert "is encrypted" in str(find_problem("application/pdf", locked))
    spoken = PDF.replace(b"trailer", b"(/Encryption and /EncryptMetadata false)\ntrailer")
    assert find_problem("application/pdf", spoken) is None


def test_objects_that_inflate_without_end_are_read_to_a_bound() -> None:
    bomb = zlib.compress(b"/Type/Page " * 9_000_000)
    data = b"%PDF-1.5\n1 0 obj<</Type/ObjStm/Filter/FlateDecode>>stream\n" + bomb + b"\nendstream endobj\n%%EOF"
    assert "pages" in str(find_problem("application/pdf", data))


def test_a_text_is_not_looked_at() -> None:
    assert find_problem("text/plain", b"%PDF-") is None
