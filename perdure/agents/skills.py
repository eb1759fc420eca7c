"""The tool with which a model reads a skill: what it says of the skills, how a name is resolved, what a call gives."""

from collections.abc import Sequence
from html import escape
from typing import Annotated

from perdure.agents.tool import tool
from perdure.contracts.agents import Skill
from perdure.contracts.tools import ToolDeclaration

_DESCRIPTION = """\
Read a skill: instructions for one kind of task. If a task fits the description of a skill, read the skill before you \
begin, and follow it."""


class UnknownSkillError(LookupError):
    """No skill, or more than one, has the name; the message lists what to choose from."""


@tool(description=_DESCRIPTION, idempotent=True, offload=False, catch=[UnknownSkillError])
def skill(name: Annotated[str, "The name of the skill, as it stands in the list of available skills"]) -> str:
    """Stand for the tool; a worker puts a body in its place that knows the skills of the turn's definition."""
    raise NotImplementedError


def declare_skills(skills: Sequence[Skill]) -> tuple[ToolDeclaration, ...]:
    """The tool with the list of these skills in its description; none without skills."""
    if not skills:
        return ()
    listed = "\n".join(to_prompt_xml(offered) for offered in skills)
    description = f"{_DESCRIPTION}\n\n<available_skills>\n{listed}\n</available_skills>"
    return (skill.with_(description=description).declaration,)


def is_skill_tool(declaration: ToolDeclaration) -> bool:
    """Whether a tool is the one that reads skills."""
    return declaration.reference == skill.declaration.reference


def to_prompt_xml(skill: Skill) -> str:
    """A skill as the tool's description lists it."""
    name, description = escape(skill.id, quote=False), escape(skill.description, quote=False)
    return f"<skill>\n<name>{name}</name>\n<description>{description}</description>\n</skill>"


def resolve_skill(name: str, skills: Sequence[Skill]) -> Skill:
    """The skill of that id, or the only one of that name."""
    for offered in skills:
        if offered.id == name:
            return offered
    same = [offered for offered in skills if offered.name == name]
    if len(same) == 1:
        return same[0]
    known = ", ".join(sorted(offered.id for offered in same or skills))
    if same:
        msg = f"more than one skill is named {name!r}; choose one of: {known}"
    else:
        msg = f"there is no skill {name!r}; there are: {known}"
    raise UnknownSkillError(msg)


def render_skill(skill: Skill, *, folder: str, note: str = "") -> str:
    """A skill as the model reads it: the body, its tools, the folder on this worker, and files in it."""
    parts = [f'<skill name="{escape(skill.id)}">\n{skill.body}\n</skill>']
    if skill.allowed_tools:
        parts.append(f"<allowed_tools>{', '.join(skill.allowed_tools)}</allowed_tools>")
    if skill.compatibility:
        parts.append(f"<compatibility>{skill.compatibility}</compatibility>")
    if folder:
        parts.append(f"<folder>{folder}</folder>\nPaths in the skill are relative to this folder.")
    if skill.files:
        parts.append("Files in it, at most the first ten:\n<files>\n" + "\n".join(skill.files) + "\n</files>")
    if note:
        parts.append(f"Note: {note}")
    return "\n".join(parts)
