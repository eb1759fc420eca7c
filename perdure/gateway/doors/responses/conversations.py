"""Conversations that clients send again, and what of them is new: pure, of the items of a request alone.

Clients of OpenAI keep the conversation themselves, and many send all of it with each request. What stands before the
last item of the agent was said before, so it is what the session has, or a history. What stands behind it is new.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perdure.client import RequestRefusedError
from perdure.client.requests import Content
from perdure.gateway.bodies import Json
from perdure.gateway.doors.prompts import join_parts
from perdure.gateway.doors.responses.histories import fit
from perdure.gateway.doors.responses.places import ResponseId
from perdure.gateway.doors.responses.requests import Entry, Object, Said
from perdure.gateway.doors.responses.words import Words


def last_place(entries: Sequence[Entry]) -> ResponseId | None:
    """The turn that the last item of a session is of."""
    found = next((entry.origin for entry in reversed(entries) if entry.origin is not None), None)
    return None if found is None else ResponseId(found.session, found.turn)


def new_words(entries: Sequence[Entry], *, behind_replies: bool = False) -> list[Object]:
    """The messages of the user behind all of the agent's, and behind all replies if asked, as the parts of one."""
    last = _last(entries, lambda entry: entry.is_models or (behind_replies and entry.said is not None))
    return [part for entry in entries[last + 1 :] for part in entry.parts]


def unnamed_behind(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries behind the last item that names its turn, up to the last of the agent's: a session may have them."""
    behind = entries[_last(entries, lambda entry: entry.origin is not None) + 1 :]
    last = _last(behind, lambda entry: entry.is_models and not entry.is_bare)
    return behind[: last + 1]


def live_replies(entries: Sequence[Entry]) -> list[Entry]:
    """The replies that may not have been given: no item of the agent but further requests stands behind them."""
    last = _last(entries, lambda entry: entry.is_models and not entry.asks and not entry.is_bare)
    return [entry for entry in entries[last + 1 :] if entry.said is not None]


Heard = tuple[str, int]
"""A text that a turn has read, and the number of its files."""


def is_heard(parts: Sequence[Object], heard: Sequence[Heard]) -> bool:
    """Whether a message is among these; instructions may stand before it."""
    text = "\n\n".join(str(part["text"]) for part in parts if part["type"] == "text")
    files = sum(part["type"] != "text" for part in parts)
    return any((told == text or told.endswith(f"\n\n{text}")) and count == files for told, count in heard)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Words of the user that a conversation shows before items of a turn, which has heard them if nothing was edited.

    Attributes:
        at: Place of the turn's item.
        behind_reply: Whether they stand beside a reply, so that the turn has heard them later than its prompt.
    """

    at: str
    session: str
    turn: int
    parts: Sequence[Object]
    behind_reply: bool

    def is_in(self, heard: Sequence[Heard]) -> bool:
        """Whether they are among what was heard."""
        return is_heard(self.parts, heard)


def words_shown(entries: Sequence[Entry]) -> Iterator[Shown]:
    """The words that stand before items of turns."""
    parts: list[Object] = []
    replied = False
    for entry in entries:
        if entry.parts:
            parts += entry.parts
        elif entry.said is not None:
            replied = True
        elif not entry.is_bare:
            if parts and (origin := entry.origin) is not None:
                yield Shown(at=entry.at, session=origin.session, turn=origin.turn, parts=parts, behind_reply=replied)
            parts, replied = [], False


def begin(entries: Sequence[Entry], system: Sequence[str], words: Words) -> tuple[Content, list[Object]]:
    """The prompt of a new session, and the history before it.

    Raises:
        RequestRefusedError: There is nothing to be done, or an item would be left out.
        ProblemError: The prompt is too long.
    """
    cut = _last(entries, lambda entry: not entry.parts) + 1
    parts = [part for entry in entries[cut:] for part in entry.parts]
    if not parts:
        raise nothing_new(entries, words)
    return join_parts(system, parts, words.field), _history_of(entries[:cut], words)


def nothing_new(entries: Sequence[Entry], words: Words) -> RequestRefusedError:
    """The refusal of a conversation behind which nothing is said."""
    told = _NOTHING_NEW.get(entries[-1].kind if entries else "")
    why = f"ends with {told} that no turn waits for; {words.instead}" if told else _NO_MESSAGE
    return RequestRefusedError(f"{words.field}: {why}")


_NO_MESSAGE = "has no message of the user behind all others; say what is to be done"
_NOTHING_NEW: Mapping[str, str] = {
    "function_call_output": "the output of a call",
    "mcp_approval_response": "a decision",
}


def _history_of(entries: Sequence[Entry], words: Words) -> list[Object]:
    ran = {entry.settles for entry in entries}
    decisions = {entry.id: entry.said for entry in entries if entry.said is not None and entry.id}
    asked = {entry.id for entry in entries if entry.kind == "mcp_approval_request"}
    history: list[Object] = []
    for entry in entries:
        if not words.is_lenient and any(part["type"] != "text" for part in entry.parts):
            raise RequestRefusedError(f"{entry.at}: only the last message may have images and files")
        told = [*entry.history, *({"role": "user", "content": _text_of(part)} for part in entry.parts)]
        if entry.kind == "mcp_approval_request":
            told = [] if entry.id in ran else _denied(entry, decisions.get(entry.id), words)
        elif entry.id in decisions and entry.id not in ran | asked:
            raise RequestRefusedError(f"{entry.at}: decides about a call that is not there; {words.instead}")
        for message in told:
            _add(history, message)
    return fit(history) if words.is_lenient else history


def _text_of(part: Object) -> Json:
    """The text of a part, or of a file its name."""
    if part["type"] == "text":
        return part["text"]
    file = part.get("file")
    name = file.get("filename") if isinstance(file, dict) else None
    return f"[{name or 'an image'}]"


def _denied(request: Entry, decision: Said | None, words: Words) -> list[Object]:
    """A call that was not approved, with that as its result."""
    if decision is None or decision.approve:
        raise RequestRefusedError(f"{request.at}: is a request without what came of it; {words.instead}")
    why = f": {decision.reason}" if decision.reason else ""
    return [
        *request.history,
        {"role": "tool", "tool_call_id": decision.call_id, "content": f"the call was denied{why}"},
    ]


def _last(entries: Sequence[Entry], is_one: Callable[[Entry], bool]) -> int:
    """The place of the last entry that is one; -1 without any."""
    return next((at for at in reversed(range(len(entries))) if is_one(entries[at])), -1)


def _add(history: list[Object], message: Object) -> None:
    """Add a message; a call joins the message of the agent before it."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and history and history[-1]["role"] == "assistant":
        before = history[-1].get("tool_calls")
        history[-1] = {**history[-1], "tool_calls": [*(before if isinstance(before, list) else ()), *calls]}
        return
    history.append(message)
