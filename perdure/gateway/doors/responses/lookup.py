"""Looking up what a conversation shows: whose its items are, whether words were edited, and what references mean."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perdure.client import EventsGoneError, SessionErasedError, UnknownSessionError
from perdure.client.stream import from_store
from perdure.contracts.events import AgentStart
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import JsonValue
from perdure.gateway.access import Gateway, act_for, own_session
from perdure.gateway.callers import Caller
from perdure.gateway.doors.responses.conversations import Heard, Shown, is_heard, words_shown
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.following import find_turn, inputs_of, read_turn
from perdure.gateway.doors.responses.places import Origin, ResponseId
from perdure.gateway.doors.responses.requests import Entry, Object, read_item
from perdure.gateway.problems import ProblemCode, ProblemError

OLDEST = 100
"""Forks that are followed back from a session."""

Turn = tuple[str, int]
"""A session's id and the number of a turn of it."""


class EditedError(Exception):
    """The conversation is another one than the session has, at the item that is named."""


class Lookup:
    """Looks up the items of one request, as one caller."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway = gateway
        self._caller = caller
        self._folds: dict[Turn, TurnFold] = {}

    async def with_own(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries; an item that is not of this tenant, sent whole, comes from nowhere.

        Raises:
            ProblemError: A reference names what is not there.
            SessionErasedError: A reference names what was the caller's, and was erased.
        """
        owned: dict[str, bool] = {}
        told: list[Entry] = []
        for entry in entries:
            origin, refers = entry.origin, entry.kind == "item_reference"
            if origin is not None and (refers or origin.session not in owned):
                owned[origin.session] = await self._owns(origin.session, or_tell=refers)
            is_own = origin is not None and owned[origin.session]
            if refers and not is_own:
                raise _unknown_item(entry)
            told.append(entry if is_own else replace(entry, origin=None))
        return told

    async def _owns(self, session: str, *, or_tell: bool) -> bool:
        try:
            await own_session(session, await act_for(self._gateway, self._caller, session), self._gateway)
        except UnknownSessionError as error:
            if or_tell and isinstance(error, SessionErasedError):
                raise
            return False
        return True

    async def turn(self, session: str, turn: int) -> TurnFold:
        """The fold of a turn, read once.

        Raises:
            ProblemError: There is no such turn.
            EventsGoneError: The retention of the agent has deleted its log.
        """
        if (session, turn) not in self._folds:
            place = ResponseId(session, turn)
            self._folds[session, turn] = await read_turn(self._gateway, place, await find_turn(self._gateway, place))
        return self._folds[session, turn]

    async def edited(self, entries: Sequence[Entry]) -> str | None:
        """The place of the first item before which other words stand than its turn has heard; None without one.

        What a retention has deleted is taken to be as it is shown.
        """
        shown = [*words_shown(entries)]
        prompts = await self._read_prompts({(one.session, one.turn) for one in shown if not one.behind_reply})
        for one in shown:
            heard = await self._heard_later(one) if one.behind_reply else prompts.get((one.session, one.turn))
            if heard is not None and not one.is_in(heard):
                return one.at
        return None

    async def followed(self, entries: Sequence[Entry], place: ResponseId, *, is_lenient: bool = False) -> ResponseId:
        """The turn that a conversation has come to, whose items behind those of this turn have no ids.

        Args:
            entries: The items behind.
            place: The turn.
            is_lenient: Whether answers may be shown in other words, and so may what is told while a turn waits.

        Raises:
            EditedError: The session has said something else, or heard something else.
        """
        if not entries:
            return place
        views = {view.turn: view for view in await self._gateway.client.turn_views(place.session)}
        prompts = await self._read_prompts((place.session, turn) for turn in views if turn > place.turn)
        turn, words = place.turn, list[Object]()
        for entry in entries:
            words += entry.parts
            if not entry.is_models or entry.is_bare:
                continue
            before = views.get(turn)
            replied = before is not None and before.result is not None and before.result.requests != ()
            if is_lenient and before is not None and before.result is None:  # it is told once more that the turn waits
                words = []
                continue
            if words or replied:  # replies to a turn that stopped for them begin the next one
                turn += 1
            view = views.get(turn)
            result = None if view is None else view.result
            heard = prompts.get((place.session, turn), [])
            if replied and view is not None:
                heard = (await self.turn(place.session, turn)).heard
            is_heard_there = not words or is_heard(words, heard)
            while result is not None and result.requests and not result.output and turn + 1 in views:
                turn += 1  # it began with a part of the replies, and has asked for the others once more
                result = views[turn].result
            is_said = is_lenient or (result is not None and _is_output(result, entry))
            if not is_heard_there or not is_said:
                raise EditedError(entry.at)
            words = []
        return ResponseId(place.session, turn)

    async def without_known(self, entries: Sequence[Entry], place: ResponseId) -> Sequence[Entry]:
        """The entries without a beginning that is all that the session has heard: some clients send that again."""
        found = await self._read_prompts((place.session, turn) for turn in range(1, place.turn + 1))
        prompts = [heard for _, heard in sorted(found.items()) if any(text or files for text, files in heard)]
        known, behind = entries[: len(prompts)], entries[len(prompts) :]
        if not behind or not all(entry.parts for entry in known) or any(entry.is_models for entry in behind):
            return entries
        are_known = (is_heard(entry.parts, heard) for entry, heard in zip(known, prompts, strict=False))
        return behind if all(are_known) else entries

    async def heard_by(self, fold: TurnFold) -> list[Heard]:
        """Words that a turn has heard, with the prompt of the turn that it goes on with if replies began it."""
        heard, turn = fold.heard, fold.turn
        while turn > 1 and heard and not any(heard[0]):
            turn -= 1
            before = (await self._read_prompts([(fold.session, turn)])).get((fold.session, turn))
            if before is None:
                break
            heard = [*before, *heard]
        return heard

    async def starts(self, turns: Iterable[Turn]) -> dict[Turn, AgentStart]:
        """The beginnings of turns, without those that a retention has deleted."""
        store = await self._gateway.client.store()
        keys: dict[str, list[str]] = {}
        for session, turn in turns:
            keys.setdefault(session, []).append(f"{turn}/agent_start")
        found: dict[Turn, AgentStart] = {}
        for session, names in keys.items():
            for line in await from_store(lambda: store.events_by_key(session, names)):  # noqa: B023 - awaited here
                if isinstance(line.event, AgentStart):
                    found[session, line.turn] = line.event
        return found

    async def _read_prompts(self, turns: Iterable[Turn]) -> dict[Turn, list[Heard]]:
        return {turn: [(start.prompt, len(start.parts))] for turn, start in (await self.starts(turns)).items()}

    async def _heard_later(self, shown: Shown) -> list[Heard] | None:
        try:
            return (await self.turn(shown.session, shown.turn)).heard
        except EventsGoneError:
            return None

    async def descends(self, session: str, ancestor: str) -> bool:
        """Whether a session was forked from another one, or from a fork of it."""
        store = await self._gateway.client.store()
        for _ in range(OLDEST):
            if session == ancestor:
                return True
            begun = await from_store(lambda: store.events_by_key(session, ["1/agent_start"]))  # noqa: B023
            start = begun[0].event if begun else None
            origin = start.resumed_from if isinstance(start, AgentStart) else None
            if origin is None or origin.session is None:
                return False
            session = origin.session
        return False

    async def resolved(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries, with the items that references refer to in their places, and what has come of calls.

        Raises:
            ProblemError: A reference names what is not there.
            EventsGoneError: The retention of the agent has deleted it.
        """
        told: list[Entry] = []
        for entry in entries:
            if entry.origin is None or not (entry.kind == "item_reference" or entry.is_hollow):
                told.append(entry)
            else:
                told += await self._resolve(entry, entry.origin)
        return told

    async def _resolve(self, reference: Entry, origin: Origin) -> list[Entry]:
        fold = await self.turn(origin.session, origin.turn)
        place = ResponseId.parse(reference.id)
        items: list[dict[str, JsonValue]] = []
        for segment in fold.segments:
            response = str(ResponseId(origin.session, origin.turn, segment.number))
            inputs = inputs_of(fold, segment.number)
            items += [item for item in (*inputs, *segment.items) if reference.id in (item["id"], response)]
            if place is not None:
                items = [item for item in items if item not in inputs]
        if not items:
            raise _unknown_item(reference)
        return [read_item(reference.at, item) for item in items]


def _is_output(result: TurnResult, entry: Entry) -> bool:
    """Whether an entry is what a turn has answered: a text, or the JSON in it, which is all that this door gives."""
    said = [str(message["content"]) for message in entry.history]
    if not result.output or said == [result.output]:
        return bool(result.output)
    try:
        return result.value is not None and [json.loads(text) for text in said] == [result.value]
    except ValueError:
        return False


def _unknown_item(entry: Entry) -> ProblemError:
    """The refusal of a reference: in the same words whether nobody has the item or another tenant."""
    msg = f"{entry.at}: there is no item {entry.id[:200]!r}; send the items whole, or name a previous_response_id"
    return ProblemError(404, ProblemCode.UNKNOWN_TURN, msg)
