"""``perdure errors``: the reason codes, one of them in full, or the table of faults that choose them."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches

import click

from perdure.contracts.errors import CUSTOM_CODE, REASONS, Reason, ReasonCode
from perdure.contracts.values import Value
from perdure.llm.failures import ROWS, Evidence

_OTHERS = {
    "exception.": Reason(
        transient=True,
        text="an exception class that the table does not list: a bug in perdure or in an agent's module; read the "
        "traceback in the worker's log. Temporal retries the activity, so a fixed worker goes on with the "
        "turn",
    ),
    "llm.": Reason(
        transient=False,
        text="a code of an agent's own model provider, which says whether the call is retried",
    ),
}
"""Codes that are made at run time, by their first part."""


@click.command("errors")
@click.argument("code", required=False)
@click.option(
    "--faults", is_flag=True, help="List instead which HTTP statuses, exception classes and words lead to which code."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each code or fault.")
def errors_command(*, code: str | None, faults: bool, as_json: bool) -> None:
    """List the reason codes: what each means, and whether the call is retried or the failure is final.

    With CODE, such as llm.timeout: explain this code in full, with its fix, what the model reads, and which faults
    lead to it.
    """
    if faults:
        # An agent's own code is not in the table, though it may exist.
        if not (code is None or code in REASONS or code.startswith("exception.")):
            raise _unknown(code, " in the table")
        rows = [row for row in ROWS if code in {None, row.code}]
        if not rows:
            click.echo(f"no fault of the table leads to {code}", err=True)
        for row in rows:
            if as_json:
                _print_json(row)
                continue
            statuses = ", ".join(str(status or "none") for status in sorted(row.statuses, key=lambda one: one or 0))
            behind = f" (behind {statuses})" if statuses else ""
            name = f" ({row.name})" if row.name else ""
            _print_wrapped(f"{row.seen:26}  {row.code:22}  ", f"{row.match}{behind}{name}")
    elif code is None:
        width = max(map(len, REASONS))
        for each, reason in sorted(REASONS.items(), key=lambda row: row[0].split(".")):
            if as_json:
                _print_json(reason, code=each)
            else:
                _print_wrapped(f"{each:{width}}  {_describe_consequence(reason):8}  ", reason.text)
    else:
        _print_one(code, _find_reason(code), as_json=as_json)


def _find_reason(code: str) -> Reason:
    if code in REASONS:
        return REASONS[ReasonCode(code)]
    if code.startswith("exception.") or CUSTOM_CODE.fullmatch(code):
        return _OTHERS[code.partition(".")[0] + "."]
    raise _unknown(code)


def _unknown(code: str, where: str = "") -> click.UsageError:
    return click.UsageError(
        f"there is no reason code {code!r}{where}; {_suggestion_of(code) or 'the list'} is in 'perdure errors'"
    )


def _suggestion_of(code: str) -> str:
    return "".join(get_close_matches(code, REASONS, n=1))


def _describe_consequence(reason: Reason) -> str:
    if reason.reserved:
        return "reserved"
    return "retried" if reason.transient else "final"


def _print_one(code: str, reason: Reason, *, as_json: bool) -> None:
    if as_json:
        _print_json(reason, code=code)
        return
    click.echo(code)
    cause, _, fix = reason.text.partition("; ")
    for name, text in (
        ("cause", cause),
        ("fix", fix),
        (
            "then",
            ""
            if code not in REASONS
            else _describe_consequence(reason) + (": nothing raises it yet" if reason.reserved else ""),
        ),
        ("retry-after", reason.retry_after),
        ("model reads", reason.model),
        ("near", _suggestion_of(code) if code not in REASONS else ""),
        *_choices_of(code),
    ):
        if text:
            _print_wrapped(f"  {name:14}", text)


def _choices_of(code: str) -> Iterator[tuple[str, str]]:
    heading = "chosen by"
    for seen in Evidence:
        found = [row.match for row in ROWS if row.code == code and row.seen is seen]
        if found:
            yield heading, f"{seen}: {', '.join(found)}".rstrip(": ")
            heading = ""


def _print_json(value: Value, **first: str) -> None:
    click.echo(json.dumps({**first, **value.model_dump(mode="json")}, ensure_ascii=False))


def _print_wrapped(start: str, text: str) -> None:
    """One line, or on a terminal as many as it needs."""
    line = start + text
    if sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns, len(start) + 20)
        line = textwrap.fill(line, width, subsequent_indent=" " * len(start), drop_whitespace=True)
    click.echo(line)
