"""The page ``docs/errors.md``, and how it is written: ``make schemas``. Every row of the tables is on it."""

import itertools
import string
from collections.abc import Iterable, Iterator

from perdure.contracts.errors import CORRECTED, NOTHING, REASONS, RESULT, TOLD, Reason, ReasonCode
from perdure.llm.failures import ROWS, Evidence, Row
from tests.contract.repository import ROOT
from tests.contract.wire_faults import WIRE_FAULTS, WireFault

PAGE = ROOT / "docs/errors.md"
LONG = 3

INTRODUCTION = """\
# Failures and their reason codes

<!-- Made by `make schemas` from perdure/contracts/errors.py and perdure/llm/failures.py. -->

Every failure has a reason code: the failure type in Temporal, `reason_code` in results, a label in metrics. `perdure
errors CODE` explains one, `perdure errors --faults` has the rows by which a code is found.

The agent's retry policy (`llm.*`) or Temporal (`runtime.*`, `webhook.*`) sends a *retried* call again; all else is
final. Beside these codes there are

- `llm.*` codes of an agent's own: a model provider in its module raises `perdure.ModelError("llm.moderated", "no")`, or
  any exception with an attribute `reason_code` of that form. It is final, unless it has a true attribute `transient`;
- `exception.<Class>`: a bug in perdure or in an agent's module. Read the traceback in the worker's log. Temporal
  retries the activity, so a fixed worker goes on with the turn. A bug that a model call or a tool call meets is
  `runtime.internal`, final, with `exception.<Class>` as the second code.
"""

FAULTS = """\
## How the code of a failed model call is found

The first table below that has a row decides; an exception with a `reason_code` of its own comes before all of them.
`perdure errors --faults --json` also has an example of each row, and where it was read.
"""

WIRES = """\
## Faults on the two wires

The class that is raised for a fault, with the status of the reply, and the code. An empty cell says the same as the one
before it.
"""

SHORT = {RESULT: "error result", TOLD: "on retry", CORRECTED: "correction", NOTHING: ""}
"""What the model reads, in the words of the table."""

HEADINGS = {
    Evidence.NAME: "Classes that are raised for one reason only, whatever the status they wear.",
    Evidence.CODE: "The provider's own code or type in the error object, whatever the case, behind a status that "
    "several kinds of refusals share (*none*: an error without a status). *Unknown model* is what a fallback goes by.",
    Evidence.WORDS: "What the provider writes, behind such a status, when it has no code for the failure or too wide "
    "a one.",
    Evidence.STATUS: "The HTTP status of the reply, and the usual name of such an error.",
    Evidence.FAULT: "The class of an exception that code raised before any provider had answered, also under one of "
    "litellm's classes that says less. A library that fails at a reply is no fault: then the reply is odd.",
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
            *_legend(used),
            "",
            *_codes(used),
            "\n## Reserved codes\n\nNothing raises them yet.\n",
            *_codes(reserved),
            "",
            FAULTS,
            *(
                line
                for seen in HEADINGS
                for line in (f"### By {seen}\n", HEADINGS[seen], "", *_sets(seen), *_rows(seen), "")
            ),
            f"### By anything else\n\n`{next(row.code for row in ROWS if row.seen is Evidence.NONE)}`\n",
            WIRES,
            *_table(("fault", "OpenAI-style", "Anthropic-style"), map(_wire_fault, WIRE_FAULTS)),
            "",
        ]
    )


def _codes(reasons: dict[ReasonCode, Reason]) -> Iterator[str]:
    lines = (
        (f"`{code}`", _again(reason), reason.text, SHORT.get(reason.model, reason.model))
        for code, reason in sorted(reasons.items(), key=lambda row: row[0].split("."))
    )
    return _table(("code", "", "an operator reads", "the model reads"), lines)


def _legend(reasons: dict[ReasonCode, Reason]) -> Iterator[str]:
    yield "Where the last cell is empty, the model reads nothing. Words that the cells shorten:\n"
    for text, short in SHORT.items():
        if short:
            yield f"- *{short}*: {text}"
    for text in sorted({reason.retry_after for reason in reasons.values()} - {"none"}):
        yield f"- *retry-after*: the wait is that of the provider's header {text}"


def _again(reason: Reason) -> str:
    again = "retried" if reason.transient else "final"
    return again if reason.retry_after == "none" else f"{again}, retry-after"


def _rows(seen: Evidence) -> Iterator[str]:
    rows = [row for row in ROWS if row.seen is seen]
    if seen is Evidence.STATUS:
        statuses = ((row.match, f"`{row.code}`", row.name) for row in rows)
        return _table(("status", "code", "name"), statuses)
    if seen is Evidence.CODE:
        codes = ((f"`{row.match}`", _code_of(row), _statuses(row)) for row in rows)
        return _table(("code in the reply", "code", "behind"), _joined(codes))
    if seen is Evidence.WORDS:
        words = ((f"`{row.match}`", _code_of(row), _statuses(row)) for row in rows)
        return _table(("words", "code", "behind"), _joined(words))
    if seen is Evidence.MESSAGE:
        messages = ((f"`{row.match}`", f"`{row.code}`") for row in rows)
        return _table(("words", "code"), _joined(messages))
    sent = ((f"`{row.match}`", f"`{row.code}`", "not sent" if row.never_sent else "") for row in rows)
    return _table(("class", "code", ""), _joined(sent))


def _joined(lines: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The lines, with those that follow each other and differ in the first cell alone as one."""
    for rest, alike in itertools.groupby(lines, key=lambda line: line[1:]):
        yield (", ".join(line[0] for line in alike), *rest)


def _code_of(row: Row) -> str:
    return f"`{row.code}`, unknown model" if row.kind else f"`{row.code}`"


def _wire_fault(row: WireFault) -> tuple[str, str, str]:
    openai = f"{row.seen}, `{row.code}`"
    anthropic = f"{row.anthropic or row.seen}, `{row.anthropic_code or row.code}`"
    return row.fault, openai, "" if anthropic == openai else anthropic


def _statuses(row: Row) -> str:
    sets = _sets_of(row.seen)
    return f"*{string.ascii_uppercase[sets.index(row.statuses)]}*" if row.statuses in sets else _listed(row)


def _sets(seen: Evidence) -> Iterator[str]:
    """What the letters of a table stand for."""
    for row in {row.statuses: row for row in ROWS if row.seen is seen and row.statuses in _sets_of(seen)}.values():
        yield f"- {_statuses(row)}: {_listed(row)}"
    yield ""


def _sets_of(seen: Evidence) -> list[frozenset[int | None]]:
    """The long lists of statuses that several rows have, in the order of their first rows."""
    lists = [row.statuses for row in ROWS if row.seen is seen and len(row.statuses) > LONG]
    return [statuses for statuses in dict.fromkeys(lists) if lists.count(statuses) > 1]


def _listed(row: Row) -> str:
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
