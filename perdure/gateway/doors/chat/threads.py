"""Conversations of front ends as trees of turns: pure, of the messages of a request and the turns of its session.

A front end sends the branch that its user looks at, by words alone. Who edits a message, or asks for another answer,
makes a branch; in the session it is a turn that goes on from an earlier one than the last.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.contracts.input_requests import Need
from perdure.gateway.doors.responses.conversations import Heard
from perdure.gateway.doors.responses.requests import Entry, Said

START = 0
"""The place before the first turn."""

MOST_ROUNDS = 50
"""Last rounds of a conversation without its beginning that are looked for."""

MOST_TOGETHER = 20
"""Messages that a turn has heard together."""

MOST_TAKEN = 5
"""Messages before the last one, without an answer behind them, that turns are looked for of."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A turn of the session.

    Attributes:
        parent: The turn that it goes on from; 0 is the beginning.
        words: Digest of the messages that began it, without what stands before them; empty if nobody has noted it.
        heard: Words that it has heard; None if its log is deleted.
        answer: Its text; empty as long as it has none.
        is_shown: Whether the user of the front end began it, with words that are shown there.
    """

    turn: int
    parent: int
    words: str = ""
    heard: Sequence[Heard] | None = ()
    answer: str = ""
    is_shown: bool = True

    def counts(self, messages: Sequence[Heard]) -> Iterator[int]:
        """Numbers of these messages, the first ones, that it may have heard together."""
        if self.heard is None and not self.words:
            yield 1
            return
        for count in range(1, min(len(messages), MOST_TOGETHER) + 1):
            together = join_heard(messages[:count])
            if self.words == digest_of(together) or any(_has(told, together, self.words) for told in self.heard or ()):
                yield count


def _has(told: Heard, shown: Heard, words: str) -> bool:
    """Whether a turn has heard what is shown: in the text of a template, or behind instructions if nothing is noted."""
    text, prompt = clean(shown[0]), clean(told[0])
    if words:
        return bool(text) and text in prompt and _WRAPPED.search(prompt) is not None
    return told[1] == shown[1] and (prompt == text or prompt.endswith(f"\n\n{text}"))


_WRAPPED = re.compile(r"</\w|-->|^#{1,4} ", re.MULTILINE)
"""Found in the texts that front ends put around a message, such as of documents; they show the message alone."""


def clean(text: str) -> str:
    """A text without what front ends change in it when they keep it."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n")).strip()


def digest_of(words: Heard) -> str:
    """Digest of a message; of its text, since front ends do not keep each image."""
    text, files = clean(words[0]), words[1]
    return hashlib.sha256((text or f"{files} files").encode(errors="replace")).hexdigest()[:16]


def join_heard(messages: Sequence[Heard]) -> Heard:
    """Messages that are heard together."""
    return "\n\n".join(text for text, _ in messages if text), sum(files for _, files in messages)


@dataclass(kw_only=True)
class Round:
    """Messages of the user, and what the agent has answered, as a front end shows them.

    Attributes:
        messages: None where the request begins with an answer.
        turns: The turns that the ids of its calls name.
        is_reply: Whether the round before ends with a request to people: what is said then may have been a reply.
    """

    messages: Sequence[Heard] | None = None
    answers: list[str] = field(default_factory=list[str])
    turns: list[int] = field(default_factory=list[int])
    is_reply: bool = False

    def asked_at(self, session: str) -> tuple[int, int] | None:
        """The turn and the segment that ask people with its last answer; None if it asks nothing.

        The address of the session's page behind what is asked says so.
        """
        last = self.answers[-1].rpartition("\n")[2] if self.answers else ""
        found = re.search(rf"{re.escape(page_of(session))}\?asked=(\d{{1,9}})\.(\d{{1,9}})\W*$", last)
        return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Found:
    """Place of a conversation in a session.

    Attributes:
        turn: The turn that it has come to.
        turns: The turns of its last rounds, one for each.
        taken: How many of the messages behind the last round turns have heard, too.
    """

    turn: int
    turns: Sequence[int] = ()
    taken: int = 0


def page_of(session: str) -> str:
    """The path of a session's page."""
    return f"/ui/sessions/{session}"


def without_page(text: str, session: str) -> str:
    """A text without its lines that have the address of the session's page."""
    return "\n".join(line for line in text.splitlines() if page_of(session) not in line)


def squeeze(text: str) -> str:
    """A text without its white space, which front ends change."""
    return "".join(text.split())


def end_of_shown(texts: Sequence[str], shown: str) -> tuple[int, int] | None:
    """The place among texts where what is shown of them ends: which one, and how many characters of it are shown.

    All are squeezed. A front end shows the beginning of an answer, or several answers as one. None if it shows another.
    """
    for first in range(len(texts)):
        left = len(shown)
        if not "".join(texts[first:]).startswith(shown):
            continue
        for at in range(first, len(texts)):
            if left <= len(texts[at]):
                return at, left
            left -= len(texts[at])
    return None


_YES = re.compile(r"(?:yes|approved?)[.!]?", re.IGNORECASE)
_NO = re.compile(r"(?:no|den(?:y|ied))[.!]?(?:\s*[,.:;!-]\s*(?P<reason>.*))?", re.IGNORECASE | re.DOTALL)


def read_reply(words: str, requests: Mapping[str, Need]) -> list[Said]:
    """A message as the reply to requests of people: a word decides about all calls, and words answer one question.

    Empty if it is none.
    """
    needs, text = {*requests.values()}, words.strip()
    if needs == {"answer"} and len(requests) == 1:
        return [Said(call_id=name, output=text) for name in requests]
    if needs != {"approval"}:
        return []
    if _YES.fullmatch(text):
        return [Said(call_id=name, approve=True) for name in requests]
    denied = _NO.fullmatch(text)
    return [Said(call_id=name, reason=denied["reason"] or "") for name in requests] if denied else []


def read_rounds(entries: Sequence[Entry], session: str) -> tuple[list[Round], list[Entry]]:
    """The rounds of a request, and the messages of the user behind them."""
    rounds: list[Round] = []
    said: list[Entry] = []
    for entry in entries:
        if entry.parts:
            said.append(entry)
        elif entry.is_models and not entry.is_bare:
            if said or not rounds:
                is_reply = bool(rounds) and rounds[-1].asked_at(session) is not None
                rounds.append(Round(messages=[heard_in(one) for one in said] or None, is_reply=is_reply))
                said = []
            _add(rounds[-1], entry, session)
    return rounds, said


def heard_in(entry: Entry) -> Heard:
    """The words of a message, as a turn hears them."""
    texts = [str(part["text"]) for part in entry.parts if part["type"] == "text"]
    return "\n\n".join(texts), len(entry.parts) - len(texts)


def _add(one: Round, entry: Entry, session: str) -> None:
    if entry.origin is not None and entry.origin.session == session:
        one.turns.append(entry.origin.turn)
    if entry.kind == "message":
        one.answers += [str(message["content"]).strip() for message in entry.history]


@dataclass(frozen=True)
class _Path:
    """A way through the turns of a session.

    Attributes:
        unsaid: How many answers on it are shown in other words than the turns have said.
    """

    unsaid: int
    turn: int
    before: "_Path | None" = None

    def worth(self) -> tuple[int, int]:
        """The less, the better."""
        return self.unsaid, -self.turn

    def turns(self) -> Iterator[int]:
        """The turns, from the end."""
        at: _Path | None = self
        while at is not None:
            yield at.turn
            at = at.before


class Tree:
    """The turns of a session, by what they go on from.

    Args:
        nodes: The turns.
        tells_calls: Whether the texts of calls stand before answers.
    """

    def __init__(self, nodes: Sequence[Node], *, tells_calls: bool = False) -> None:
        self._tells_calls = tells_calls
        self._nodes: Mapping[int, Node] = {node.turn: node for node in nodes}
        self._behind: dict[int, list[Node]] = {}
        for node in nodes:
            self._behind.setdefault(node.parent, []).append(node)

    def find(self, rounds: Sequence[Round], messages: Sequence[Heard]) -> Found | None:
        """The place behind these rounds and those of the messages that turns have heard; the last one is new.

        Of several branches that are so, it is the latest. A request may show the end of a conversation only. None if
        the session has nothing that is so.
        """
        most = max(0, len(messages) - 1)
        for taken in [*range(most, max(0, most - MOST_TAKEN), -1), 0]:
            shown = [*rounds, Round(messages=messages[:taken])] if taken else rounds
            if not shown:
                return Found(START)
            if (turns := self._path(shown)) is not None:
                return Found(turns[-1], turns[:-1] if taken else turns, taken)
        return None

    def _path(self, rounds: Sequence[Round]) -> list[int] | None:
        """The turns of the rounds, or of the last ones of them: with most answers as they are shown, and the latest."""
        whole = None if rounds[0].messages is None else self._follow(rounds, [START])
        if whole is None or whole.unsaid:
            end = self._follow(rounds[-MOST_ROUNDS:], self._nodes)
            if end is not None and (whole is None or end.unsaid < whole.unsaid):
                whole = end
        return None if whole is None else [*whole.turns()][::-1]

    def _follow(self, rounds: Sequence[Round], starts: Iterable[int]) -> "_Path | None":
        paths: dict[int, _Path | None] = dict.fromkeys(starts)
        for number, one in enumerate(rounds):
            ahead: dict[int, _Path] = {}
            for turn, path in paths.items():
                for after in self._take(one, turn):
                    unsaid = not self.has_said(after, one.answers)
                    if unsaid and not number and one.messages is None and not one.turns:
                        continue  # nothing else says which turn the first answer is of
                    longer = _Path((path.unsaid if path else 0) + unsaid, after, path)
                    ahead[after] = min(longer, ahead.get(after, longer), key=_Path.worth)
            paths = {**ahead}
        return min((path for path in paths.values() if path), key=_Path.worth, default=None)

    def _take(self, one: Round, turn: int) -> Iterator[int]:
        """The turns that a round may have led to from a turn."""
        reached = {turn} if one.messages is None else self._hear(one.messages, turn)
        if one.is_reply:
            reached.add(turn)
        if not one.turns:
            yield from reached
        elif any(max(one.turns) in (it, *self.silent_behind(it)) for it in reached):
            yield max(one.turns)

    def _hear(self, messages: Sequence[Heard], turn: int) -> set[int]:
        """The turns that have heard all of these messages behind a turn, some of them together."""
        reached: set[int] = set()
        ahead = {(turn, 0)}
        while ahead:
            at, count = ahead.pop()
            if count == len(messages):
                reached.add(at)
                continue
            for node in self._next(at):
                ahead |= {(node.turn, count + more) for more in node.counts(messages[count:])}
        return reached

    def _next(self, turn: int) -> Iterator[Node]:
        for before in (turn, *self.silent_behind(turn)):
            yield from (node for node in self._behind.get(before, ()) if node.is_shown)

    def answers_of(self, turn: int) -> list[str]:
        """The answers of a turn and of those behind it that the user did not begin."""
        turns = (turn, *self.silent_behind(turn))
        return [answer for it in turns if it in self._nodes and (answer := clean(self._nodes[it].answer))]

    def has_said(self, turn: int, answers: Sequence[str]) -> bool:
        """Whether an answer is shown as the turn has given it."""
        if not answers:
            return True
        shown, behind = clean(answers[-1]), self._tells_calls
        return any(shown == said or (behind and shown.endswith(f"\n{said}")) for said in self.answers_of(turn))

    def silent_behind(self, turn: int) -> list[int]:
        """The turns behind one that the user did not begin, such as those that results began, in order."""
        found: list[int] = []
        ahead = [turn]
        while ahead:
            silent = [node.turn for node in self._behind.get(ahead.pop(), ()) if not node.is_shown]
            found += silent
            ahead += silent
        return sorted(found)

    def end_of(self, turn: int) -> int:
        """The turn that a message behind this one goes on from."""
        return max((turn, *self.silent_behind(turn)))
