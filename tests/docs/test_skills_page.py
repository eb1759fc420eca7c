"""What the page on skills shows is run: the folder it draws is made, and its agents are defined there."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, AgentDefinitionError
from perdure.agents.skills import render_skill
from perdure.skills import skills_in
from tests.docs.sections import section

PAGE = section("agents", "Skills")
CLERK, OFFICE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(SKILL,) = re.findall(r"```markdown\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def clerk(tmp_path: Path) -> Path:
    """The folder of the page."""
    skill = tmp_path / "skills" / "refund-order"
    (skill / "rules").mkdir(parents=True)
    (skill / "rules" / "eu.md").write_text("Fourteen days.")
    (skill / "SKILL.md").write_text(SKILL)
    (tmp_path / "instructions.md").write_text("Be kind.")
    for capability in ("law", "code"):
        review = tmp_path / capability / "skills" / "review"
        review.mkdir(parents=True)
        (review / "SKILL.md").write_text("---\nname: review\ndescription: Review.\n---\n")
    return tmp_path


def run(folder: Path, text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__file__": str(folder / "agents.py")}
    exec(compile(text, "docs/agents.md", "exec"), names)
    return names


def test_the_agent_of_the_page_has_its_skill_and_its_instructions(clerk: Path) -> None:
    agent: Agent = run(clerk, CLERK)["clerk"]
    assert agent.instructions == "You answer the letters of customers.\n\nBe kind."
    (skill,) = agent.skills
    text = render_skill(skill, folder=skill.folder)
    assert "1. Look at the date" in text
    assert "<allowed_tools>find_order, pay_back</allowed_tools>" in text
    assert "rules/eu.md\n</files>" in text
    assert f"<folder>{clerk}/skills/refund-order</folder>" in text


def test_the_skills_of_the_page_have_the_ids_it_names(clerk: Path) -> None:
    agent: Agent = run(clerk, CLERK + OFFICE)["agent"]
    assert [skill.id for skill in agent.skills] == ["law:review", "code:review"]


def test_the_error_of_the_page_is_what_a_user_reads(clerk: Path) -> None:
    (shown,) = re.findall(r"^    (/srv/.*)", PAGE, re.MULTILINE)
    file = clerk / "skills" / "refund-order" / "SKILL.md"
    file.write_text(re.sub("description: .*", "description:", SKILL))
    with pytest.raises(AgentDefinitionError) as caught:
        skills_in(clerk / "skills")
    assert str(caught.value) == shown.replace("/srv/clerk", str(clerk))
