"""The files that ``perdure dev --reload`` watches."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from perdure.cli.errors import MistakeError

IGNORED = (".perdure", "venv", "site-packages", "build", "dist")
"""Folders that are not looked into, beside those that watchfiles leaves out: ``.git``, ``.venv``, ``__pycache__`` …"""


@dataclass(frozen=True)
class WatchedFiles:
    """Files that are watched.

    Attributes:
        folders: With all folders below them.
        data: Files with agents in YAML or JSON; tools may write others of their kind at any time.
    """

    folders: tuple[Path, ...]
    data: frozenset[Path]

    @classmethod
    def of(cls, sources: Iterable[str]) -> "WatchedFiles":
        """The files of these modules and files with agents."""
        if find_spec("watchfiles") is None:
            raise MistakeError("--reload needs watchfiles, which is not installed; pip install 'perdure[worker]'")
        here = Path.cwd()
        files = [Path(source).resolve() for source in sources if Path(source).suffix]
        beside = {file.parent for file in files if file.is_file() and not file.is_relative_to(here)}
        return cls((here, *sorted(beside)), frozenset(file for file in files if file.suffix != ".py"))

    def is_one(self, path: Path) -> bool:
        """Whether the worker has to start anew when this file is saved."""
        return path.suffix == ".py" or path.name == "SKILL.md" or path in self.data

    async def watch(self) -> AsyncIterator[list[str]]:
        """The names of files that were saved, made or removed, each time some were.

        Raises:
            OSError: The system cannot watch so many.
        """
        # Loaded for --reload alone.
        from watchfiles import Change, DefaultFilter, awatch  # noqa: PLC0415 # pyright: ignore[reportUnknownVariableType]

        known = DefaultFilter(ignore_dirs=(*DefaultFilter.ignore_dirs, *IGNORED))

        def wanted(change: Change, path: str) -> bool:
            return known(change, path) and self.is_one(Path(path))

        async for changes in awatch(*self.folders, watch_filter=wanted):
            yield sorted({Path(path).name for _, path in changes})
