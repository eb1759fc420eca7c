"""What the scripted model answers. It reads the tools' real results, as a model would, to write its report."""

import json

from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, call, faults, say

FOLDER = "perdure/engine"


def answer(request: ChatRequest) -> Reply:
    """The answer to a request, from the request alone: sent again, it gets the same one."""
    match request.index:
        case 0:
            return call(
                ("list_files", {"folder": FOLDER}),
                ("count_lines", {"path": "README.md"}),
                text="First an overview: two calls at once.",
            )
        case 1:
            reply = call(("read_file", {"path": "docs/no-such-page.md"}), text="Now a page that may explain it.")
            return reply.after(faults.status(429, headers={"retry-after": "2"}, body=_RATE_LIMIT))
        case 2:
            reply = call(
                ("count_matches", {"text": "def ", "folder": FOLDER}),
                text="There is no such page; I look at the code instead.",
            )
            return reply.after(faults.hang())  # the worker is killed here, and another one asks again
        case 3:
            return call(("write_report", {"text": report(request)}), text="I write down what I found.")
        case _:
            count = len(_modules(request))
            return say(f"{FOLDER} has {count} modules; the report is in {_results(request)[-1]}.")


_RATE_LIMIT: JsonValue = {
    "error": {"message": "Rate limit reached, please slow down", "type": "requests", "code": "rate_limit"}
}


def report(request: ChatRequest) -> str:
    """A report made of what the tools returned."""
    lines = _results(request)[1]
    functions: dict[str, int] = json.loads(_results(request)[3])
    rows = [f"- {name}: {functions.get(name, 0)} functions" for name in _modules(request)]
    return "\n".join([f"# {FOLDER}", "", *rows, "", f"README.md has {lines} lines.", ""])


def _modules(request: ChatRequest) -> list[str]:
    return [name for name in _list(request, 0) if name.endswith(".py")]


def _results(request: ChatRequest) -> list[str]:
    return [str(message["content"]) for message in request.messages if message["role"] == "tool"]


def _list(request: ChatRequest, index: int) -> list[str]:
    found: list[str] = json.loads(_results(request)[index])
    return found
