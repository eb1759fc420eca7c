"""Images and files on their way to a model: which are shown, and how they count."""

from decimal import Decimal
from typing import Any

import pytest

from perdure.activities.models.cost_ceiling import NotAffordableError, ceiling
from perdure.activities.models.provider_messages import Contents, count_most_tokens, with_content, without_places
from perdure.client.requests import keep_files
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.files import FilePart
from perdure.contracts.messages import UserMessage
from perdure.llm.compaction import to_summarise
from perdure.llm.openai_format import openai_messages, wire
from perdure.store import Store
from tests.pictures import PNG, png_of

SEES = {"supports_vision": True}


def message(*parts: FilePart) -> UserMessage:
    return UserMessage(content="look", parts=parts)


async def test_of_too_many_images_the_last_are_shown() -> None:
    """No provider takes a conversation with any number of them; what is gone says so."""
    async with await Store.open("sqlite://", upgrade=True) as store:
        files = [("", png_of(mark=str(number).encode())) for number in range(25)]
        parts = [*await keep_files(store, "s", files[:20]), *await keep_files(store, "s", files[20:])]
        contents = Contents(store)
        conversation: list[Any] = [wire(message(*parts[:20])), wire(message(*parts[20:]))]
        filled: Any = await contents.with_bytes("s", SEES, conversation)
    shown = ["data" in part for sent in filled for part in sent["parts"]]
    assert shown == [False] * 5 + [True] * 20
    first: Any = with_content("openai/x", filled)[0]
    assert first["content"][0]["text"] == "[image image/png 85 bytes: not shown any more: too many came after it]"
    assert all("data" not in part for sent in conversation for part in sent["parts"])


async def test_no_session_is_shown_what_another_one_was_given() -> None:
    """Nor after the worker has loaded it for that one."""
    async with await Store.open("sqlite://", upgrade=True) as store:
        (part,) = await keep_files(store, "mine", [("", PNG)])
        contents, conversation = Contents(store), [wire(message(part))]
        own: Any = await contents.with_bytes("mine", SEES, conversation)
        other: Any = await contents.with_bytes("other", SEES, conversation)
    assert "data" in own[0]["parts"][0]
    assert other[0]["parts"][0]["gone"] == "not shown: it is not there any more"


async def test_what_the_store_lost_is_told() -> None:
    async with await Store.open("sqlite://", upgrade=True) as store:
        part = FilePart(artifact="file_x", media_type="image/png", size=8, sha256="0" * 64)
        filled = await Contents(store).with_bytes("s", {}, [wire(message(part))])
    assert with_content("openai/x", filled)[0]["content"] == (
        "[image image/png 8 bytes: not shown: it is not there any more]\n\nlook"
    )


def test_an_image_counts_its_own_most_and_not_its_base64() -> None:
    """S-32: the bound holds before the call, whatever the provider makes of the image."""
    image = FilePart(artifact="file_x", media_type="image/png", size=3_000_000, sha256="0" * 64)
    pdf = FilePart(artifact="file_y", media_type="application/pdf", size=250, sha256="0" * 64)
    text = FilePart(artifact="file_z", media_type="text/plain", size=77, sha256="0" * 64)
    assert [count_most_tokens([wire(message(part))]) for part in (image, pdf, text)] == [50_000, 24_000, 77]
    prices: Any = {"input_cost_per_token": "0.00001", "output_cost_per_token": "0.00001"}
    using = AgentDefinition(name="a", model="openai/unknown", generate_params=prices)
    with pytest.raises(NotAffordableError):
        ceiling(using, [wire(message(image))], Decimal("0.5"))
    assert ceiling(using, [wire(message(image))], Decimal("0.51"))


def test_summaries_exports_and_recordings_hold_a_line_or_a_digest() -> None:
    image = FilePart(artifact="file_x", media_type="image/png", size=34_100, name="dot.png", sha256="0" * 64)
    line = "look\n[image image/png 34 kB dot.png]"
    assert line in to_summarise([message(image)])
    assert openai_messages([message(image)]) == [{"role": "user", "content": line}]
    (recorded,) = without_places([wire(message(image))])
    assert "file_x" not in str(recorded)
    assert "0" * 64 in str(recorded)
