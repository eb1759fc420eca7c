"""What a tool gave, as the model reads it: text as it is, values as JSON, images and files as artifacts."""

import asyncio
import base64
import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from perdure.agents.files import File
from perdure.agents.return_values import ReturnValue
from perdure.contracts.files import MAX_PARTS, ContentError, FilePart, is_image, part_of
from perdure.contracts.tools import CallTool
from perdure.engine import returned
from perdure.engine.outputs import whole_characters
from perdure.engine.redaction import SHORTEST_SECRET, spellings, without_known
from perdure.engine.returned import Attachment
from perdure.store import Artifact
from perdure.store.records import BASE64

_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
"""How a secret may be written in binary data."""


@dataclass(frozen=True)
class CallResult:
    """What a call gave: the text for the model, what becomes artifacts, and why the tool asked the turn to end."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    stop: str | None = None


def output_id(call_id: str) -> str:
    """The artifact of a call's text that is too long for the conversation."""
    return f"art_{call_id}"


def attachment_id(call_id: str, number: int) -> str:
    """The artifact of a call's image or file, from 1."""
    return f"{output_id(call_id)}_{number}"


class Attachments(returned.Attachments):
    """The images and files of one call. Each leaves a line in the text: what it is, its media type, size and handle."""

    def __init__(self, call_id: str) -> None:
        super().__init__(lambda number: f": artifact {attachment_id(call_id, number)}")


async def read(value: object, call_id: str, annotated: ReturnValue | None = None) -> CallResult:
    """What a body returned. A list or tuple with images or files in it is read part by part, each on a line.

    Raises:
        InvalidOutputError: It does not fit the annotation of the body, has no JSON form, or an image or a file is too
            large.
    """
    if isinstance(value, str) and (annotated is None or annotated.is_text):
        return CallResult(whole_characters(value))
    # Large values take long, and a generator may block.
    return await asyncio.to_thread(_read, value, call_id, annotated)


def _read(value: object, call_id: str, annotated: ReturnValue | None) -> CallResult:
    attachments = Attachments(call_id)
    text = "\n".join(part.text for part in returned.parts_of(value, attachments, annotated))
    return CallResult(text, attachments.checked())


async def artifacts_of(call: CallTool, attachments: Sequence[Attachment], secrets: Collection[str]) -> list[Artifact]:
    """The artifacts of a call's images and files, without secrets; texts as texts, so that they are read in parts."""
    return [  # large ones take long
        await asyncio.to_thread(_artifact, attachment_id(call.call_id, number), call.session, one, secrets)
        for number, one in enumerate(attachments, start=1)
    ]


def _artifact(handle: str, session: str, one: Attachment, secrets: Collection[str]) -> Artifact:
    try:
        text = without_known(File(one.what, one.data, one.media_type).text, secrets)
    except ValueError:
        text = base64.b64encode(_with_stars(one.data, secrets)).decode()
        return Artifact(id=handle, session=session, media_type=f"{one.media_type}{BASE64}", text=text)
    return Artifact(id=handle, session=session, media_type=one.media_type, text=text)


def _with_stars(data: bytes, secrets: Collection[str]) -> bytes:
    """Binary data with as many stars in place of each secret, so that all else keeps its place.

    A short secret may stand there by chance and is left.
    """
    texts = {text for secret in secrets if len(secret) >= SHORTEST_SECRET for text in spellings(secret)}
    written = {text.encode(encoding, errors="replace") for text in texts for encoding in _ENCODINGS}
    for one in sorted(written, key=lambda one: (-len(one), one)):
        data = data.replace(one, b"*" * len(one))
    return data


def shown_images(artifacts: Sequence[Artifact]) -> tuple[FilePart, ...]:
    """What stands for the images of a result, as far as models take them."""
    images = (one for one in artifacts if is_image(one.content_type))
    return tuple(part for image in images for part in _shown(image))[:MAX_PARTS]


def _shown(image: Artifact) -> Iterator[FilePart]:
    with contextlib.suppress(ContentError):
        part = part_of(image.session, "", image.data)
        if is_image(part.media_type):
            yield part.model_copy(update={"artifact": image.id})
