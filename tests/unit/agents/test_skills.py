"""Skills: which files are taken, what is said of the others, and what the tool ``skill`` makes of those taken."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, AgentDefinitionError, tool
from perdure.agents.skills import UnknownSkillError, render_skill, resolve_skill, to_prompt_xml
from perdure.contracts.agents import AgentDefinition, Skill
from perdure.skills import MAX_BYTES, instructions_in, skills_in
from tests.unit.agents.skill_files import LONG_NAME, REFUSED, TAKEN, front, write


def agent(**settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", **settings)


@pytest.mark.parametrize(("content", "expected"), TAKEN.values(), ids=TAKEN.keys())
def test_a_skill_that_keeps_the_rules_is_taken(
    tmp_path: Path, content: str | bytes, expected: dict[str, object]
) -> None:
    """S-79."""
    write(tmp_path / "review", content)
    (skill,) = skills_in(tmp_path)
    assert {name: getattr(skill, name) for name in expected} == expected
    assert json.loads(skill.model_dump_json())["name"] == "review"


@pytest.mark.parametrize("name", ["a", "7", "a-b-c", "pdf-2", LONG_NAME])
def test_a_name_of_lower_case_letters_digits_and_single_hyphens_is_taken(tmp_path: Path, name: str) -> None:
    """S-79."""
    write(tmp_path / name, front(name=name))
    assert [skill.name for skill in skills_in(tmp_path)] == [name]


@pytest.mark.parametrize(
    "name", ["Review", "-a", "a-", "a--b", "a_b", "a b", "a.b", "..", "../a", "a/b", "é", "a:b", f"{LONG_NAME}x"]
)
def test_any_other_name_is_refused_with_file_line_and_rule(tmp_path: Path, name: str) -> None:
    """S-79: so no name is a path either."""
    folder = tmp_path / ("a" if "/" in name or name == ".." else name)
    write(folder, front(name=f'"{name}"'))
    with pytest.raises(AgentDefinitionError) as caught:
        skills_in(tmp_path)
    assert str(caught.value).startswith(f"{folder}/SKILL.md:2: name: {name!r} is no name of a skill: 1 to 64 lower")


@pytest.mark.parametrize(("content", "line", "cause"), REFUSED.values(), ids=REFUSED.keys())
def test_a_skill_that_breaks_a_rule_is_refused_with_file_line_and_cause(
    tmp_path: Path, content: str | bytes, line: int, cause: str
) -> None:
    """S-79."""
    write(tmp_path / "review", content)
    with pytest.raises(AgentDefinitionError) as caught:
        skills_in(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/review/SKILL.md:{line}: " if line else f"{tmp_path}/review/SKILL.md: ")
    assert cause in message
    assert "\n" not in message


def _link_out(file: Path) -> None:
    outside = file.parent.parent / "elsewhere.txt"
    outside.write_text(front())
    file.symlink_to(outside)


NO_FILES = {
    "a folder": (Path.mkdir, "it is no file"),
    "a pipe, which is never waited for": (os.mkfifo, "it is no file"),
    "a link that leads nowhere": (lambda file: file.symlink_to("absent"), "it cannot be read: No such file"),
    "a link to itself": (lambda file: file.symlink_to("SKILL.md"), "it cannot be read: "),
    "a link out of the folder": (_link_out, "it is a link that leads out of its folder"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_of_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    """S-79."""
    make, cause = NO_FILES[kind]
    (tmp_path / "review").mkdir()
    make(tmp_path / "review" / "SKILL.md")  # type: ignore[operator]
    with pytest.raises(AgentDefinitionError, match=cause):
        skills_in(tmp_path)


def test_a_folder_of_skills_is_searched_one_level_deep(tmp_path: Path) -> None:
    """S-79: what has no SKILL.md is no skill; a folder may be a link."""
    write(tmp_path / "b", front(name="b"))
    write(tmp_path / "a", front(name="a"))
    write(tmp_path / "group" / "deep", front(name="deep"))
    write(tmp_path.with_name("kept") / "linked", front(name="linked"))
    (tmp_path / "linked").symlink_to(tmp_path.with_name("kept") / "linked")
    (tmp_path / "README.md").write_text("no skill")
    assert [skill.name for skill in skills_in(tmp_path)] == ["a", "b", "linked"]
    assert [skill.name for skill in skills_in(tmp_path / "group" / "deep")] == ["deep"]


def test_a_broken_skill_is_skipped_with_a_line_in_the_log_if_the_author_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-79."""
    write(tmp_path / "a", front(name="a"))
    write(tmp_path / "b", "no front matter")
    assert [skill.name for skill in skills_in(tmp_path, on_invalid="skip")] == ["a"]
    assert f"left out: {tmp_path}/b/SKILL.md:1: the first line must be '---'" in caplog.text
    assert skills_in(tmp_path / "absent", on_invalid="skip") == ()
    assert "absent' cannot be read: No such file or directory" in caplog.text


def test_a_skill_outside_the_limits_is_accepted_with_a_line_in_the_log_if_the_author_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-79: but never one that cannot be read."""
    write(tmp_path / "b", front(name="Other", description="d" * 1025))
    (skill,) = skills_in(tmp_path, on_invalid="accept")
    assert (skill.name, len(skill.description)) == ("Other", 1025)
    assert [line.split(": ")[2] for line in caplog.messages] == ["name", "description"]
    write(tmp_path / "c", "no front matter")
    with pytest.raises(AgentDefinitionError, match=r"c/SKILL\.md:1: the first line"):
        skills_in(tmp_path, on_invalid="accept")


def test_keys_outside_the_specification_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S-79: other products have their own."""
    caplog.set_level(logging.INFO)
    write(tmp_path / "review", front("user-invocable: true"))
    assert len(skills_in(tmp_path)) == 1
    assert "SKILL.md: not used: user-invocable" in caplog.text


@pytest.mark.parametrize(
    ("folder", "settings", "message"),
    [
        ("skills", {}, "the folder 'skills' would be '{cwd}/skills' in this process and another one in the next"),
        ("{tmp}/absent", {}, "the folder '{tmp}/absent' cannot be read: No such file or directory"),
        ("{tmp}", {}, "there is no SKILL.md in '{tmp}', nor in a subfolder of it"),
        ("{tmp}", {"on_invalid": "ignore"}, "on_invalid='ignore' is none of refuse, skip, accept"),
        ("{tmp}", {"capability": "a:b"}, "capability='a:b': write 1 to 64 lower-case letters"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(
    tmp_path: Path, folder: str, settings: dict[str, str], message: str
) -> None:
    """S-79: the message names the absolute path that was looked at."""
    with pytest.raises(AgentDefinitionError) as caught:
        skills_in(folder.format(tmp=tmp_path), **settings)  # type: ignore[arg-type]
    assert message.format(tmp=tmp_path, cwd=Path.cwd()) in str(caught.value)


def test_up_to_ten_files_are_named_and_none_from_elsewhere(tmp_path: Path) -> None:
    """S-79."""
    folder = tmp_path / "skills" / "review"
    write(folder, front())
    for name in ("scripts/run.py", "notes.md", ".hidden", "__pycache__/run.pyc", ".git/config", "odd\nname"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    (tmp_path / "secret").write_text("x")
    (folder / "stolen").symlink_to(tmp_path / "secret")
    (folder / "round").symlink_to(folder, target_is_directory=True)
    (skill,) = skills_in(tmp_path / "skills")
    assert skill.files == ("notes.md", "scripts/run.py")
    for number in range(12):
        (folder / f"many-{number:02}").write_text("x")
    assert skills_in(folder)[0].files == tuple(f"many-{number:02}" for number in range(10))


def test_a_skill_is_found_by_its_id_or_by_a_name_that_no_other_has() -> None:
    """S-79: more than one lists the candidates, none lists all."""
    own, first, second, only = (
        Skill(name=name, capability=capability, description="d")
        for name, capability in (("plan", ""), ("review", "code"), ("review", "law"), ("file", "law"))
    )
    skills = [own, first, second, only]
    assert resolve_skill("plan", skills) is own
    assert resolve_skill("law:review", skills) is second
    assert resolve_skill("file", skills) is only
    with pytest.raises(UnknownSkillError, match=r"more than one .* 'review'; choose one of: code:review, law:review$"):
        resolve_skill("review", skills)
    for absent in ("absent", "", "code:file", "../review", "law:"):
        with pytest.raises(UnknownSkillError, match=r"there are: code:review, law:file, law:review, plan$"):
            resolve_skill(absent, skills)
    assert resolve_skill("review", [first, Skill(name="review", description="of none")]).description == "of none"


def test_the_tool_lists_the_skills_as_xml_in_its_description() -> None:
    """S-79: whatever a description holds."""
    skill = Skill(name="review", capability="code", description="Ends <here> & now.")
    assert to_prompt_xml(skill) == (
        "<skill>\n<name>code:review</name>\n<description>Ends &lt;here&gt; &amp; now.</description>\n</skill>"
    )
    declaration = agent(skills=[skill]).definition.tool("skill")
    assert declaration is not None
    assert declaration.description.endswith(f"<available_skills>\n{to_prompt_xml(skill)}\n</available_skills>")
    assert agent().definition.tool("skill") is None


def test_a_call_gives_body_tools_folder_and_files() -> None:
    """S-79."""
    skill = Skill(
        name="a", description="d", body="# How", allowed_tools=("x", "y"), compatibility="git", files=("run.py",)
    )
    assert render_skill(skill, folder="/srv/a", note="mind this.") == (
        '<skill name="a">\n# How\n</skill>\n'
        "<allowed_tools>x, y</allowed_tools>\n"
        "<compatibility>git</compatibility>\n"
        "<folder>/srv/a</folder>\nPaths in the skill are relative to this folder.\n"
        "Files in it, at most the first ten:\n<files>\nrun.py\n</files>\n"
        "Note: mind this."
    )
    assert render_skill(Skill(name="a", description="d", body="b"), folder="") == '<skill name="a">\nb\n</skill>'


def test_the_definition_holds_the_body_and_not_the_folder(tmp_path: Path) -> None:
    """S-79: two workers that have the skills in different places have the same definition."""
    digests = set()
    for place in (tmp_path / "one", tmp_path / "two"):
        write(place / "review", front())
        definition = agent(skills=skills_in(place)).definition
        digests.add(definition.digest())
        assert str(tmp_path) not in definition.canonical()
        assert AgentDefinition.model_validate_json(definition.canonical()).skills[0].body == "# Body"
    assert len(digests) == 1
    write(tmp_path / "two" / "review", front().replace("# Body", "# Other"))
    assert agent(skills=skills_in(tmp_path / "two")).definition.digest() not in digests


@tool(name="skill")
def own_skill() -> str:
    """A tool that an author named like ours."""
    return ""


ONE = Skill(name="review", description="d")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skills": "skills"}, "skills: write skills=skills_in(Path(__file__).parent / 'skills'), from perdure.skills"),
        ({"skills": [Path("skills")]}, "skills: write skills=skills_in("),
        ({"skills": [(ONE,)]}, "skills=[*skills_in(…), *skills_in(…)]"),
        ({"skills": [ONE, ONE]}, "skills: two skills are called review; tell them apart with skills_in(…, capability="),
        ({"skills": [ONE], "tools": [own_skill]}, "two tools named skill; rename one with @tool(name=…)"),
        ({"instructions": ["a", 1]}, "instructions: write a text, several in a list, or a function"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(AgentDefinitionError) as caught:
        agent(**settings)
    assert message in str(caught.value)


def test_instructions_are_read_from_a_folder_and_its_subfolders(tmp_path: Path) -> None:
    """S-79: the front matter is left out, a line across at the top is none."""
    texts = {
        "": "Main.\n",
        "b": "---\nname: b\n---\n\nOf b.\n",
        "a": "---\nOf a.\n---\nMore.",
        "c/deep": "deep",
        "e": "",
    }
    for place, text in texts.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "instructions.md").write_text(text)
    assert instructions_in(tmp_path) == "Main.\n\n---\nOf a.\n---\nMore.\n\nOf b."
    made = agent(instructions=["\n    You work.\n      Well.\n    ", instructions_in(tmp_path)])
    assert made.definition.instructions.startswith("You work.\n  Well.\n\nMain.\n\n---")


def test_instructions_that_cannot_be_read_are_refused_or_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-79."""
    with pytest.raises(AgentDefinitionError, match=r"there is no instructions\.md in"):
        instructions_in(tmp_path)
    for name, data in (("a", b"A."), ("b", b"\xff"), ("c", b"x" * (MAX_BYTES + 1))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "instructions.md").write_bytes(data)
    with pytest.raises(AgentDefinitionError, match=r"b/instructions\.md:1: it is not UTF-8"):
        instructions_in(tmp_path)
    assert instructions_in(tmp_path, on_invalid="skip") == "A."
    assert "left out: " in caplog.text
    assert "c/instructions.md: it is longer than 65,536 bytes" in caplog.text
