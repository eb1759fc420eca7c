"""A followed turn at a real terminal: rows that are redrawn, calls and delegates told apart, and the end of asking."""

import asyncio
import json
import re

import pytest

from perdure import Agent, Delegate, ToolContext, tool
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, asker, waiting
from tests.workflow.test_people_doors import Terminal, perdure

pytestmark = pytest.mark.deep

GO_ON = asyncio.Event()


@tool
async def fetch(page: str, context: ToolContext) -> str:
    """Fetch a page."""
    context.report_progress(1, 3, f"parts of {page}")
    while not GO_ON.is_set():
        await asyncio.sleep(0.05)
    return f"the page {page}"


@pytest.fixture
def agents() -> tuple[Agent, Agent]:
    GO_ON.clear()
    helper = Agent(name="helper", model="openai/helping", description="Helps.")
    lead = Agent(name="tester", model="openai/scripted", tools=[fetch], delegates=[Delegate(helper)])
    return lead, helper


def answer(request: ChatRequest) -> Reply:
    if request.model == "helping":
        return say("helped")
    if request.index == 0:
        return call(("fetch", {"page": "a"}), ("fetch", {"page": "b"}))
    return call(("helper", {"query": "help"})) if request.index == 1 else say("all done")


async def test_the_live_rows_show_progress_and_leave_nothing_behind(
    house: House, agents: tuple[Agent, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PERDURE_UI_URL", "http://127.0.0.1:8233/")
    async with ScriptedProvider(answer) as provider, house.worker(*agents):
        house.use(provider)
        async with Terminal("run", "tester", "go", "--session", house.session, "--tree") as terminal:
            await terminal.shows("step 1 of 1,000 · 2 calls · ")
            await terminal.shows("fetch #2 · 1 of 3 parts of ")
            GO_ON.set()
            assert await terminal.ends() == 0
            await terminal.shows(f"/namespaces/default/workflows/{house.session}")
    left = screen(terminal.text)
    assert not [line for line in left if re.search("thinking|calls ·|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]|^… ", line)]
    assert [line.split()[1] for line in left if line.startswith("→ fetch #2")] == ["fetch"]
    nested = [place for place, line in enumerate(left) if line.startswith("  helper │ ")]
    (start,), (end,) = ([place for place, line in enumerate(left) if line.startswith(mark)] for mark in ("⇢", "⇠"))
    assert nested == list(range(start + 1, end))
    assert any("helped" in left[place] for place in nested)
    assert re.search(r"finished · 3 steps · .* · [\d.]+s$", left[-2])


async def test_without_a_terminal_nothing_is_drawn(house: House, agents: tuple[Agent, Agent]) -> None:
    GO_ON.set()
    async with ScriptedProvider(answer) as provider, house.worker(*agents):
        house.use(provider)
        code, output, errors = await perdure("run", "tester", "go", "--session", house.session)
    assert (code, errors) == (0, "")
    assert output.replace("\n", "").isprintable()
    assert "… fetch" in output


async def test_ctrl_d_at_a_question_leaves_it_to_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-60: exit 7 and the commands, as without a terminal; the turn waits on."""
    monkeypatch.setenv("TERM", "xterm")
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        async with Terminal("run", "tester", "go", "--session", house.session) as terminal:
            await terminal.shows("  2. blue\r\n> ")
            terminal.types("", end="\x04")
            assert await terminal.ends() == 7
        (request,) = await waiting(house)
        assert f"perdure answer {house.session} {request['request_id']} red" in terminal.text
        assert (await perdure("answer", house.session, "blue"))[0] == 0
        assert (await (await house.client.attach(house.session)).result()).stop_reason == "finished"


def screen(text: str) -> list[str]:
    """What a terminal shows in the end, of the control characters that are used."""
    rows, row = [""], 0
    for part in re.split(r"(\x1b\[\d*[A-Za-z]|\r\n|\n|\r)", text):
        if part in {"\r\n", "\n"}:
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part == "\x1b[J":
            rows[row:] = [""]
        elif part.startswith("\x1b") and part.endswith("A"):
            row -= int(part[2:-1])
        elif part.startswith("\x1b") or part == "\r":  # a colour, or the beginning of a row that is erased next
            continue
        else:
            rows[row] += part
    return [line for line in rows if line]


async def test_an_answer_is_shown_while_it_is_written_and_once_when_it_is_stored(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-15: what was shown below gives way to the stored answer."""
    monkeypatch.setenv("TERM", "xterm")
    text = "The quick brown fox jumps over the lazy dog"
    streaming = Agent(name="tester", model="openai/scripted", stream="always")
    async with ScriptedProvider(Script(replies=(say(text),))) as provider, house.worker(streaming):
        house.use(provider)
        provider.hold_streams(after=4)
        async with Terminal("run", "tester", "go", "--session", house.session) as terminal:
            await terminal.shows("The quick brown fox")
            assert text not in terminal.text
            await provider.release_streams()
            assert await terminal.ends() == 0
    assert len([line for line in screen(terminal.text) if "The quick brown" in line]) == 1


async def test_pieces_are_json_lines_only_if_they_are_asked_for(house: House) -> None:
    """S-15, S-50: without --deltas the lines are the events alone."""
    streaming = Agent(name="tester", model="openai/scripted", stream="always")
    async with ScriptedProvider(Script(replies=(say("one two three"),))) as provider, house.worker(streaming):
        house.use(provider)
        _, with_pieces, _ = await perdure("run", "tester", "go", "--json", "--deltas")
        _, without, _ = await perdure("run", "tester", "go", "--json")
    pieces = [json.loads(line) for line in with_pieces.splitlines() if '"delta"' in line]
    assert "one two three".startswith("".join(piece["text"] for piece in pieces))
    assert '"delta"' not in without
