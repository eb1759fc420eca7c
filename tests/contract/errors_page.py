"""The page ``docs/errors.md``, and how it is written: ``make schemas``. Every row of the tables is on it."""

from collections.abc import Iterable, Iterator

from perdure.contracts.errors import REASONS, Reason, ReasonCode
from perdure.llm.failures import ROWS, Evidence, Row
from tests.contract.repository import ROOT
from tests.contract.wire_faults import WIRE_FAULTS, WireFault

PAGE = ROOT / "docs/errors.md"

INTRODUCTION = """\
# Failures and their reason codes

<!-- Made by `make schemas` from perdure/contracts/errors.py and perdure/llm/failures.py. -->

Every failure has a reason code: the failure type in Temporal, `reason_code` in results, a label in metrics. `perdure
errors` lists them, `perdure errors CODE` shows one in full, `perdure errors --faults` the rows by which a code is
found; with `--json` one a line.

*Retried* means that the same call may succeed later: it is sent again by the agent's retry policy (`llm.*`) or by
Temporal (`runtime.*`, `webhook.*`). All else is final. Beside these codes there are

- `llm.*` codes of an agent's own: a model provider in its module raises `perdure.ModelError("llm.moderated", "no")`, or
  any exception with an attribute `reason_code` of that form. It is final, unless it has a true attribute `transient`;
- `exception.<Class>`: an exception class that the table does not list: a bug in perdure or in an agent's module. Read
  the traceback in the worker's log. Temporal retries the activity, so a fixed worker goes on with the turn.
"""

FAULTS = """\
## How the code of a failed model call is found

The first table below that has a row decides; an exception with a `reason_code` of its own comes before all of them.
"""

WIRES = """\
## Faults on the two wires

What becomes of a fault on an OpenAI-style and on an Anthropic-style wire: the class that is raised, with the status of
the reply, and the code.
"""

HEADINGS = {
    Evidence.NAME: "Classes that are raised for one reason only, whatever the status they wear.",
    Evidence.CODE: "The provider's own code or type in the error object, whatever the case, behind a status that "
    "several kinds of refusals share (*none*: an error without a status), and where it was read: a page, an issue of "
    "GitHub, or a repository that has it. *Unknown model* is what a fallback goes by.",
    Evidence.WORDS: "What the provider writes, behind such a status, when it has no code for the failure or too wide "
    "a one.",
    Evidence.STATUS: "The HTTP status of the reply, and what litellm raises for it on each wire.",
    Evidence.CAUSE: "The cause chain of a call that got no reply, the outermost first. *Not sent* means that the "
    "provider cannot have carried the call out, so that `ambiguous='fail'` sends it again.",
    Evidence.CLASS: "The class that was raised, or the nearest of its bases.",
    Evidence.MESSAGE: "Words of the message.",
}


def page() -> str:
    """The text of the page."""
    used = {code: reason for code, reason in REASONS.items() if not reason.reserved}
    reserved = {code: reason for code, reason in REASONS.items() if reason.reserved}
    return "\n".join(
        [
            INTRODUCTION,
            "## The codes\n",
            *_codes(used),
            "\n## Reserved codes\n\nNothing raises them yet.\n",
            *_codes(reserved),
            "",
            FAULTS,
            *(line for seen in HEADINGS for line in (f"### By {seen}\n", HEADINGS[seen], "", *_rows(seen), "")),
            f"### By anything else\n\n`{next(row.code for row in ROWS if row.seen is Evidence.NONE)}`\n",
            WIRES,
            *_table(("fault", "OpenAI-style", "Anthropic-style"), map(_wire_fault, WIRE_FAULTS)),
            "",
        ]
    )


def _codes(reasons: dict[ReasonCode, Reason]) -> Iterator[str]:
    lines = (
        (f"`{code}`", "retried" if reason.transient else "final", reason.text, reason.model, reason.retry_after)
        for code, reason in sorted(reasons.items(), key=lambda row: row[0].split("."))
    )
    return _table(("code", "", "an operator reads", "the model reads", "retry-after"), lines)


def _rows(seen: Evidence) -> Iterator[str]:
    rows = [row for row in ROWS if row.seen is seen]
    if seen is Evidence.STATUS:
        wires = ((row.match, f"`{row.code}`", row.openai, row.anthropic) for row in rows)
        return _table(("status", "code", "OpenAI-style", "Anthropic-style"), wires)
    if seen is Evidence.CODE:
        codes = ((f"`{row.match}`", _code_of(row), _statuses(row), row.source) for row in rows)
        return _table(("code in the reply", "code", "behind", "read in"), codes)
    if seen is Evidence.WORDS:
        words = ((f"`{row.match}`", _code_of(row), _statuses(row), row.example, row.source) for row in rows)
        return _table(("words", "code", "behind", "example", "read in"), words)
    if seen is Evidence.MESSAGE:
        messages = ((f"`{row.match}`", f"`{row.code}`", row.example) for row in rows)
        return _table(("words", "code", "example"), messages)
    sent = ((f"`{row.match}`", f"`{row.code}`", "not sent" if row.never_sent else "") for row in rows)
    return _table(("class", "code", ""), sent)


def _code_of(row: Row) -> str:
    return f"`{row.code}`, unknown model" if row.kind else f"`{row.code}`"


def _wire_fault(row: WireFault) -> tuple[str, str, str]:
    openai, anthropic = f"{row.openai}, `{row.code}`", f"{row.anthropic}, `{row.anthropic_code or row.code}`"
    return row.fault, openai, anthropic


def _statuses(row: Row) -> str:
    known = sorted(status for status in row.statuses if status is not None)
    return ", ".join([*map(str, known), *(["none"] if None in row.statuses else [])])


def _table(heads: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for line in lines:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
