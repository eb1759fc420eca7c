"""What a recorded tool gave beside its text is replayed too."""

from typing import Any

from perdure import Agent, File, Image, ToolContext, tool
from perdure.testing import Script, call
from tests.house import House
from tests.workflow.recording import recorded, replaying, told


def handles_of(end: Any) -> list[str]:
    return [end["artifact"], *(file["artifact"] for file in end["attachments"])]


async def test_images_files_long_outputs_and_the_wish_to_stop_are_replayed_as_they_were(house: House) -> None:
    """S-30 S-73: under the replayed session's own handles."""
    png, ran = bytes(range(256)), []

    @tool
    def draw(context: ToolContext) -> list[object]:
        """Draw."""
        ran.append("draw")
        context.stop_turn("it is drawn")
        return ["x" * 40_000, Image(png), File("a.csv", "a,b", "text/csv")]

    draws = Agent(name="tester", model="openai/scripted", tools=[draw])
    first = await recorded(house, Script(replies=(call(("draw", {})),)), draws)
    assert (first["stop_reason"], first["stopped_by"]) == ("finished", "draw: it is drawn")
    async with replaying(house, draws) as again:
        assert {**await again.run(), "session": ""} == {**first, "session": ""}
        assert await told(again) == await told(house)
        (end,), (original,) = await again.events("tool_end"), await house.events("tool_end")
        handles, before = handles_of(end), handles_of(original)
        stored = [await again.store.artifact(handle) for handle in handles]
    assert not {*handles} & {*before}
    assert [file.get("name") for file in end["attachments"]] == [None, "a.csv"]
    assert (ran, [artifact.session for artifact in stored]) == (["draw"], [again.session] * 3)
    assert stored[0].text.startswith("x" * 40_000)
    assert [(artifact.content_type, artifact.data) for artifact in stored[1:]] == [
        ("image/png", png),
        ("text/csv", b"a,b"),
    ]
