"""Pictures, files and reasoning that give way when a provider refuses a call for them, so that none wedges a session.

What gave way is remembered with the session, for the model and its address: a later call leaves it out at once. It
stands in the event log, beside the answer that was got without it, where a worker looks when it first serves a session.
"""

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from perdure.activities.models.forms import destination_of
from perdure.activities.models.providers import PROVIDERS
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import GenerationAdapted
from perdure.contracts.files import MAX_ALL_BYTES, MAX_PARTS, PDF, TEXT, FilePart, is_image
from perdure.llm.compaction import LEAST_KEPT
from perdure.llm.failures import FailureFacts, classify
from perdure.llm.openai_format import WireMessage
from perdure.llm.tool_output import head_and_tail

MOST_TRIES = 12
"""Most calls of one attempt, of which each leaves out more than the one before."""

MOST_KEPT = 10_000
"""Sessions that are remembered; the one unused for longest is forgotten first."""

LONGEST_REASON = 500
"""Characters of a refusal that its event keeps."""

_STATUSES = frozenset({400, 404, 413, 415, 422, 500})
"""Statuses of refusals that may be about a picture; local servers answer 500 where they cannot read one."""

_IMAGE = re.compile(
    r"\b(images?|pictures?|photos?|pixels?|vision|image_url|base64|media[ _]?type|multimodal)\b", re.IGNORECASE
)
_FILE = re.compile(r"\b(pdfs?|documents?|files?|file_data|attachments?)\b", re.IGNORECASE)
_TOO_MANY = re.compile(
    r"(too many|at most \d+|more than \d+|up to \d+|maximum( number)? of|(number|count) of)"
    r".{0,40}(image|picture|document|file|media)"
    r"|(image|picture|document|file|media)s?.{0,40}(count|per (request|prompt|message|call)|(limit|maximum) of \d)",
    re.IGNORECASE,
)
_REASONING = re.compile(
    r"reasoning_content|reasoning_details|thinking_blocks?|encrypted[ _]content"
    r"|\b(thinking|reasoning|thought[ _]?signature)\b",
    re.IGNORECASE,
)
_NOT_TAKEN = re.compile(
    r"unsupported|not supported|un(known|recognized|expected)|extra (fields|inputs)|not (permitted|allowed)|forbidden"
    r"|additional propert|invalid.{0,5}(thought )?signature|signature.{0,20}(invalid|not valid)|cannot be modified"
    r"|could not be (verified|decrypted|parsed)|corrupted|without its required",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Given:
    """Limits on the content that a session shows its model, as learnt from refusals.

    Attributes:
        most: Most pictures and files of one call.
        most_pictures: Most pictures of one call, as its provider says.
        most_files: Most PDFs of one call, as its provider says.
        most_bytes: Largest sum of their bytes.
        refused: Artifacts that the provider has refused.
        taken: Artifacts that it has taken.
        reasons: Whether reasoning goes back.
        most_characters: Longest text of one message; of a longer one its ends are shown. None means no bound.
    """

    most: int = MAX_PARTS
    most_pictures: int = MAX_PARTS
    most_files: int = MAX_PARTS
    most_bytes: int = MAX_ALL_BYTES
    refused: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    reasons: bool = True
    most_characters: int | None = None

    def lessened(self, sent: Sequence[WireMessage], facts: FailureFacts, *, may_cut: bool) -> "Given | None":
        """Limits for the next call after a refusal of these messages; None if nothing of them was refused.

        Args:
            sent: The messages with the data of what was shown.
            facts: The refusal.
            may_cut: Whether a context that is too long can be shortened in no other way.
        """
        code, groups = classify(facts), [group for message in sent if (group := _shown_in(message))]
        shown = [part for group in groups for part in group]
        overflows = code == ReasonCode.LLM_CONTEXT_OVERFLOW
        if shown and (facts.status == 413 or (overflows and may_cut)):
            return self._smaller(shown)
        if overflows and may_cut:
            return self._shorter(sent)
        if facts.status not in _STATUSES or code not in {ReasonCode.LLM_REQUEST_ERROR, ReasonCode.LLM_NETWORK_ERROR}:
            return None
        if shown and _TOO_MANY.search(facts.text) and len(shown) > 1:
            return replace(self, most=len(shown) // 2)
        if suspects := self._suspects(groups, facts.text):
            return replace(self, refused=self.refused | suspects)
        return self._without_reasoning(sent, facts.text)

    def _smaller(self, shown: Sequence[FilePart]) -> "Given":
        """With half of the bytes, the latest; the last one left is refused as such."""
        last = shown[-1]
        if len(shown) == 1:
            return replace(self, refused=self.refused | {last.artifact})
        half = sum(part.size for part in shown) // 2
        return replace(self, most_bytes=max(half, last.size), most=min(self.most, len(shown) - 1))

    def _shorter(self, sent: Sequence[WireMessage]) -> "Given | None":
        """With half of the longest text, which alone may be longer than the model's window."""
        longest = max((len(text) for message in sent if (text := _text_of(message))), default=0)
        return replace(self, most_characters=longest // 2) if longest >= 2 * LEAST_KEPT else None

    def latest(self, parts: Sequence[FilePart]) -> frozenset[int]:
        """The places of those of these parts that are shown: the latest ones, as far as the limits go."""
        shown: set[int] = set()
        size, kinds = 0, Counter[bool]()
        for number, part in reversed([*enumerate(parts)]):
            if part.artifact in self.refused:
                continue
            size += part.size
            is_picture = is_image(part.media_type)
            kinds[is_picture] += part.media_type != TEXT
            has_room = kinds[is_picture] <= (self.most_pictures if is_picture else self.most_files)
            if has_room and len(shown) < self.most and size <= self.most_bytes:
                shown.add(number)
        return frozenset(shown)

    def fitted(self, messages: list[WireMessage]) -> list[WireMessage]:
        """The messages with what gave way left out of them, but for pictures and files."""
        most = self.most_characters
        if most is not None:
            messages = [
                {**message, "content": head_and_tail(text, most)} if len(text := _text_of(message)) > most else message
                for message in messages
            ]
        if self.reasons:
            return messages
        return [{name: value for name, value in message.items() if name != "reasoning"} for message in messages]

    def _suspects(self, groups: Sequence[Sequence[FilePart]], text: str) -> frozenset[str]:
        """The artifacts that the refusal may be about: those of the last message with one that was never taken."""
        images, files = _IMAGE.search(text) is not None, _FILE.search(text) is not None
        fits = [
            [part for part in group if (images and is_image(part.media_type)) or (files and part.media_type == PDF)]
            or [part for part in group if (images or files) and part.media_type != TEXT]
            for group in groups
        ]
        unknown = [frozenset(part.artifact for part in group) - self.taken for group in fits]
        known = frozenset(part.artifact for group in fits for part in group)
        return next((group for group in reversed(unknown) if group), known)

    def _without_reasoning(self, sent: Sequence[WireMessage], text: str) -> "Given | None":
        has_some = self.reasons and any("reasoning" in message for message in sent)
        if has_some and _REASONING.search(text) and _NOT_TAKEN.search(text):
            return replace(self, reasons=False)
        return None

    def after(self, event: GenerationAdapted) -> "Given":
        """The same, with what an event of the session says."""
        return replace(
            self,
            refused=self.refused | frozenset(event.left_out),
            reasons=self.reasons and event.reasons,
            most=self.most if event.most is None else event.most,
            most_bytes=self.most_bytes if event.most_bytes is None else event.most_bytes,
            most_characters=self.most_characters if event.most_characters is None else event.most_characters,
        )

    def taking(self, sent: Sequence[WireMessage]) -> "Given":
        """The same, after the provider has taken these messages."""
        shown = frozenset(part.artifact for message in sent for part in _shown_in(message))
        return self if shown <= self.taken else replace(self, taken=self.taken | shown)


def _text_of(message: WireMessage) -> str:
    """The text that may be cut: not the system prompt's."""
    content = message.get("content")
    return content if isinstance(content, str) and message.get("role") != "system" else ""


def _shown_in(message: WireMessage) -> list[FilePart]:
    """The pictures and files of a message that are sent with their data."""
    parts = cast("Iterable[dict[str, object]]", message.get("parts") or ())
    return [
        FilePart.model_validate({name: value for name, value in part.items() if name != "data"})
        for part in parts
        if "data" in part
    ]


@dataclass
class GivenWay:
    """Limits learnt from refusals in the sessions that a worker serves, by session, model and address."""

    _kept: OrderedDict[str, dict[tuple[str, str], Given]] = field(default_factory=OrderedDict)

    def knows(self, session: str) -> bool:
        """Whether the session's events were looked at, or something of it was learnt, by this worker."""
        return session in self._kept

    def recall(self, session: str, adapted: Iterable[GenerationAdapted]) -> None:
        """Remember what the session's events say, in their order."""
        kept = self._of(session)
        for event in adapted:
            place = (event.model, event.address)
            kept[place] = kept.get(place, _given_by(event.model)).after(event)

    def of(self, session: str, definition: AgentDefinition) -> Given:
        """Limits of the session for this model: those of its provider, and what its refusals have taught."""
        given = self._kept.get(session, {}).get(_place_of(definition))
        return _given_by(definition.model) if given is None else given

    def keep(self, session: str, definition: AgentDefinition, given: Given) -> None:
        """Remember it for the session's next calls."""
        self._of(session)[_place_of(definition)] = given

    def _of(self, session: str) -> dict[tuple[str, str], Given]:
        kept = self._kept.setdefault(session, {})
        self._kept.move_to_end(session)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return kept


def _given_by(model: str) -> Given:
    """Limits of a model's provider, before any refusal."""
    row = PROVIDERS.get(model.partition("/")[0])
    return Given() if row is None else Given(most_pictures=row.most_pictures, most_files=row.most_files)


def _place_of(definition: AgentDefinition) -> tuple[str, str]:
    """The model, and a digest of the address that the agent names for it, which may hold a key."""
    model, address = destination_of(definition)
    return model, hashlib.sha256(address.encode()).hexdigest()[:16] if address else ""


def adapted(before: Given, now: Given, definition: AgentDefinition, reason: str) -> GenerationAdapted | None:
    """The event that tells of the limits which a call has taught; None if there are none."""
    names = ("reasons", "most", "most_bytes", "most_characters")
    changed = {name: value for name in names if (value := getattr(now, name)) != getattr(before, name)}
    left_out = tuple(sorted(now.refused - before.refused))
    if not changed and not left_out:
        return None
    model, address = _place_of(definition)
    said = reason[:LONGEST_REASON]
    return GenerationAdapted(model=model, address=address, left_out=left_out, reason=said, **changed)
