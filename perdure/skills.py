"""Skills and instructions read from folders, where an author defines an agent.

What is read becomes part of the agent's definition, so a turn keeps it even if the folder changes or another worker
goes on. The files follow the public Agent Skills specification.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar, get_args

import yaml

from perdure.agents.agent import AgentDefinitionError
from perdure.contracts.agents import Skill
from perdure.yaml_nodes import YamlError, compose

__all__ = ["MAX_BYTES", "OnInvalid", "Skill", "instructions_in", "skills_in"]

MAX_BYTES = 64 * 1024
"""Largest file in bytes that becomes part of a definition. Longer texts belong into further files of the skill."""

MAX_FILES = 10
"""Most further files of a skill that the model is told of."""

MAX_DESCRIPTION = 1024
"""Characters; of the specification."""

MAX_COMPATIBILITY = 500
"""Characters; of the specification."""

T = TypeVar("T")

OnInvalid = Literal["refuse", "skip", "accept"]
"""The treatment of a file that breaks a rule."""

_SKILL = "SKILL.md"
_NAME = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_NAME_RULE = "1 to 64 lower-case letters, digits and single hyphens, no hyphen at the ends"
_TOOL = re.compile(r"[^\s,()]+(?:\([^)]*\))?")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_FIELDS = frozenset({"name", "description", "allowed-tools", "license", "compatibility", "metadata"})
_NULL = "tag:yaml.org,2002:null"

logger = logging.getLogger(__name__)


class _InvalidFileError(Exception):
    """A file cannot be used; the message says where and why."""

    def __init__(self, file: Path, line: int, cause: str) -> None:
        super().__init__(f"{file}:{line}: {cause}" if line else f"{file}: {cause}")


def skills_in(folder: str | Path, *, capability: str = "", on_invalid: OnInvalid = "refuse") -> tuple[Skill, ...]:
    """The skills of a folder: the folder itself if it holds a ``SKILL.md``, otherwise its subfolders that do.

    Args:
        folder: An absolute path, such as ``Path(__file__).parent / "skills"``.
        capability: The capability that the skills are part of; their id is then ``capability:name``.
        on_invalid: ``refuse`` refuses the agent; ``skip`` logs a skill that cannot be used and goes on without it;
            ``accept`` logs a rule that is broken, and takes whatever can be read.

    Raises:
        AgentDefinitionError: The folder holds no skill, or one that cannot be used; the message names file, line and
            cause.
    """
    if on_invalid not in get_args(OnInvalid):
        msg = f"on_invalid={on_invalid!r} is none of {', '.join(get_args(OnInvalid))}"
        raise AgentDefinitionError(msg)
    if capability and not _NAME.fullmatch(capability):
        msg = f"capability={capability!r}: write {_NAME_RULE}"
        raise AgentDefinitionError(msg)
    lenient = on_invalid == "accept"
    return tuple(
        _read_each(
            _absolute(folder), _SKILL, lambda path: _SkillFile(path, lenient=lenient).skill(capability), on_invalid
        )
    )


def instructions_in(folder: str | Path, *, on_invalid: Literal["refuse", "skip"] = "refuse") -> str:
    """The text of ``instructions.md`` in a folder and in its subfolders, in the order of their names.

    Front matter is left out.

    Args:
        folder: An absolute path, such as ``Path(__file__).parent``.
        on_invalid: ``refuse`` refuses the agent; ``skip`` logs a file that cannot be used and goes on without it.

    Raises:
        AgentDefinitionError: There is no such file, or one that cannot be used; the message names file and cause.
    """
    file = "instructions.md"
    texts = _read_each(
        _absolute(folder), file, lambda path: _without_front_matter(_read(path, file)).strip(), on_invalid
    )
    return "\n\n".join(text for text in texts if text)


def _read_each(place: Path, file: str, read: Callable[[Path], T], on_invalid: OnInvalid) -> Iterator[T]:
    """Read the file in the folder and in each subfolder that has it; invalid ones are skipped or refused."""
    places = _find_folders(place, file, on_invalid)
    for folder in places:
        try:
            yield read(folder)
        except _InvalidFileError as error:
            _refuse_or_log(str(error), on_invalid)


def _refuse_or_log(message: str, on_invalid: OnInvalid) -> None:
    if on_invalid != "skip":
        raise AgentDefinitionError(message)
    logger.warning("left out: %s", message)


def _absolute(folder: str | Path) -> Path:
    place = Path(folder)
    if not place.is_absolute():
        msg = (
            f"the folder {str(folder)!r} would be {str(Path.cwd() / place)!r} in this process and another one in the "
            f"next; write Path(__file__).parent / {str(folder)!r}"
        )
        raise AgentDefinitionError(msg)
    return place


def _find_folders(place: Path, file: str, on_invalid: OnInvalid) -> list[Path]:
    """The folder and its subfolders that hold the file, even as a dangling link."""
    try:
        below = sorted(entry for entry in place.iterdir() if entry.is_dir())
    except OSError as error:
        _refuse_or_log(f"the folder {str(place)!r} cannot be read: {error.strerror}", on_invalid)
        return []
    if file == _SKILL and os.path.lexists(place / file):  # subfolders then belong to this skill
        return [place]
    places = [candidate for candidate in (place, *below) if os.path.lexists(candidate / file)]
    if not places:
        _refuse_or_log(f"there is no {file} in {str(place)!r}, nor in a subfolder of it", on_invalid)
    return places


def _read(folder: Path, name: str) -> str:
    """The text of a file in the folder, with Unix line ends; a link out of the folder is refused."""
    file = folder / name
    try:
        if not file.resolve(strict=True).is_relative_to(folder.resolve(strict=True)):
            raise _InvalidFileError(file, 0, "it is a link that leads out of its folder; put the file itself there")
        if not file.is_file():
            raise _InvalidFileError(file, 0, "it is no file")
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before Python 3.13
        cause = getattr(error, "strerror", None) or str(error)
        raise _InvalidFileError(file, 0, f"it cannot be read: {cause}") from error
    if len(data) > MAX_BYTES:
        raise _InvalidFileError(file, 0, f"it is longer than {MAX_BYTES:,} bytes; move details into further files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _InvalidFileError(file, line, "it is not UTF-8; save it as UTF-8") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (odd := _NOT_TEXT.search(text)) is not None:
        raise _InvalidFileError(file, text.count("\n", 0, odd.start()) + 1, "it holds a NUL character")
    return text


def _split(text: str) -> tuple[str, str] | None:
    """Split a text into front matter and the rest; None if the front matter is not closed."""
    lines = text.split("\n")
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :])
    return None


def _without_front_matter(text: str) -> str:
    """The text after the front matter. A page that begins with a horizontal rule (``---``) has none."""
    parts = _split(text) if text.partition("\n")[0].rstrip() == "---" else None
    if parts is None:
        return text
    try:
        is_front_matter = isinstance(compose(parts[0]), yaml.MappingNode)
    except YamlError:
        return text
    return parts[1] if is_front_matter else text


class _SkillFile:
    """One ``SKILL.md``. Front matter is taken as it is written: a version ``1.10`` is text, not a number."""

    def __init__(self, folder: Path, *, lenient: bool) -> None:
        self._folder = folder
        self._lenient = lenient
        self._file = folder / _SKILL
        text = _read(folder, _SKILL)
        if text.partition("\n")[0].rstrip() != "---":
            raise self._invalid(1, "the first line must be '---', followed by name, description and another '---'")
        parts = _split(text)
        if parts is None:
            raise self._invalid(1, "the front matter is not closed; write a line '---' below it")
        self._lines: dict[str, int] = {}
        self._fields = dict(self._parse(parts[0]))
        self._body = parts[1].strip()

    def skill(self, capability: str) -> Skill:
        """The skill, checked against the rules."""
        if unknown := sorted(self._fields.keys() - _FIELDS):
            logger.info("%s: not used: %s", self._file, ", ".join(unknown))
        name, description, compatibility = self._require("name"), self._require("description"), self._compatibility()
        if not _NAME.fullmatch(name):
            self._rule("name", f"{name!r} is no name of a skill: {_NAME_RULE}")
        elif name != self._folder.name:
            self._rule("name", f"{name!r} must be the name of its folder, {self._folder.name!r}; rename one of them")
        if len(description) > MAX_DESCRIPTION:
            self._rule("description", f"it has {len(description):,} characters, {MAX_DESCRIPTION:,} are allowed")
        return Skill(
            name=name,
            capability=capability,
            description=description,
            body=self._body,
            allowed_tools=self._allowed_tools(),
            license=self._text("license"),
            compatibility=compatibility,
            metadata=self._metadata(),
            files=tuple(_find_files(self._folder)),
            folder=str(self._folder),
        )

    def _invalid(self, line: int, cause: str) -> _InvalidFileError:
        return _InvalidFileError(self._file, line, cause)

    def _refuse(self, key: str, cause: str) -> _InvalidFileError:
        return self._invalid(self._lines[key], f"{key}: {cause}")

    def _rule(self, key: str, cause: str) -> None:
        """Refuse a broken rule, or in lenient mode log it: the value can be read all the same."""
        if not self._lenient:
            raise self._refuse(key, cause)
        logger.warning("accepted: %s", self._refuse(key, cause))

    def _parse(self, front: str) -> Iterator[tuple[str, yaml.Node]]:
        try:
            root = compose(front)
        except YamlError as error:
            raise self._invalid(error.line + 1, f"the front matter is no YAML: {error.cause}") from error
        if not isinstance(root, yaml.MappingNode):
            raise self._invalid(2, "the front matter must be lines of the form 'name: …'")
        for key, value in root.value:
            line = key.start_mark.line + 2
            if not isinstance(key, yaml.ScalarNode):
                raise self._invalid(line, "the front matter must be lines of the form 'name: …'")
            if key.value in self._lines:
                raise self._invalid(line, f"{key.value} stands there twice; leave one of them out")
            self._lines[key.value] = line
            if value.tag != _NULL:
                yield key.value, value

    def _scalar(self, key: str, node: yaml.Node, wanted: str) -> str:
        line = node.start_mark.line + 2
        if not isinstance(node, yaml.ScalarNode):
            raise self._invalid(line, f"{key}: write {wanted}")
        value = str(node.value)
        if _NOT_TEXT.search(value):
            raise self._invalid(line, f"{key}: it holds what is no character of a text (NUL, or half of one)")
        return value.strip()

    def _text(self, key: str) -> str | None:
        node = self._fields.get(key)
        return None if node is None else self._scalar(key, node, "one text")

    def _require(self, key: str) -> str:
        value = self._text(key)
        if value:
            return value
        raise self._invalid(self._lines.get(key, 1), f"{key} is missing; write '{key}: …' into the front matter")

    def _compatibility(self) -> str | None:
        value = self._text("compatibility")
        if value is not None and not 1 <= len(value) <= MAX_COMPATIBILITY:
            self._rule("compatibility", f"it has {len(value):,} characters, 1 to {MAX_COMPATIBILITY} are allowed")
        return value

    def _allowed_tools(self) -> tuple[str, ...]:
        key, wanted = "allowed-tools", "names with spaces between them, or a list"
        node = self._fields.get(key)
        if node is None:
            return ()
        if isinstance(node, yaml.SequenceNode):
            return tuple(name for item in node.value if (name := self._scalar(key, item, wanted)))
        return tuple(_TOOL.findall(self._scalar(key, node, wanted)))

    def _metadata(self) -> dict[str, str]:
        key, wanted = "metadata", "lines of the form 'name: text'"
        node = self._fields.get(key)
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self._refuse(key, f"write {wanted}")
        return {self._scalar(key, name, wanted): self._scalar(key, value, wanted) for name, value in node.value}


def _find_files(folder: Path) -> Iterator[str]:
    """The first files of a skill beside ``SKILL.md``, without hidden ones and links out of the folder."""
    count, inside = 0, folder.resolve()
    for at, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name.isprintable() and not name.startswith((".", "__")))
        for name in sorted(names):
            file = Path(at) / name
            relative = file.relative_to(folder).as_posix()
            if relative == _SKILL or name.startswith(".") or not name.isprintable():
                continue
            if file.is_file() and file.resolve().is_relative_to(inside):
                yield relative
                count += 1
            if count == MAX_FILES:
                return
