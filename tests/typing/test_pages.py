"""Every Python block of README and docs passes mypy and basedpyright, strict, as a reader would paste it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.repository import ROOT
from tests.typing.pages import module_of, pages

WRONG = (
    'A page.\n\n```python\nfrom perdure import Agent\n\nagent = Agent(nam="x")\n```\n\n<!-- python\nx: int = "y"\n-->\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    for page in pages():
        if code := module_of((ROOT / page).read_text(encoding="utf-8")):
            write(made, str(page), code)
    write(made, "wrong.md", module_of(WRONG))
    settings: dict[str, object] = {
        "extends": str(ROOT / "pyproject.toml"),
        "include": ["."],
        "executionEnvironments": [{"root": "."}],
    }
    settings["reportDuplicateImport"] = False  # blocks name again what they use
    (made / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    return made


def write(folder: Path, page: str, code: str) -> None:
    name = page.removesuffix(".md").replace("/", "__").replace("-", "_")
    (folder / f"page_{name}.py").write_text(code + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "checker",
    [
        [
            "mypy",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--no-error-summary",
            "--hide-error-context",
            "--cache-dir",
            str(ROOT / ".mypy_cache"),
        ],
        ["basedpyright", "--pythonpath", sys.executable, "-p", "."],
    ],
    ids=["mypy", "basedpyright"],
)
def test_every_block_passes_and_a_wrong_one_is_found_at_its_line(folder: Path, checker: list[str]) -> None:
    files = sorted(path.name for path in folder.glob("page_*.py")) if checker[0] == "mypy" else []
    done = subprocess.run(
        [str(Path(sys.executable).with_name(checker[0])), *checker[1:], *files],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    found = [line for line in done.stdout.splitlines() if " error: " in line]
    assert [line for line in found if "page_wrong.py" not in line] == [], done.stdout
    assert {line.partition("page_wrong.py:")[2].partition(":")[0] for line in found} == {"6", "10"}, done.stdout


def test_a_page_that_awaits_is_the_body_of_a_function() -> None:
    code = module_of("A page.\n\n```python\nvalue = await work()\n```\n")
    assert code.splitlines()[2:4] == ["async def page() -> None:", "    value = await work()"]
