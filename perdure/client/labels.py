"""What a started workflow says of itself in the Temporal UI; it can be read when no worker is there to be asked.

No word of the prompt stands in it: the UI has these texts rendered by a URL that holds them, and URLs end up in the
access logs of whatever stands before it. The prompt is in the workflow's input, on the same page.
"""

from perdure.contracts.turns import TurnRequest

SUMMARY_CHARACTERS = 90
"""Longest summary: the server's limit is 400 bytes with what it is wrapped in, and a character may have four."""


def summary(request: TurnRequest) -> str | None:
    """The agent, and what this turn has of its own: model and limits. None if the request names nothing of it."""
    parts = [request.agent, request.model]
    if request.resume_from is not None:
        parts.append(f"from {request.resume_from}")
    if request.max_steps is not None:
        parts.append(f"at most {request.max_steps} steps")
    if request.budgets is not None and request.budgets.cost_usd is not None:
        parts.append(f"at most ${request.budgets.cost_usd}")
    return " · ".join(part for part in parts if part)[:SUMMARY_CHARACTERS] or None


def details(session: str) -> str:
    """Where to look, as Markdown."""
    return "\n".join(
        (
            "- why it ended: **Result** (`stop_reason`, `reason_code`, `error`)",
            "- what it waits for or retries: **Pending Activities**",
            "- no **Current Details** beside this: no worker answers",
            f"- what was said and done: `perdure show {session}`, live `perdure follow {session}`",
        )
    )
