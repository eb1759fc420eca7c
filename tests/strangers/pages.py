"""The page of frameworks: the lines for each, and its table of cases."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text(encoding="utf-8")

NAMES = {
    "openai_python.py": "OpenAI's client, Python",
    "openai_js.mjs": "OpenAI's client, JavaScript",
    "openai_agents.py": "openai-agents, Python",
    "openai_agents_js.mjs": "openai-agents, JavaScript",
    "langchain_responses.py": "LangChain, Python",
    "langchain_js.mjs": "LangChain, JavaScript",
    "pydantic_ai_responses.py": "pydantic-ai",
    "ai_sdk.mjs": "Vercel's AI SDK",
    "litellm_responses.py": "litellm",
}
"""The page's name of each program's framework."""

CASES = {
    "chat": "chat",
    "function": "function",
    "two functions": "two_functions",
    "approval": "approval",
    "typed answer": "structured",
    "stream": "stream",
    "cut": "cut",
    "restart": "restart",
    "unknown model": "unknown_model",
}
"""The case of each column of its table."""


def lines_for(program: str) -> str:
    """The lines that the page has for a program's framework."""
    section = PAGE.partition(f"## {NAMES[program]}\n")[2].partition("\n## ")[0]
    (lines,) = re.findall(r"```(?:py|js)\n(.*?)```", section, re.DOTALL)
    return str(lines)


def notes() -> dict[str, str]:
    """What the letters in the table's cells stand for, each in one paragraph."""
    found = re.findall(r"^- \*\*([a-z])\*\* (.*?)(?=\n- |\n\n)", PAGE, re.DOTALL | re.MULTILINE)
    return {letter: re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(text.split())) for letter, text in found}


def table() -> dict[str, dict[str, str]]:
    """The cells of the table, by program and case."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
    head, *body = [row for row in rows if not row[0].startswith("-")]
    programs = {name: program for program, name in NAMES.items()}
    return {programs[row[0]]: {CASES[name]: cell for name, cell in zip(head[1:], row[1:], strict=True)} for row in body}
