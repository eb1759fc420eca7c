"""``SKILL.md`` files that keep the rules, and some that break each of them."""

from pathlib import Path

from perdure.skills import MAX_BYTES

LONG_NAME = "n" * 64


def write(folder: Path, content: str | bytes) -> None:
    """Make a skill's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_bytes(content.encode() if isinstance(content, str) else content)


def front(*lines: str, name: str = "review", description: str = "Reviews code.", body: str = "# Body") -> str:
    """A file with these lines of front matter, from its fourth line on."""
    return "\n".join(["---", f"name: {name}", f"description: {description}", *lines, "---", body, ""])


PLAIN: dict[str, object] = {"name": "review", "description": "Reviews code.", "body": "# Body"}
EMPTY: dict[str, object] = {
    "allowed_tools": (),
    "license": None,
    "compatibility": None,
    "metadata": {},
    "files": (),
    "capability": "",
}

TAKEN: dict[str, tuple[str | bytes, dict[str, object]]] = {
    "no more than is required": (front(), {**PLAIN, **EMPTY}),
    "no body": (front(body=""), {"body": ""}),
    "no line end at the end": ("---\nname: review\ndescription: d\n---", {"body": ""}),
    "a line across in the body": (front(body="a\n---\nb"), {"body": "a\n---\nb"}),
    "a byte order mark": (b"\xef\xbb\xbf" + front().encode(), PLAIN),
    "line ends of Windows": (front(body="a\nb").replace("\n", "\r\n"), {**PLAIN, "body": "a\nb"}),
    "spaces after the dashes": (front().replace("---", "---  "), PLAIN),
    "a description of 1,024 characters": (front(description="é" * 1024), {"description": "é" * 1024}),
    "a description over several lines": (front(description=">\n  One\n  two."), {"description": "One two."}),
    "a description that looks like a number": (front(description="2024-01-01"), {"description": "2024-01-01"}),
    "tools as text": (
        front("allowed-tools: Read, Bash(git add:*) grep"),
        {"allowed_tools": ("Read", "Bash(git add:*)", "grep")},
    ),
    "tools as a list": (
        front("allowed-tools: [Read, Bash(git add:*)]"),
        {"allowed_tools": ("Read", "Bash(git add:*)")},
    ),
    "nothing after a name": (front("allowed-tools:", "license:", "compatibility:", "metadata:"), EMPTY),
    "a licence": (front("license: Apache-2.0"), {"license": "Apache-2.0"}),
    "a compatibility of 500 characters": (front(f"compatibility: {'c' * 500}"), {"compatibility": "c" * 500}),
    "metadata, as it is written": (
        front("metadata:", "  version: 1.10", "  'on': yes"),
        {"metadata": {"version": "1.10", "on": "yes"}},
    ),
    "64 KB": ((front() + "x" * (MAX_BYTES - len(front()))), {"name": "review"}),
}

REFUSED: dict[str, tuple[str | bytes, int, str]] = {
    "an empty file": ("", 1, "the first line must be '---'"),
    "no front matter": ("# Review\n", 1, "the first line must be '---'"),
    "front matter that begins late": ("\n" + front(), 1, "the first line must be '---'"),
    "front matter that is not closed": ("---\nname: review\ndescription: d\n# Body", 1, "is not closed"),
    "no YAML": (front("license: [a"), 4, "the front matter is no YAML: "),
    "a colon in a plain text": (front(description="Use: this"), 3, "no YAML: mapping values are not allowed here"),
    "a control character": (front("license: \x07"), 4, "no YAML: special characters are not allowed"),
    "a list": ("---\n- name: review\n---\n", 2, "must be lines of the form 'name: …'"),
    "a text": ("---\nreview\n---\n", 2, "must be lines of the form 'name: …'"),
    "nothing between the lines": ("---\n---\n", 2, "must be lines of the form 'name: …'"),
    "a name that is a list": (front("[a]: b"), 4, "must be lines of the form 'name: …'"),
    "one thing twice": (front("name: review"), 4, "name stands there twice"),
    "deep nesting": (front(f"metadata: {'[' * 5000}"), 2, "nested too deeply"),
    "no name": ("---\ndescription: d\n---\n", 1, "name is missing; write 'name: …'"),
    "an empty name": (front(name=""), 2, "name is missing"),
    "a name that is no text": (front(name="[review]"), 2, "name: write one text"),
    "another name than the folder's": (front(name="other"), 2, "'other' must be the name of its folder, 'review'"),
    "no description": ("---\nname: review\n---\n", 1, "description is missing"),
    "an empty description": (front(description="'  '"), 3, "description is missing"),
    "a description of 1,025 characters": (front(description="d" * 1025), 3, "it has 1,025 characters, 1,024 are"),
    "half a character": (front(description='"\\ud800"'), 3, "it holds what is no character"),
    "tools that are neither text nor list": (front("allowed-tools: {a: b}"), 4, "allowed-tools: write names with"),
    "a list in the list of tools": (front("allowed-tools:", "  - a", "  - [b]"), 6, "allowed-tools: write names"),
    "a licence that is no text": (front("license: [MIT]"), 4, "license: write one text"),
    "a compatibility of 501 characters": (front(f"compatibility: {'c' * 501}"), 4, "it has 501 characters, 1 to 500"),
    "an empty compatibility": (front("compatibility: ''"), 4, "it has 0 characters, 1 to 500"),
    "metadata that is text": (front("metadata: 1.0"), 4, "metadata: write lines of the form 'name: text'"),
    "metadata within metadata": (front("metadata:", "  a: {b: c}"), 5, "metadata: write lines of the form"),
    "metadata that holds itself": (front("metadata: &a", "  b: *a"), 4, "metadata: write lines of the form"),
    "more than 64 KB": (front() + "x" * MAX_BYTES, 0, "it is longer than 65,536 bytes"),
    "another encoding": (front(body="Grüße").encode("latin-1"), 5, "it is not UTF-8; save it as UTF-8"),
    "a NUL in the body": (front(body="a\n\0"), 6, "it holds a NUL character"),
}
