"""How a person gets what a tool gave beside its text."""

import asyncio
from pathlib import Path

import pytest

from perdure.store import Artifact, Store
from tests.unit.cli.invoked import assert_one_line, perdure
from tests.unit.store.given import SESSION, claim, open_turn, result
from tests.unit.store.test_ledger import planned

STEERING = "\x1b[31mred\x1b]0;x\x07\nü\t"
PNG = b"\x89PNG\r\n\xff"


@pytest.fixture(autouse=True)
def _artifacts(store_url: str) -> None:
    """An image and a long text of one session; another session has none."""

    async def write() -> None:
        async with await Store.open(store_url, upgrade=True) as store:
            await planned(store)
            await claim(store, "w1")
            await store.finish_call(
                session=SESSION,
                turn=1,
                call_id="c1",
                claimant="w1",
                message=result(),
                events=[],
                artifacts=[
                    Artifact(id="art_c1", session=SESSION, media_type="text/plain", text="a\r\nü\x00"),
                    Artifact(
                        id="art_c1_2", session=SESSION, media_type="text/plain", text="\x1b[31mred\x1b]0;x\x07\nü\t"
                    ),
                    Artifact(id="art_c1_1", session=SESSION, media_type="image/png;base64", text="iVBORw0K/w=="),
                ],
            )
            await open_turn(store, session="other")

    asyncio.run(write())


def test_an_artifact_goes_to_standard_output_byte_for_byte() -> None:
    assert perdure("artifact", SESSION, "art_c1").stdout_bytes == "a\r\nü\x00".encode()
    assert perdure("artifact", SESSION, "art_c1_1").stdout_bytes == PNG


def test_an_artifact_goes_to_a_file(tmp_path: Path) -> None:
    shown = perdure("artifact", SESSION, "art_c1_1", "--output", str(tmp_path / "image.png"))
    assert (shown.exit_code, shown.output) == (0, "")
    assert (tmp_path / "image.png").read_bytes() == PNG


def test_a_terminal_is_spared_what_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.show.is_terminal", lambda: True)
    assert_one_line(
        perdure("artifact", SESSION, "art_c1_1"), 2, "art_c1_1 is image/png, 7 bytes; name a file with --output"
    )
    assert perdure("artifact", SESSION, "art_c1").exit_code == 0


def test_a_terminal_is_not_steered_by_what_a_tool_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe the bytes are what the tool gave."""
    assert perdure("artifact", SESSION, "art_c1_2").stdout_bytes == STEERING.encode()
    monkeypatch.setattr("perdure.cli.show.is_terminal", lambda: True)
    assert perdure("artifact", SESSION, "art_c1_2").stdout_bytes == "[31mred]0;x\nü\t".encode()


@pytest.mark.parametrize(
    ("session", "handle", "said"),
    [
        (SESSION, "art_c2", f"{SESSION!r} has no artifact 'art_c2'; 'perdure show {SESSION}' lists the ids"),
        ("other", "art_c1", "'other' has no artifact 'art_c1'"),
        ("nobody", "art_c1", "there is no session 'nobody'; 'perdure list' names the sessions there are"),
    ],
)
def test_a_handle_is_good_for_its_own_session_only(session: str, handle: str, said: str) -> None:
    assert_one_line(perdure("artifact", session, handle), 2, said)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = tmp_path / "missing" / "image.png"
    shown = perdure("artifact", SESSION, "art_c1_1", "--output", str(place))
    assert_one_line(shown, 2, f"{place} cannot be written: No such file or directory; name another file")
