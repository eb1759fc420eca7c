"""The sections of the pages of docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def section(name: str, title: str) -> str:
    """The text of a page from a heading of the second level to the next one."""
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    (text,) = found
    return text
