"""What a failed model call is: its facts, and the reason code that the one table has for them."""

from collections.abc import Iterable, Sequence

from perdure.contracts.errors import NOTHING, REASONS, TOLD, Reason, ReasonCode
from perdure.contracts.values import Value
from perdure.engine.failure_table import ROWS, Evidence, Row


class FailureFacts(Value):
    """A failed model call as plain facts, redacted and bounded.

    Attributes:
        status: The HTTP status, as far as the library tells one.
        retry_after_seconds: What the provider asked to wait.
        class_name: The class that was raised.
        classes: The class and its bases.
        causes: The classes of the cause chain and their bases, outermost first.
        names: The provider's own codes and types for the failure, in lower case.
        text: The message.
        own_code: The ``reason_code`` that the exception carries, or one that it was raised from.
        own_transient: Whether that exception calls itself ``transient``.
    """

    status: int | None = None
    retry_after_seconds: float | None = None
    class_name: str = ""
    classes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    text: str = ""
    own_code: str | None = None
    own_transient: bool = False


class Table:
    """Rows, ready to be looked up."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_kind = {seen: [row for row in rows if row.seen is seen] for seen in Evidence}
        self._by_match = {seen: {row.match: row for row in kind} for seen, kind in self._by_kind.items()}

    def by_class(self, seen: Evidence, names: Iterable[str]) -> Row | None:
        """The row of the first of these classes that has one."""
        known = self._by_match[seen]
        return next((known[name] for name in names if name in known), None)

    def by_code(self, status: int | None, names: Iterable[str]) -> Row | None:
        """The first row of one of the provider's codes."""
        known = frozenset(names)
        return next(
            (row for row in self._by_kind[Evidence.CODE] if row.match in known and status in row.statuses), None
        )

    def by_words(self, seen: Evidence, status: int | None, text: str) -> Row | None:
        """The first row whose pattern is found."""
        return next((row for row in self._by_kind[seen] if row.has_words(status, text)), None)

    def by_status(self, status: int | None) -> Row | None:
        """The row of this status."""
        return next((row for row in self._by_kind[Evidence.STATUS] if row.has_status(status)), None)

    def otherwise(self) -> Row:
        """The row of what no other row is for."""
        return self._by_kind[Evidence.NONE][0]

    def proves_never_sent(self, causes: Iterable[str]) -> bool:
        """Whether the cause chain holds a class of a connection that was never made."""
        known = self._by_match[Evidence.CAUSE]
        return any(name in known and known[name].never_sent for name in causes)


TABLE = Table(ROWS)


EXCEPTION = "exception."
"""What the code of a failure begins with that nobody foresaw; its class follows."""

UNKEPT = Reason(transient=True, text="the model's answer could not be kept", model=TOLD, most_retries=4)
"""Such a failure behind an answer, which is paid: another one may do, and five are enough."""


def classify(facts: FailureFacts) -> str:
    """The reason code of a failed model call. Never fails: what nobody knows is a network error, hence retried."""
    if facts.own_code is not None:
        return ReasonCode(facts.own_code) if facts.own_code in REASONS else facts.own_code
    return row_of(facts).code


def class_of(facts: FailureFacts) -> str:
    """The class that says what the failure is: the one that was raised, unless the provider says more."""
    return (facts.own_code is None and row_of(facts).kind) or facts.class_name


def reason_of(facts: FailureFacts) -> Reason:
    """What is known about that code; of one that no table knows, what its exception says."""
    code = classify(facts)
    if code in REASONS:
        return REASONS[ReasonCode(code)]
    if code.startswith(EXCEPTION):
        return UNKEPT
    return Reason(
        transient=facts.own_transient,
        text=f"the agent's own model provider failed with {code}",
        model=TOLD if facts.own_transient else NOTHING,
    )


def row_of(facts: FailureFacts, table: Table = TABLE) -> Row:
    """The row that decides, by the first kind of evidence that has one for these facts."""
    return (
        table.by_class(Evidence.NAME, facts.classes)
        or table.by_code(facts.status, facts.names)
        or table.by_words(Evidence.WORDS, facts.status, facts.text)
        or table.by_status(facts.status)
        or table.by_class(Evidence.CAUSE, facts.causes)
        or table.by_class(Evidence.CLASS, facts.classes)
        or table.by_words(Evidence.MESSAGE, facts.status, facts.text)
        or table.otherwise()
    )


def is_ambiguous(facts: FailureFacts, code: str, table: Table = TABLE) -> bool:
    """Whether the provider may have carried the call out although no answer came."""
    if code not in {ReasonCode.LLM_TIMEOUT, ReasonCode.LLM_NETWORK_ERROR}:
        return False
    refused = facts.status is not None and 400 <= facts.status < 500 and code != ReasonCode.LLM_TIMEOUT
    return not refused and not table.proves_never_sent(facts.causes)
