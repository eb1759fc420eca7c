"""Images and files: what a prompt may hold, what models are sent of it, and what histories keep."""

import asyncio
import base64
import json
import threading
from typing import Any

import pytest

from perdure import Agent, File, Image, tool
from perdure.contracts.messages import ToolMessage, UserMessage
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House
from tests.memory import Run

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
ENCODED = base64.b64encode(PNG).decode()
IMAGE_URL: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}}
ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}}
PROMPT = ["What is this?", Image(PNG, name="dot.png"), File("a.pdf", PDF), File("notes.txt", "a word")]


def agent(model: str = "openai/scripted", *tools: Any, **settings: Any) -> Agent:
    return Agent(name="tester", model=model, tools=list(tools), **settings)


async def finished(house: House, prompt: Any, **options: Any) -> str:
    turn = await house.client.start("tester", prompt, session=house.session, **options)
    async with asyncio.timeout(WAIT_SECONDS):
        result = await turn.result()
    assert result.error is None
    return result.output


def contents(of: ScriptedProvider | Run, number: int = -1) -> list[Any]:
    """The blocks of the user's messages, as they were sent."""
    body: Any = of.requests[number].body
    said = (message["content"] for message in body["messages"] if message["role"] == "user")
    return [block for content in said for block in (content if isinstance(content, list) else [content])]


@pytest.mark.parametrize("model", ["openai/scripted", "anthropic/scripted"])
async def test_a_prompt_with_an_image_and_files_reaches_the_model_and_leaves_its_bytes_in_the_store(
    house: House, model: str
) -> None:
    """Each provider gets its own form; histories, events and transcript hold what stands for them."""
    async with (
        ScriptedProvider(Script(replies=(say("a dot"), say("the same")))) as provider,
        house.worker(agent(model)),
    ):
        house.use(provider)
        assert await finished(house, PROMPT) == "a dot"
        blocks = contents(provider)
        async with asyncio.timeout(WAIT_SECONDS):
            again = await house.client.send(house.session, ["And this?", IMAGE_URL])
            assert (await again.result()).output == "the same"
        history = await house.temporal.get_workflow_handle(house.session, run_id=None).fetch_history()
    encoded_pdf = base64.b64encode(PDF).decode()
    text = '<file name="notes.txt">\na word\n</file>'
    if model.startswith("openai"):
        file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{encoded_pdf}"}
        assert blocks[:2] == [IMAGE_URL, {"type": "file", "file": file}]
    else:
        assert blocks[0] == ANTHROPIC_IMAGE
        assert blocks[1]["type"] == "document"
        assert blocks[1]["source"]["data"] == encoded_pdf
        assert "cache_control" in blocks[3]
    assert [block["text"] for block in blocks[2:]] == [text, "What is this?"]
    assert ENCODED not in history.to_json()
    messages = await house.client.transcript(house.session)
    parts = [message.parts for message in messages if isinstance(message, UserMessage)]
    assert [part.line for part in parts[0]] == [
        f"[image image/png {len(PNG)} bytes dot.png]",
        f"[file application/pdf {len(PDF)} bytes a.pdf]",
        "[file text/plain 6 bytes notes.txt]",
    ]
    assert parts[1][0].artifact == parts[0][0].artifact  # the same bytes are kept once
    (start, _) = await house.events("agent_start")
    assert [part["name"] for part in start["parts"]] == ["dot.png", "a.pdf", "notes.txt"]
    kept = await house.client.artifact(house.session, parts[0][0].artifact)
    assert (kept.data, kept.content_type) == (PNG, "image/png")


async def test_a_model_that_sees_nothing_reads_what_was_left_out(run: Run) -> None:
    """By litellm's map; text files are read by every model."""
    await run(agent("openai/o3-mini"), say("no idea"), prompt=PROMPT)
    (content,) = contents(run)
    assert content.split("\n\n") == [
        f"[image image/png {len(PNG)} bytes dot.png: not shown: this model does not take it]",
        f"[file application/pdf {len(PDF)} bytes a.pdf: not shown: this model does not take it]",
        '<file name="notes.txt">\na word\n</file>',
        "What is this?",
    ]


async def test_a_message_into_the_running_turn_and_one_for_the_next_may_hold_images(house: House) -> None:
    going = threading.Event()

    @tool
    def wait() -> str:
        """Wait."""
        going.wait(WAIT_SECONDS)
        return "over"

    script = Script(replies=(call(("wait", {})), say("seen"), say("seen too")))
    async with ScriptedProvider(script) as provider, house.worker(agent("openai/scripted", wait)):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        await house.wait_for_event("tool_start")
        await house.client.send(house.session, ["Look now.", Image(PNG)], when_busy="steer")
        queued = await house.client.send(house.session, ["Look later.", Image(PNG + b"x")])
        going.set()
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await turn.result()).output == "seen"
            assert (await queued.result()).output == "seen too"
        assert IMAGE_URL in contents(provider, 1)
        assert json.dumps(contents(provider, 2)).count('"image_url", "image_url"') == 2
    (steered,) = await house.events("user_message")
    assert steered["parts"][0]["media_type"] == "image/png"


@tool
async def draw() -> list[Any]:
    """Draw twice."""
    return ["here", Image(PNG), Image(b"no image at all")]


@pytest.mark.parametrize("model", ["openai/scripted", "anthropic/scripted", "openai/o3-mini"])
async def test_the_images_of_a_tool_are_shown_to_models_that_see(run: Run, model: str) -> None:
    """In the result on Anthropic's wire, in a user message behind the results on OpenAI's; a line elsewhere."""
    result = await run(agent(model, draw), call(("draw", {}), ("draw", {})), say("two dots"), say("yes"))
    assert (result["output"], result["error"]) == ("two dots", None)
    body: Any = run.requests[1].body
    results = [message.content for message in await run.transcript() if isinstance(message, ToolMessage)]
    assert all("[image, image/png" in result and "artifact art_call_" in result for result in results)
    last = body["messages"][-1]
    if model == "anthropic/scripted":
        assert [block["type"] for block in last["content"]] == ["tool_result", "tool_result"]
        assert all(block["content"][1]["source"]["data"] == ENCODED for block in last["content"])
    elif model == "openai/scripted":
        assert [message["role"] for message in body["messages"][-3:]] == ["tool", "tool", "user"]
        assert last["content"][1:] == [IMAGE_URL, IMAGE_URL]
    else:
        assert last["role"] == "tool"
        assert ENCODED not in json.dumps(body)


async def test_a_prompt_in_text_with_images_of_tools_in_text_mode_is_shown_too(run: Run) -> None:
    """S-27: where calls stand in texts, results are user messages."""

    def answer(request: ChatRequest) -> Reply:
        return say('<tool-call name="draw">\n{}\n</tool-call>') if request.index == 0 else say("a dot")

    tester = agent("openai/scripted", draw, tool_mode="json-in-xml")
    result = await run(tester, script=answer, prompt=["draw", Image(PNG)])
    assert (result["output"], result["error"]) == ("a dot", None)
    assert contents(run).count(IMAGE_URL) == 2


async def test_a_request_that_names_what_the_store_does_not_have_is_refused(run: Run) -> None:
    """Nothing is sent; the refusal says how files get there."""
    part = {"artifact": "file_x", "media_type": "image/png", "size": 3, "sha256": "0" * 64}
    result = await run(agent(), say("never"), parts=[part])
    assert len(run.requests) == 0
    assert result["reason_code"] == "request.invalid"
    assert "--attach FILE" in result["error"]


async def test_a_fork_sees_the_images_of_its_origin(house: House) -> None:
    async with ScriptedProvider(Script(replies=(say("a dot"), say("still")))) as provider, house.worker(agent()):
        house.use(provider)
        await finished(house, ["What?", Image(PNG)])
        fork = await house.client.fork(house.session, prompt="And?")
        async with asyncio.timeout(WAIT_SECONDS):
            await fork.result()
        assert contents(provider)[0] == IMAGE_URL
