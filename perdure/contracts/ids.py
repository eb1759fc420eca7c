"""Ids that perdure derives: the form of each, who makes it, and whether a caller may write an id.

Work to come has ids that are known before it begins, so that a retry finds it. Whoever knew such an id could begin the
work first. So a derived id has a part that only the store's secrets give, and a form that no caller may write. A caller
may name a session of such a form once it exists. What an earlier schema has named keeps its id.
"""

import hashlib
import re
from enum import StrEnum
from typing import NamedTuple

MARK = "~"
"""The character that every derived id of a session has, and that no caller may write."""

SESSION_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,199}$"
"""Session ids are Temporal workflow ids, file names and URL parts; no spaces, no slashes.

A caller that begins a session may not write each of them, see :func:`refusal_of`.
"""

DELEGATED = "delegate:"
"""Prefix of the request id of a delegate's turn."""

NOTIFY_PREFIX = "notify:"
"""Prefix of the ids of the workflows that deliver webhooks; those of webhook and message follow, and a signature."""

KNOCK_PREFIX = "knock:"
"""Prefix of the ids of the workflows that send schedules' messages; a signed id and a time follow."""

RETENTION = "perdure-retention"
"""The id of the schedule that sweeps, how its sweeps' ids begin, and who has erased what it sweeps.

The schedule's own id must be known to whoever looks for it, so it has no signature; its sweeps' ids have one.
"""

SCHEDULE_PREFIX = "perdure:"
"""Prefix of the ids of our schedules; tenant and name follow."""

TEMPORAL_PREFIX = "temporal-sys-"
"""Prefix of the ids of Temporal's own workflows."""

TEMPORAL_SCHEDULES = f"{TEMPORAL_PREFIX}scheduler:"
"""Prefix of the ids of those that are schedules; the schedule's id follows."""


DELEGATE_ENDING = rf"\.[A-Za-z0-9_-]{{1,40}}(?:\.[0-9a-f]{{16}}|{MARK}d[0-9a-f]{{24}})"
"""Ending of a delegate's session, behind the root's id: as a turn without a secret derives it, or as any other."""


class Signed(StrEnum):
    """Kinds of ids that the store signs: ``STEM~KIND``, 16 digits for what it stands for, 16 for its tenant."""

    KEY = "k"
    """The new session of a request with a key of its own: the gateway makes it, and the MCP server."""
    RUN = "r"
    """A run of a schedule: the client makes it when it makes the schedule, and Temporal adds the time."""
    NOTIFY = "n"
    """A delivery to a webhook: the worker makes it that starts the delivery; never a session."""
    SWEEP = "s"
    """A sweep of old sessions: whoever makes the schedule makes it, and Temporal adds the time; never a session."""


SESSIONS = (Signed.KEY, Signed.RUN)
"""Kinds of which sessions are."""


class Form(NamedTuple):
    """A form that no caller may write.

    Attributes:
        pattern: Found in every id of the form.
        names: What such an id names.
        maker: The module that makes it.
    """

    pattern: str
    names: str
    maker: str


FORMS = (
    Form(rf"{MARK}d[0-9a-f]{{24}}$", "delegates", "perdure.engine.delegates"),
    Form(rf"{MARK}k[0-9a-f]{{32}}$", "requests with a key", "perdure.gateway.starts, perdure.cli.mcp"),
    Form(rf"{MARK}r[0-9a-f]{{32}}", "runs of schedules", "perdure.client.schedules"),
    Form(MARK, "derived ids", "perdure.contracts.ids"),
    Form(f"^{KNOCK_PREFIX}", "messages of schedules", "perdure.client.schedules"),
    Form(f"^{NOTIFY_PREFIX}", "deliveries of webhooks", "perdure.contracts.webhooks"),
    Form(f"^{RETENTION}", "sweeps", "perdure.client.retention"),
    Form(f"^{SCHEDULE_PREFIX}", "schedules", "perdure.client.schedules"),
    Form(f"^{TEMPORAL_PREFIX}", "Temporal's own workflows", "Temporal"),
)
"""Every form, and who makes it. The first that fits an id is the id's."""

_SIGNED = re.compile(
    rf"(?P<head>.+{MARK}(?P<kind>[{''.join(SESSIONS)}])[0-9a-f]{{16}})(?P<check>[0-9a-f]{{16}})"
    r"(-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z)?"
)
_SIGNATURE = re.compile(rf"{MARK}{Signed.NOTIFY}[0-9a-f]{{32}}$")
_ENDING = re.compile(f"{DELEGATE_ENDING}$")
_ROOT_CHARACTERS = 120
_NAME_CHARACTERS = 40


def refusal_of(session: str) -> str | None:
    """The sentence that refuses a caller's id for a session that does not exist; None if callers may write it."""
    form = next((form for form in FORMS if re.search(form.pattern, session)), None)
    if form is None:
        return None
    return (
        f"session: ids of the form of {session!r} are perdure's own, for {form.names}, and there is no such session; "
        f"choose an id without {MARK!r} that begins otherwise, or name none"
    )


def refusal_of_request(request_id: str) -> str | None:
    """The sentence that refuses a caller's request id; None if callers may write it."""
    if not request_id.startswith(DELEGATED):
        return None
    return f"request_id: ids that begin with {DELEGATED!r} are perdure's own, for delegates; choose another"


DELEGATE_IDS = "delegate-ids"
"""Held back like a patch: turns that a worker opens then have no seed, so that workers of 0.1.0 can go on with them."""


def delegate_session(root: str, tool: str, session: str, call_id: str, seed: str) -> str:
    """The session of a delegate: below the name of the tree's root, and always the same for the same call.

    ``seed`` is the secret of the caller's turn. A turn that an earlier release opened has none.
    """
    name = f"{root[:_ROOT_CHARACTERS]}.{tool[:_NAME_CHARACTERS]}"
    if not seed:
        return f"{name}.{_digest(session, call_id)[:16]}"
    return f"{name}{MARK}d{_digest(seed, session, call_id)[:24]}"


def delegates_stem(session: str) -> str:
    """Beginning of the ids of all sessions below the root of this one's tree."""
    return f"{_ENDING.sub('', session)[:_ROOT_CHARACTERS]}."


def _digest(*lines: str) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def delivery_stem(webhook: str, message: str) -> str:
    """Part of the id of a delivery's workflow that is signed."""
    return f"{NOTIFY_PREFIX}{webhook}:{message}"


def message_of(delivery: str, webhook: str) -> str:
    """The message that a delivery's workflow of this id sends to the webhook."""
    return _SIGNATURE.sub("", delivery).removeprefix(delivery_stem(webhook, ""))


class Parts(NamedTuple):
    """The parts of a signed id: what is signed, and the signature."""

    head: str
    check: str


def parts_of(session: str) -> Parts | None:
    """The parts of a session's signed id, without the time that Temporal adds; None if the id has no such form."""
    found = _SIGNED.fullmatch(session)
    return None if found is None else Parts(found["head"], found["check"])


def slug_of(agent: str) -> str:
    """The agent's name, or a session's id, as the beginning of a new session's id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", agent).strip("-._")[:100] or "session"
