"""Skills in turns: the model reads what the turn began with, whichever worker answers and whatever it has on disk."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure import Agent, ask_user
from perdure.contracts.agents import Skill
from perdure.skills import skills_in
from perdure.testing import Script, ScriptedProvider, call, say
from tests.faults import everywhere
from tests.house import House
from tests.workflow.asking import results, update, waiting

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_with_skills"
LONG = "word " * 8_000 + "the end"
"""Longer than what other tools may say at once."""


def write(folder: Path, name: str, body: str) -> None:
    """A skill with a file beside it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: How to {name}.\n---\n{body}\n")
    (folder / name / "run.py").write_text("print('run')")


def reading(*names: str) -> Script:
    """A model that reads these skills, one after the other."""
    return Script(replies=(*(call(("skill", {"name": name})) for name in names), say("done")))


def agent_with(*skills: Skill) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[ask_user], skills=skills)


async def test_the_model_knows_the_skills_and_reads_the_one_it_calls_for(house: House) -> None:
    """S-79: body, folder and files, all of it and in no history."""
    folder = house.folder / "skills"
    write(folder, "review", LONG)
    write(folder, "report", "# How to report")
    async with ScriptedProvider(reading("review", "report")) as provider, house.worker(agent_with(*skills_in(folder))):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["steps"]) == ("finished", 3)
    offered = json.dumps(provider.requests[0].request.tools)
    assert "<name>report</name>\\n<description>How to report.</description>" in offered
    assert "the end" not in offered
    first, second = results(provider.requests[-1].request.messages)
    assert first.startswith(f'<skill name="review">\n{LONG}\n</skill>\n<folder>{folder}/review</folder>\n')
    assert first.endswith("<files>\nrun.py\n</files>")
    assert second.startswith('<skill name="report">\n# How to report\n</skill>\n')
    history = await everywhere.temporal(house, house.session)
    assert [place for place, text in history.items() if b"the end" in text] == []


async def test_a_name_that_does_not_tell_one_skill_is_told_to_the_model_and_the_turn_goes_on(house: House) -> None:
    """S-79."""
    for capability in ("code", "law"):
        write(house.folder / capability, "review", f"# Of {capability}")
    skills = [*skills_in(house.folder / "code", capability="code"), *skills_in(house.folder / "law", capability="law")]
    script = reading("review", "absent", "../law/review", "law:review")
    async with ScriptedProvider(script) as provider, house.worker(agent_with(*skills)):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["steps"]) == ("finished", 5)
    *errors, body = results(provider.requests[-1].request.messages)
    messages = [json.loads(error)["error"]["message"] for error in errors]
    assert messages == [
        "more than one skill is named 'review'; choose one of: code:review, law:review",
        "there is no skill 'absent'; there are: code:review, law:review",
        "there is no skill '../law/review'; there are: code:review, law:review",
    ]
    assert "# Of law" in body


ASKED = call(("ask_user", {"question": "Which?"}))
"""No activity runs while a turn waits for a person: it then goes on wherever there is a worker."""


async def answered(house: House) -> None:
    (request,) = await waiting(house)
    await update(house, "answer", request=request["request_id"], value="the first")


async def test_a_worker_process_without_the_folder_answers_with_what_the_turn_began_with(house: House) -> None:
    """S-79: and says what it lacks."""
    folder = house.folder / "skills"
    write(folder, "review", LONG)
    house.environment.setenv("SKILLS", str(folder))
    async with ScriptedProvider(Script(replies=(ASKED, *reading("review").replies))) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS)
        await first.polling()
        handle = await house.start()
        await waiting(house)
        assert await first.stop() == 0
        shutil.rmtree(folder)
        await house.spawn_worker(AGENTS).polling()
        await answered(house)
        result = await handle.result()
    assert result["stop_reason"] == "finished"
    _, body = results(provider.requests[-1].request.messages)
    assert body == (
        f'<skill name="review">\n{LONG}\n</skill>\nFiles in it, at most the first ten:\n<files>\nrun.py\n</files>\n'
        "Note: the worker that runs this call does not have the folder of the skill; its files cannot be read here."
    )


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "nothing": (lambda skill: None, ""),
    "no file": (lambda skill: (skill / "run.py").unlink(), "the worker that runs this call lacks these files: run.py."),
    "another text": (
        lambda skill: write(skill.parent, "review", "# Other"),
        "the folder on the worker that runs this call holds another version of the skill.",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_worker_with_other_files_answers_with_what_the_turn_began_with(house: House, change: str) -> None:
    """S-79: and says what differs; the next turn has the text of the worker that opens it."""
    happen, note = CHANGES[change]
    folder = house.folder / "skills"
    write(folder, "review", "# Before")
    before = agent_with(*skills_in(folder))
    happen(folder / "review")
    after = agent_with(*skills_in(folder))
    replies = reading("review").replies
    async with ScriptedProvider(Script(replies=(ASKED, *replies, *replies))) as provider:
        house.use(provider)
        async with house.worker(before):
            handle = await house.start()
            await waiting(house)
        async with house.worker(after):
            await answered(house)
            await handle.result()
            assert (await house.run())["turn"] == 2
    _, read, then = results(provider.requests[-1].request.messages)
    assert read.startswith('<skill name="review">\n# Before\n</skill>\n')
    assert (f"Note: {note}" in read) if note else ("Note: " not in read)
    assert then.startswith(
        f'<skill name="review">\n{"# Other" if change == "another text" else "# Before"}\n</skill>\n'
    )
    assert "Note: " not in then
