"""The last lines of a server's standard error in the text of a failure: which, how long, and what is left of them."""

RECENT_LINES = 50
"""Lines of standard error that a failure has. Source: Dreadnode's MCP client."""

LONGEST_RECENT_LINE = 160
"""More of such a line stands in the log only."""

ENDS_WITH = "; its standard error ends with: "
"""What stands before them."""


def shortened(text: str, limit: int) -> str:
    """A failure's text within a limit: of its last lines as many of the newest as fit whole."""
    head, mark, lines = text.partition(ENDS_WITH)
    room = limit - len(head) - len(mark)
    if len(text) <= limit or not lines or room <= 0:
        return text[:limit]
    fitting = lines[-room:]
    return head + mark + (fitting.partition("\n")[2] or fitting)


def in_full(text: str, limit: int) -> str:
    """A failure's text with all its last lines; the limit is for what stands before them."""
    head, mark, lines = text.partition(ENDS_WITH)
    return head[:limit] + mark + lines[-RECENT_LINES * (LONGEST_RECENT_LINE + 1) :]


def last_lines(text: str) -> list[str]:
    """The last lines in a failure's text."""
    return text.partition(ENDS_WITH)[2].splitlines()
