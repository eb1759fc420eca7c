"""What a prompt may be beside a text: texts, images and files, in perdure's values or in OpenAI's content parts."""

import asyncio
import base64
import binascii
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import unquote_to_bytes, urlsplit

from perdure.agents.files import MAX_BYTES, File, Image
from perdure.client.errors import RequestRefusedError
from perdure.contracts.files import ContentError, FilePart, check_parts, part_of
from perdure.contracts.values import JsonValue
from perdure.store import Store
from perdure.store.records import BASE64, artifact_of

Content = str | Sequence[str | Image | File | Mapping[str, JsonValue]]
"""A prompt: a text, or a list of texts, images and files. Mappings are OpenAI's parts of type ``text``, ``image_url``
and ``file``; a URL is ``data:…``, or ``http(s)://…``, which the client fetches itself."""

Files = Sequence[tuple[str, bytes]]
"""The name and bytes of each image and file of a prompt."""

FETCH_SECONDS = 30.0
"""Longest silence of an address from which an image is fetched."""

_ADVICE = 'write a text, perdure.Image, perdure.File, or a part of OpenAI\'s of type "text", "image_url" or "file"'


async def read_content(prompt: Content) -> tuple[str, list[tuple[str, bytes]]]:
    """The prompt's text, and the name and bytes of each image and file.

    Raises:
        RequestRefusedError: A part is none, or cannot be read.
    """
    if isinstance(prompt, str):
        return prompt, []
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    for number, part in enumerate(prompt, start=1):
        try:
            found = await _read(part)
        except RequestRefusedError as error:
            raise RequestRefusedError(f"prompt: part {number}: {error}") from None
        if isinstance(found, str):
            texts.append(found)
        else:
            files.append(found)
    text = "\n\n".join(texts)
    if not text.strip():
        msg = "prompt: there is no text beside the images and files; say what is to be done with them"
        raise RequestRefusedError(msg)
    return text, files


async def keep_files(store: Store, session: str, files: Files) -> tuple[FilePart, ...]:
    """Put the files into the store, and give what stands for them; nothing is kept if one cannot be taken.

    Raises:
        RequestRefusedError: One of them is too large or of no kind that models take.
        StoreError: The store cannot be written.
    """
    try:
        parts = check_parts(tuple(part_of(session, name, data) for name, data in files))
    except ContentError as error:
        raise RequestRefusedError(f"prompt: {error}") from None
    await store.keep_artifacts(
        [artifact_of(session, part, data) for part, (_, data) in zip(parts, files, strict=True)],
    )
    return parts


async def _read(part: object) -> str | tuple[str, bytes]:
    if isinstance(part, str):
        return part
    if isinstance(part, Image | File):
        return part.name, part.data
    fields = _fields(part)
    kind = fields.get("type")
    if kind == "text" and isinstance(text := fields.get("text"), str):
        return text
    if kind == "image_url":
        url = fields.get("image_url")
        return await _of_url(str(url if isinstance(url, str) else _fields(url).get("url")))
    if kind == "file":
        file = _fields(fields.get("file"))
        if isinstance(data := file.get("file_data"), str):
            _, found = await _of_url(data)
            return str(file.get("filename") or ""), found
    msg = f"it is no content part; {_ADVICE}"
    raise RequestRefusedError(msg)


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


async def _of_url(url: str) -> tuple[str, bytes]:
    """The name and the bytes behind a URL."""
    if url.startswith("data:"):
        head, comma, body = url.partition(",")
        try:
            data = base64.b64decode(body, validate=True) if head.endswith(BASE64) else unquote_to_bytes(body)
        except binascii.Error as error:
            msg = f"its data URL is no base64 ({error})"
            raise RequestRefusedError(msg) from None
        if not comma:
            msg = "its data URL has no data; write data:image/png;base64,…"
            raise RequestRefusedError(msg)
        return "", data
    address = urlsplit(url)
    if address.scheme not in {"http", "https"}:
        msg = f"{url[:100]!r} is no address of http or https, and no data URL; read a file with perdure.File(path=…)"
        raise RequestRefusedError(msg)
    return address.path.rpartition("/")[2], await asyncio.to_thread(_fetch, url)


class _NoOtherScheme(urllib.request.HTTPRedirectHandler):
    """A redirect may lead to http and https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: object, code: int, msg: str, headers: object, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in {"http", "https"}:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoOtherScheme)
    try:
        with opener.open(urllib.request.Request(url), timeout=FETCH_SECONDS) as reply:  # noqa: S310 - checked above
            data: bytes = reply.read(MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        msg = f"{url[:200]} could not be fetched: {error}; fetch it yourself and give its bytes"
        raise RequestRefusedError(msg) from None
    if len(data) > MAX_BYTES:
        msg = f"{url[:200]} has more than {MAX_BYTES:,} bytes, the limit"
        raise RequestRefusedError(msg)
    return data
