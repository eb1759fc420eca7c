"""Which regular expressions a stop condition may search with: decided from their text, alike wherever they are read.

They are searched with the library ``regex``, which can be stopped. It writes counted repeats out in memory, which a
request must not fill, and reads more into braces than Python's ``re``: what the two take differently is refused.
"""

import re

MAX_PARTS = 2_000
"""Most parts of an expression with its counted repeats written out: compiling it takes two megabytes then."""

MAX_NESTING = 50
"""Most brackets within one another."""

_TOKEN = re.compile(
    r"""
    \\N\{[^{}]*\} | \\.
    | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<remark>\(\?[a-zA-Z-]*[x#])
    | (?P<open>\()
    | (?P<close>\))
    | (?P<count>\{(?:(?P<least>[0-9]+)(?:,[0-9]*)?|,[0-9]*)\})
    | (?P<brace>\{)
    | .
    """,
    re.DOTALL | re.VERBOSE,
)


def check_expression(pattern: str) -> None:
    """Look at an expression before anything compiles it.

    Raises:
        ValueError: It cannot be searched for; the message is one line.
    """
    why = _refusal(pattern)
    if why is None:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            why = f"is no regular expression: {error}"
    if why is not None:
        msg = f"pattern {pattern!r} {why}"
        raise ValueError(msg)


def _refusal(pattern: str) -> str | None:
    sizes, last = [0], 0  # of the brackets that are open, the whole first; of the part that a count would repeat
    for token in _TOKEN.finditer(pattern):
        why = _difference(token)
        if why is not None:
            return why
        if token.lastgroup == "open":
            sizes.append(0)
            if len(sizes) > MAX_NESTING + 1:
                return f"has more than {MAX_NESTING} brackets within one another"
            continue
        if token.lastgroup == "count":
            added = last * max(0, int(token["least"] or 0) - 1)
            last += added
        else:
            added = last = sizes.pop() + 1 if token.lastgroup == "close" and len(sizes) > 1 else 1
        sizes[-1] += added
        if sizes[-1] > MAX_PARTS:
            return f"has repeats {{…}} that come to more than {MAX_PARTS:,} parts; use smaller counts, or + or *"
    return None


def _difference(token: re.Match[str]) -> str | None:
    """Why both libraries would not take it alike."""
    if token.lastgroup == "brace":
        return r"has a { that begins no count such as {2} or {1,3}; write \{"
    if token.lastgroup == "remark":
        return "has (?x) or (?#…), which are not taken; leave spaces and comments out"
    if token.lastgroup == "set" and "[:" in re.sub(r"\\.", "", token["set"])[1:]:
        return "has [: within […]; write the characters in place of a class of that name, such as [a-z]"
    return None
