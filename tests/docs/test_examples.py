"""The agents in examples/ do what they say, with a scripted model; each is short enough to be read at once."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.clerk.agent import Meeting
from examples.clerk.agent import agent as clerk
from examples.maintainer.agent import agent as maintainer
from examples.researcher.agent import agent as researcher
from perdure.client import Turn
from perdure.contracts.input_requests import InputRequest
from perdure.testing import ChatRequest, Reply, Script, call, say
from perdure.testing.pytest_plugin import MakeEnvironment
from tests.house import eventually

pytestmark = pytest.mark.deep

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["maintainer/agent.py", "researcher/agent.py", "clerk/agent.py"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 70


async def asked(turn: Turn) -> InputRequest:
    """The request of a turn that waits for a person."""
    (request,) = await eventually(turn.requests)
    found: InputRequest = request
    return found


def git(folder: Path, *arguments: str) -> str:
    """What git prints there."""
    settings = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(("git", *settings, *arguments), cwd=folder, check=True, capture_output=True, text=True).stdout


async def test_the_maintainer_mends_a_test_once_a_person_has_approved(
    perdure_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "test_sum.py").write_text("def test_sum():\n    assert 1 + 1 == 3\n")
    (tmp_path / "docs").mkdir()
    git(tmp_path, "init")
    git(tmp_path, "config", "user.name", "ann")
    git(tmp_path, "config", "user.email", "ann@example.org")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-m", "begin")
    monkeypatch.setenv("REPOSITORY", str(tmp_path))
    mended = "def test_sum():\n    assert 1 + 1 == 2\n"
    script = Script(
        replies=(
            call(("run_tests", {}), ("read_file", {"path": "../secret"})),
            call(("write_file", {"path": "test_sum.py", "text": mended})),
            call(("write_file", {"path": "docs/sums.md", "text": "Sums are right."}), ("run_tests", {})),
            call(("commit", {"message": "Mend the sum"})),
            say("It is mended."),
        )
    )
    async with perdure_environment(agents=[maintainer], script=script) as env:
        turn = await env.client.start("maintainer", "Mend the tests.")
        request = await asked(turn)
        assert (request.tool, (tmp_path / "test_sum.py").read_text()) == (
            "write_file",
            "def test_sum():\n    assert 1 + 1 == 3\n",
        )
        await env.client.approve(turn.session, request.request_id, by="ann", digest=request.digest)

        async def wants_to_commit() -> InputRequest | None:
            return next((wanted for wanted in await turn.requests() if wanted.tool == "commit"), None)

        request = await eventually(wants_to_commit)
        await env.client.deny(turn.session, request.request_id, by="ann", reason="I commit myself.")
        result = await turn.result()
        told = [
            str(message["content"])
            for message in env.provider.requests[-1].request.messages
            if message["role"] == "tool"
        ]
    assert (result.stop_reason, result.output) == ("finished", "It is mended.")
    assert "exit code 1" in told[0]
    assert "is not a file of the repository" in told[1]
    assert "exit code 0" in told[4]
    assert "I commit myself." in told[5]
    assert ((tmp_path / "test_sum.py").read_text(), (tmp_path / "docs" / "sums.md").exists()) == (mended, True)
    assert git(tmp_path, "log", "--format=%s") == "begin\n"


def answer_for_research(request: ChatRequest) -> Reply:
    """The three models of the researcher, told apart by their instructions."""
    if "Answer the question" in request.system:
        word = "moon" if "moon" in str(request.messages[1]["content"]) else "sun"
        return (call(("search_notes", {"word": word})), say(f"{word}: see tides.md"))[request.index]
    if "Name each claim" in request.system:
        return say("sound")
    parts = call(("reader", {"query": "What does the moon do?"}), ("reader", {"query": "What does the sun do?"}))
    return (parts, call(("critic", {"query": "draft"})), say("The moon and the sun, by tides.md."))[request.index]


async def test_the_researcher_has_two_readers_at_once_and_a_critic_within_one_budget(
    perdure_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tides.md").write_text("The moon pulls.\nThe sun pulls less.\n")
    monkeypatch.setenv("NOTES", str(tmp_path))
    async with perdure_environment(agents=[researcher], script=answer_for_research) as env:
        turn = await env.client.start("researcher", "What makes tides?")
        result = await turn.result()
        delegates = await env.client.sessions(caller=turn.session)
        read = [message.content for message in await env.client.transcript(turn.session)]
    assert (result.stop_reason, result.output) == ("finished", "The moon and the sun, by tides.md.")
    assert sorted(last.agent for _, last in delegates) == ["critic", "reader", "reader"]
    assert {"moon: see tides.md", "sun: see tides.md", "sound"} <= set(read)
    assert (result.steps, result.delegated_steps) == (3, 5)


async def test_the_clerk_books_over_mcp_and_its_answer_is_held_to_the_schema(
    perdure_environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "calendar.json"
    file.write_text('{"2026-05-04T09:00": "Standup"}')
    monkeypatch.setenv("CALENDAR_FILE", str(file))
    meeting = {"title": "Ann", "begins": "2026-05-04T10:00:00Z", "minutes": 60, "attendees": ["Ann"]}
    script = Script(
        replies=(
            call(
                ("time__get_current_time", {"timezone": "Europe/Berlin"}),
                ("calendar__list_bookings", {"day": "2026-05-04"}),
            ),
            call(("calendar__book", {"time": "2026-05-04T10:00", "title": "Ann"})),
            say(json.dumps({**meeting, "minutes": 9000})),
            say(json.dumps(meeting)),
        )
    )
    async with perdure_environment(agents=[clerk], script=script) as env:
        result = await (await env.client.start("clerk", "Book an hour with Ann on Monday morning.")).result()
        told = [str(message.get("content")) for message in env.provider.requests[-1].request.messages]
    assert result.stop_reason == "finished", result.error
    assert Meeting.model_validate(result.value).begins == datetime(2026, 5, 4, 10, tzinfo=UTC)
    assert any("Europe/Berlin" in text and "datetime" in text for text in told)
    assert any("Standup" in text for text in told)
    assert any("480" in text for text in told[-1:])  # what the correction says of 9000 minutes
    assert json.loads(file.read_text()) == {"2026-05-04T09:00": "Standup", "2026-05-04T10:00": "Ann"}
