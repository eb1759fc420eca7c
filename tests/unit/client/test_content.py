"""What a prompt may hold beside text, how it is read, and what is refused before anything is sent."""

import base64
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import File, Image
from perdure.client import RequestRefusedError
from perdure.client.requests import keep_files, read_content, turn_request
from perdure.contracts.files import MAX_IMAGE_BYTES, MAX_PARTS, MAX_TEXT_BYTES, media_type_of, part_of
from perdure.contracts.messages import ToolMessage, UserMessage
from perdure.store import NotFoundError, Store
from tests.pictures import PNG


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine: an image, and redirects to it and to a file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            elsewhere = {"/moved.png": "/dot.png", "/file": "file:///etc/hostname", "/ftp": "ftp://127.0.0.1/x"}
            path = self.path.partition("?")[0]
            self.send_response(200 if path == "/dot.png" else 302 if path in elsewhere else 404)
            self.send_header("location", elsewhere.get(path, ""))
            self.end_headers()
            if path == "/dot.png":
                self.wfile.write(PNG)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x10\x00\x00\nWEBPVP8 ", "image/webp"),
        (b"%PDF-1.7", "application/pdf"),
        ("wörter".encode(), "text/plain"),
        (b"RIFF\x10\x00\x00\x00WAVE", None),
        (b"\xff\xfe", None),
    ],
)
def test_what_a_file_is_its_bytes_say(data: bytes, media_type: str | None) -> None:
    assert media_type_of(data) == media_type


async def test_texts_are_joined_and_images_and_files_are_taken_from_wherever_they_are(
    tmp_path: Path, address: str
) -> None:
    """OpenAI's content parts are taken as well as perdure's values."""
    (tmp_path / "dot.gif").write_bytes(PNG)  # its name is not believed
    encoded = base64.b64encode(PNG).decode()
    text, files = await read_content(
        [
            "look",
            {"type": "text", "text": "closely"},
            Image(PNG),
            Image(path=tmp_path / "dot.gif"),
            File("a.txt", "words"),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}},
            {"type": "image_url", "image_url": f"{address}/moved.png?size=1"},
            {"type": "file", "file": {"filename": "b.txt", "file_data": "data:text/plain,b%20c"}},
        ]
    )
    assert text == "look\n\nclosely"
    assert files == [
        ("", PNG),
        ("dot.gif", PNG),
        ("a.txt", b"words"),
        ("", PNG),
        ("moved.png", PNG),
        ("b.txt", b"b c"),
    ]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (7, "part 2: it is no content part; write a text, perdure.Image"),
        ({"type": "input_audio"}, "part 2: it is no content part"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/hostname"}}, "is no address of http or https"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}, "its data URL is no base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64"}}, "its data URL has no data"),
        ({"type": "image_url", "image_url": "/gone"}, "could not be fetched: HTTP Error 404"),
        ({"type": "image_url", "image_url": "/file"}, "could not be fetched"),
        ({"type": "image_url", "image_url": "/ftp"}, "could not be fetched"),
    ],
)
async def test_what_is_no_part_is_refused_with_its_place(part: Any, said: str, address: str) -> None:
    if isinstance(part, dict) and isinstance(part.get("image_url"), str):
        part = {**part, "image_url": address + part["image_url"]}
    with pytest.raises(RequestRefusedError) as refused:
        await read_content(["look", part])
    assert said in str(refused.value)


async def test_a_prompt_says_what_is_to_be_done_with_its_images() -> None:
    with pytest.raises(RequestRefusedError, match="there is no text beside the images"):
        await read_content([Image(PNG)])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("a.bin", b"\x00\xff")], "'a.bin' is no PNG, JPEG, GIF, WebP, PDF or UTF-8 text"),
        ([("", b"")], "the image or file is empty"),
        ([("a.png", PNG.ljust(MAX_IMAGE_BYTES + 1))], "(image/png) has 3,750,001 bytes, the limit is 3,750,000"),
        ([("a.txt", b"x" * (MAX_TEXT_BYTES + 1))], "(text/plain) has 400,001 bytes, the limit is 400,000"),
        ([("a.png", PNG)] * (MAX_PARTS + 1), "are 21 images and files, at most 20 may be"),
        (
            [("a.pdf", b"%PDF-".ljust(8_999_995) + b"%%EOF")] * 3,
            "are 27,000,000 bytes together, the limit is 20,000,000",
        ),
    ],
)
async def test_nothing_is_kept_of_what_is_too_much(files: Any, said: str) -> None:
    async with await Store.open("sqlite://", upgrade=True) as store:
        with pytest.raises(RequestRefusedError) as refused:
            await keep_files(store, "s", [("first.png", PNG), *files] if len(files) == 1 else files)
        assert said in str(refused.value)
        with pytest.raises(NotFoundError):
            await store.artifact(part_of("s", "", PNG).artifact)


async def test_the_same_bytes_are_kept_once_in_a_session_and_never_shared_by_two() -> None:
    async with await Store.open("sqlite://", upgrade=True) as store:
        first, second = await keep_files(store, "s", [("a.png", PNG), ("b.png", PNG)])
        (other,) = await keep_files(store, "other", [("a.png", PNG)])
        assert first.artifact == second.artifact != other.artifact
        assert first.sha256 == other.sha256
        assert (await store.artifact(first.artifact, session="s")).data == PNG
        with pytest.raises(NotFoundError):
            await store.artifact(first.artifact, session="other")


def test_a_name_cannot_steer_a_terminal() -> None:
    assert part_of("s", "a\x1b[2J\nb.png", PNG).name == "a [2J b.png"


def test_a_message_without_images_is_written_as_before() -> None:
    """A step in text costs no byte more."""
    assert "parts" not in UserMessage(content="hi").model_dump_json()
    assert "parts" not in ToolMessage(call_id="c", name="n", content="").model_dump_json()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([{"data": "!", "name": "a.png"}], "files: 'a.png' is no base64"),
        ([{"data": ""}], "files.0.data: String should have at least 1 character"),
        ([{"data": base64.b64encode(b"x" * 300_000).decode()}] * 2, "files: are 600,000 bytes together, 500,000 fit"),
        ([{"data": "eA=="}] * (MAX_PARTS + 1), "files: Tuple should have at most 20 items"),
        ([{"url": "http://example.org"}], "files.0.data: Field required"),
    ],
)
def test_files_inside_a_request_are_checked_before_anything_is_sent(files: Any, said: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        turn_request("s", {"agent": "a", "prompt": "p", "files": files})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"resume_from": {}}, "files: need a prompt"),
        ({"prompt": "p", "compact": True}, "compact: takes no images and files"),
        ({"prompt": "p", "replies": [{"request": "c", "decision": "denied"}]}, "files: come with a message"),
    ],
)
def test_files_that_no_model_would_read_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestRefusedError, match=said):
        turn_request("s", {**fields, "files": [{"data": "eA=="}]})
