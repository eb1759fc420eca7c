"""Small pictures and PDFs that are whole, made here so that nothing is needed to make them."""

import struct
import zlib


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int = 1, height: int = 1, *, mark: bytes = b"") -> bytes:
    """A PNG with this size in its header; ``mark`` makes its bytes others."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0\0")
    text = _chunk(b"tEXt", b"mark\0" + mark) if mark else b""
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + text + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def webp_of(width: int, height: int) -> bytes:
    """A WebP with this size in its header."""
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\0" * 4
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body)) + body


def pdf_of(pages: int, *, is_packed: bool = False) -> bytes:
    """A PDF of so many pages, which may stand in compressed objects."""
    objects = b"".join(b"<</Type /Page/Parent 2 0 R>>\n" for _ in range(pages))
    if is_packed:
        objects = b"9 0 obj<</Type/ObjStm/Filter/FlateDecode>>stream\n" + zlib.compress(objects) + b"\nendstream endobj"
    return (
        b"%PDF-1.5\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type /Pages>>endobj\n"
        + objects
        + b"\ntrailer<</Root 1 0 R>>\nstartxref\n9\n%%EOF\n"
    )


PNG = png_of()
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    b"\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00"
    b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x37\xff\x00\x12\x34\xff\xd9"
)
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff"
    b"\x21\xf9\x04\x01\x00\x00\x00\x00\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00\x3b"
)
WEBP = webp_of(1, 1)
PDF = pdf_of(1)
