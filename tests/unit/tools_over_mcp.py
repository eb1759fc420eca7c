"""An MCP server of tools, as a user writes one: run by the tests as a child process."""

from perdure import File, Image, tool
from perdure.mcp_server import as_mcp


@tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    print("not a word of the protocol")  # noqa: T201
    return len(text.split())


@tool
async def leave() -> str:
    """End the process."""
    raise SystemExit(3)


@tool
def plot() -> list[object]:
    """Draw a picture of a table, and give both."""
    return ["here:", Image(b"\x89PNG"), File("my table.csv", "a,b", "text/csv"), File("raw", b"\xff")]


@tool
def nested(depth: int) -> object:
    """Lists in lists."""
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


if __name__ == "__main__":
    as_mcp(word_count, leave, plot, nested, shout, name="words").run()
