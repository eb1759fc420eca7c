"""Images and files at every door: resume, fork, task, perdure mcp and plain JSON take them, updates refuse them."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import Agent, Image
from perdure.client import RequestRefusedError, Turn
from perdure.contracts.messages import UserMessage
from perdure.testing import Script, ScriptedProvider, say
from tests.house import WAIT_SECONDS, House
from tests.temporal_cli import temporal, workflow
from tests.workflow.asking import COLOUR, DONE, asker, results, waiting
from tests.workflow.test_content import ENCODED, IMAGE_URL, PNG, contents
from tests.workflow.test_mcp_door import did, host, refused
from tests.workflow.test_people_doors import perdure
from tests.workflow.test_stock_cli import start

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
INLINE = {"name": "dot.png", "data": ENCODED}


async def ended(turn: Turn) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await turn.result()).error is None


async def test_resume_fork_and_task_take_images(house: House) -> None:
    """As start does: what the model is sent, and what the transcript of that session has."""
    async with ScriptedProvider(lambda _: say("a dot")) as provider, house.worker(AGENT):
        house.use(provider)
        await ended(await house.client.start("tester", "go", session=house.session))
        await ended(await house.client.resume(house.session, ["resumed", Image(PNG, name="a.png")]))
        assert contents(provider)[-2:] == [IMAGE_URL, {"type": "text", "text": "resumed"}]
        fork = await house.client.fork(house.session, ["forked", Image(PNG + b"x", name="b.png")], turn=1)
        await ended(fork)
        assert contents(provider)[-1] == {"type": "text", "text": "forked"}
        said = [message for message in await house.client.transcript(fork.session) if isinstance(message, UserMessage)]
        assert [[part.name for part in message.parts] for message in said] == [[], ["b.png"]]
        trajectory = await house.client.task("tester")(["a goal", Image(PNG, name="c.png")])
        assert contents(provider)[-2:] == [IMAGE_URL, {"type": "text", "text": "a goal"}]
        assert trajectory.result is not None
        assert trajectory.result.stop_reason == "finished"


async def test_temporals_own_command_line_sends_files_in_the_request(house: House) -> None:
    """The history has their base64 in the request and in open_turn's input, and a reference from there on."""
    async with ScriptedProvider(lambda _: say("a dot")) as provider, house.worker(AGENT):
        house.use(provider)
        text = {"name": "notes.txt", "data": base64.b64encode(b"a word").decode()}
        await start(house, files=[INLINE, text])
        shown = await workflow("result", "--workflow-id", house.session)
        assert shown["result"]["stop_reason"] == "finished"
        file = {"type": "text", "text": '<file name="notes.txt">\na word\n</file>'}
        assert contents(provider) == [IMAGE_URL, file, {"type": "text", "text": "go"}]
        (message, _) = await house.client.transcript(house.session)
        assert isinstance(message, UserMessage)
        assert [part.name for part in message.parts] == ["dot.png", "notes.txt"]
        history = await house.temporal.get_workflow_handle(house.session).fetch_history()
        holding = [event.event_id for event in history.events if ENCODED.encode() in event.SerializeToString()]
        assert len(holding) == 2

        result = await house.run(files=[{"name": "a.bin", "data": base64.b64encode(b"\x00\xff").decode()}])
        assert result["reason_code"] == "request.invalid"
        assert result["error"].startswith("files: 'a.bin' is no PNG, JPEG, GIF, WebP, PDF or UTF-8 text")


async def test_updates_refuse_files_and_the_way_that_they_name_works(house: House) -> None:
    """A question is answered with an image by a steered message before the answer."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        asked = request["request_id"]
        for name, body, said in (
            ("send", {"prompt": "look"}, "use 'perdure send SESSION PROMPT --attach FILE'"),
            ("answer", {"request": asked, "value": "red"}, "use 'perdure send SESSION PROMPT --steer --attach FILE'"),
        ):
            sent = json.dumps({**body, "files": [INLINE]})
            where = ("--workflow-id", house.session, "--name", name, "--input", sent)
            code, output = await temporal("workflow", "update", "execute", *where)
            assert code != 0
            assert f"files do not fit into an update; {said}" in output
        for value in (Image(PNG), ["red", Image(PNG)]):
            with pytest.raises(RequestRefusedError, match="send images and files before it"):
                await house.client.answer(house.session, asked, cast("Any", value), by="ann")
        await house.client.send(house.session, ["Like this one.", Image(PNG)], when_busy="steer")
        await house.client.answer(house.session, asked, "red", by="ann")
        async with asyncio.timeout(WAIT_SECONDS):
            await handle.result()
        assert contents(provider)[-2:] == [IMAGE_URL, {"type": "text", "text": "Like this one."}]
        assert results(provider.requests[-1].request.messages) == ["red"]


async def test_perdure_mcp_takes_files_with_start_and_send(house: House) -> None:
    async with ScriptedProvider(lambda _: say("a dot")) as provider, house.worker(AGENT), host() as client:
        house.use(provider)
        await did(client, "start", agent="tester", prompt="first", session=house.session, files=[INLINE])
        await did(client, "wait", session=house.session, turn=1)
        assert contents(provider) == [IMAGE_URL, {"type": "text", "text": "first"}]
        other = {"name": "b.png", "data": base64.b64encode(PNG + b"x").decode()}
        await did(client, "send", session=house.session, prompt="second", files=[other])
        await did(client, "wait", session=house.session, turn=2)
        assert contents(provider)[-1] == {"type": "text", "text": "second"}
        assert len(contents(provider)) == 4
        said = await refused(client, "send", session=house.session, prompt="third", files=[{"data": "!"}])
        assert "files: 'data' is no base64" in said


async def test_resume_and_fork_attach_files_from_the_command_line(house: House, tmp_path: Path) -> None:
    image = tmp_path / "dot.png"
    image.write_bytes(PNG)
    async with ScriptedProvider(lambda _: say("a dot")) as provider, house.worker(AGENT):
        house.use(provider)
        await ended(await house.client.start("tester", "go", session=house.session))
        for verb in ("resume", "fork"):
            code, _, errors = await perdure(verb, house.session, "look", "--attach", str(image))
            assert code == 0, errors
            assert contents(provider)[-2:] == [IMAGE_URL, {"type": "text", "text": "look"}]
        code, _, errors = await perdure("resume", house.session, "--attach", str(image))
        assert code == 2
        assert "there is no text beside the images and files" in errors
