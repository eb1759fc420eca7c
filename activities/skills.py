"""The body of the tool ``skill``: the text is that of the turn's definition, the files are those of this worker."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perdure.agents import skills
from perdure.agents.tool import Tool
from perdure.contracts.agents import Skill


def skill_tool(frozen: Sequence[Skill], here: Sequence[Skill]) -> Tool[..., Any]:
    """The tool over the skills that the turn began with; ``here`` are those that this worker has read itself."""

    def read(name: str) -> str:
        one = skills.resolved(name, frozen)
        own = next((other for other in here if other.id == one.id), None)
        folder = own.folder if own is not None and Path(own.folder).is_dir() else ""
        return skills.rendered(one, folder=folder, note=_note(one, own, folder))

    return replace(skills.skill, function=read)


def _note(one: Skill, own: Skill | None, folder: str) -> str:
    """What the model must know before it uses the skill's files."""
    if one.files and not folder:
        return "the worker that runs this call does not have the folder of the skill; its files cannot be read here."
    missing = [name for name in one.files if not (Path(folder) / name).is_file()]
    if missing:
        return f"the worker that runs this call lacks these files: {', '.join(missing)}."
    if folder and own is not None and own.model_dump() != one.model_dump():
        return "the folder on the worker that runs this call holds another version of the skill."
    return ""
