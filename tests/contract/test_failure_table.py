"""The table of failures is whole, says what is written down elsewhere, and no row of it can change unseen."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import aiohttp
import httpx
import litellm
import pytest

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.engine.limits import CODES
from perdure.llm.failures import ROWS, Evidence, Row, Table
from tests.contract import errors_page
from tests.contract.failure_expectations import problems, wrong
from tests.contract.repository import ROOT, sources
from tests.contract.wire_faults import WIRE_FAULTS

pytestmark = pytest.mark.deep

CLASSES = {row.match for row in ROWS if row.seen in {Evidence.NAME, Evidence.CLASS}}

NOT_OF_A_MODEL_CALL = (
    # What litellm is beside a library of model calls.
    *("proxy", "enterprise", "integrations", "harness", "llms/base_llm/harness", "a2a_protocol", "tracing"),
    *("repositories", "caching", "secret_managers", "types/proxy", "rust_bridge/trace", "rust_bridge/fork_guard"),
    *("rust_bridge/runtime", "rust_bridge/lifecycle", "rag", "mcp_client"),
    "responses/streaming_iterator",  # of frames of a web socket
    "llms/base_llm/realtime",  # audio streams, and those that derive from it
    "llms/base_llm/auth/token_exchange",  # says of itself that they are never raised
    "litellm_core_utils/litellm_logging",  # caught where it is raised
)


def classes_of(module: ModuleType) -> dict[str, type[BaseException]]:
    found = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if issubclass(value, BaseException)}


def test_the_table_says_what_is_expected() -> None:
    """S-02 S-10 S-13 S-68: every code, every status, every class and every pattern."""
    assert list(problems()) == []


@pytest.mark.parametrize("module", ["litellm.exceptions", "litellm"])
def test_every_exception_that_litellm_offers_has_a_row_of_its_own(module: str) -> None:
    """S-02: a release with a new class fails here until somebody says what it means."""
    offered = classes_of(importlib.import_module(module))
    ours = {name for name, value in offered.items() if value.__module__.startswith("litellm")}
    assert len(ours) > 20
    assert ours - CLASSES == set()


def written_in_litellm() -> dict[str, set[str]]:
    """Each class of the package with the names of its bases, without importing it."""
    found: dict[str, set[str]] = {}
    root = Path(litellm.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if not path.relative_to(root).as_posix().startswith(NOT_OF_A_MODEL_CALL):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, set()).update(
                        ast.unparse(base).rpartition(".")[2] for base in node.bases
                    )
    return found


def descending(written: dict[str, set[str]], roots: set[str]) -> set[str]:
    """The classes that have one of these among their ancestors."""
    known, before = set(roots), -1
    while len(known) != before:
        before = len(known)
        known |= {name for name, bases in written.items() if bases & known}
    return known


def test_every_exception_in_litellms_code_of_model_calls_has_a_row_or_a_base_with_one() -> None:
    """S-02: the provider's own classes too, which litellm wraps, or forgets to."""
    written = written_in_litellm()
    exceptions = descending(written, {"Exception", "ValueError", "RuntimeError", "HTTPError", "HTTPStatusError"})
    covered = descending(written, CLASSES)
    assert len(exceptions & written.keys()) > 80
    assert sorted((exceptions & written.keys()) - covered) == []


@pytest.mark.parametrize(("module", "root"), [(httpx, httpx.RequestError), (aiohttp, aiohttp.ClientError)])
def test_every_network_fault_of_the_http_libraries_has_a_row(module: ModuleType, root: type[BaseException]) -> None:
    """S-02: by itself or by a base, as a cause."""
    causes = {row.match for row in ROWS if row.seen is Evidence.CAUSE}
    faults = {name: value for name, value in classes_of(module).items() if issubclass(value, root)}
    assert len(faults) > 10
    assert [name for name, value in faults.items() if not causes & {base.__name__ for base in value.__mro__}] == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.example], ids=lambda row: row.match)
def test_an_example_fits_its_row_and_no_other(row: Row) -> None:
    """S-10: what the page shows is true."""
    for status in row.statuses or {None}:
        fitting = [other for other in ROWS if other.seen is row.seen and other.has_words(status, row.example)]
        assert fitting == [row], status


def groups(pattern: str) -> Iterator[tuple[int, int]]:
    """Where each parenthesis begins and ends."""
    begun: list[int] = []
    for found in re.finditer(r"\\.|\[.*?\]|[()]", pattern):
        if found[0] == "(":
            begun.append(found.start())
        elif found[0] == ")":
            yield begun.pop(), found.end()


def slips(pattern: str) -> Iterator[str]:
    """The pattern with one thing forgotten: a border, an alternative, a look-ahead, what is optional or repeated."""
    for piece in (r"\\[bA]", r"\\[\[\]]", r"(?<=\(\?)s(?=:)", r"(?<=[\w.\])])\?", r"(\(\w\)|\w|\.|(?<!\\)\[[^]]*\])\?"):
        yield from (pattern[: found.start()] + pattern[found.end() :] for found in re.finditer(piece, pattern))
    for found in re.finditer(r"(?<!\\)\[([^]]+)\]", pattern):
        for place in range(found.start(1), found.end(1)):
            yield pattern[:place] + pattern[place + 1 :]
    for found in re.finditer(r"\.\{0,\d+\}", pattern):
        yield from (pattern[: found.start()] + instead + pattern[found.end() :] for instead in ("", ".*"))
    for start, end in groups(pattern):
        if pattern.startswith("(?!", start) or pattern.startswith("?", end):
            yield pattern[:start] + pattern[end:].removeprefix("?")
        alternatives = pattern[start + 1 : end - 1].split("|")
        if "(" not in pattern[start + 1 : end] and len(alternatives) > 1:
            for number in range(len(alternatives)):
                kept = "|".join(alternatives[:number] + alternatives[number + 1 :])
                yield pattern[: start + 1] + kept + pattern[end - 1 :]


def mutants(row: Row) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """The row dropped, and changed in each thing that decides."""
    yield "dropped", ()
    other = ReasonCode.LLM_REFUSED if row.code is not ReasonCode.LLM_REFUSED else ReasonCode.LLM_TIMEOUT
    yield "code", (row.model_copy(update={"code": other}),)
    if row.seen is Evidence.STATUS:
        low, _, high = row.match.partition("-")
        yield "first status", (row.model_copy(update={"match": f"{int(low) + 1}-{high or low}"}),)
        yield "last status", (row.model_copy(update={"match": f"{low}-{int(high or low) - 1}"}),)
    elif row.seen in {Evidence.WORDS, Evidence.MESSAGE}:
        yield from ((slip, (row.model_copy(update={"match": slip}),)) for slip in slips(row.match))
    elif row.seen is not Evidence.NONE:
        yield "match", (row.model_copy(update={"match": "x" + row.match}),)
    if row.seen is Evidence.CAUSE:
        yield "never_sent", (row.model_copy(update={"never_sent": not row.never_sent}),)
    if row.kind:
        yield "kind", (row.model_copy(update={"kind": ""}),)
    if row.statuses:
        yield from (
            (f"behind {s}", (row.model_copy(update={"statuses": row.statuses ^ {s}}),)) for s in (*row.statuses, 404)
        )


def noticed(table: Table, seen: Evidence) -> bool:
    """Whether the expectations of this evidence, or of none, notice a change of one of its rows: a part of all."""
    return any(next(wrong(kind, table), None) is not None for kind in (seen, Evidence.NONE))


def test_no_row_can_be_dropped_or_changed_unseen() -> None:
    """S-02 S-10 S-13: breaking any row of the table, or anything in a pattern, makes a test fail."""
    assert sum(len(list(slips(row.match))) for row in ROWS if row.example) > 90
    unseen = [
        f"{row.seen} {row.match}: {what}"
        for place, row in enumerate(ROWS)
        for what, instead in mutants(row)
        if not noticed(Table((*ROWS[:place], *instead, *ROWS[place + 1 :])), row.seen)
    ]
    assert unseen == []


def test_no_reason_can_be_dropped_or_changed_unseen() -> None:
    """S-68: whether a code is retried, and whether the provider is asked how long to wait."""
    for code, reason in REASONS.items():
        flipped = reason.model_copy(update={"transient": not reason.transient})
        asked = reason.model_copy(update={"retry_after": "none" if reason.retry_after != "none" else "a header"})
        for mutant in ({code: flipped}, {code: asked}):
            assert next(problems(reasons={**REASONS, **mutant}), None) is not None
        assert next(problems(reasons={name: kept for name, kept in REASONS.items() if name != code}), None) is not None


def test_the_page_is_made_of_the_table() -> None:
    text = errors_page.PAGE.read_text(encoding="utf-8")
    assert text == errors_page.page(), "if the change is meant: make schemas, and a line in CHANGELOG.md"


def test_what_people_read_cannot_change_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-68: each text of each row is on the page, which is compared with its file."""
    written = errors_page.page()
    for code, reason in REASONS.items():
        changes = ({"text": "else"}, {"model": "else"}, {"retry_after": "else"}, {"reserved": not reason.reserved})
        for change in changes:
            with monkeypatch.context() as patch:
                patch.setitem(REASONS, code, reason.model_copy(update=change))
                assert errors_page.page() != written
    for place, row in enumerate(WIRE_FAULTS):
        for name in ("fault", "seen", "anthropic"):
            changed = (*WIRE_FAULTS[:place], row.model_copy(update={name: "else"}), *WIRE_FAULTS[place + 1 :])
            with monkeypatch.context() as patch:
                patch.setattr(errors_page, "WIRE_FAULTS", changed)
                assert errors_page.page() != written


def test_a_code_is_reserved_exactly_as_long_as_nothing_raises_it() -> None:
    """S-68: the table pretends nothing."""
    texts = [
        (ROOT / path).read_text(encoding="utf-8")
        for path in sources("perdure", "workflows", "activities", "worker")
        if path.as_posix() != "perdure/contracts/errors.py"
    ]
    raised = {
        code for code in ReasonCode if any(f"ReasonCode.{code.name}" in text or f'"{code}"' in text for text in texts)
    }
    raised |= set(CODES.values())  # the engine makes them of the rows of the budgets' dimensions
    assert {code for code, reason in REASONS.items() if reason.reserved} == set(ReasonCode) - raised
