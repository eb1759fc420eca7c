"""Blocks as the client sets them: new turns are refused at once, and open ones are cancelled."""

import secrets
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from perdure.client.cancels import MOST, CancelOutcome, Target, cancel_listed, outcome_of
from perdure.client.errors import UnknownBlockError
from perdure.client.requests import validate
from perdure.client.sessions import Sessions
from perdure.client.unopened import UnopenedTurn, find_unopened
from perdure.contracts.blocks import Block, BlockRequest
from perdure.contracts.values import Value
from perdure.store import Store
from perdure.store.errors import NotFoundError
from perdure.store.records import MeantTurn

TRIES = 3
"""Number of tries to stop a turn whose cancel fails."""


class Only(TypedDict, total=False):
    """Which turns a block means: all filters that are given must fit; ``everything`` stands for none."""

    agent: str | None
    tenant: str | None
    model: str | None
    everything: bool


class BlockOutcome(Value):
    """Outcome of a block.

    Attributes:
        block: The block; of a dry run the one that would be, without an id.
        changed: False if the same block was in force already, and of a dry run.
        refuses: The registered agents whose new turns it refuses.
        turns: The open turns that it means, and what came of the cancel of each; none with ``keep_running``.
    """

    block: Block
    changed: bool
    refuses: tuple[str, ...] = ()
    turns: tuple[CancelOutcome, ...] = ()


class Blocks:
    """Sets and lifts blocks."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def block(self, reason: str, *, by: str, dry_run: bool, keep_running: bool, only: Only) -> BlockOutcome:
        """Write the block, then cancel what it means; see :meth:`perdure.client.Client.block`.

        The same block again is the one that is in force, and tells again the turns that are still open.
        """
        request = validate(BlockRequest, {**only, "reason": reason, "by": by})
        store = await self._sessions.store()
        fields = request.model_dump(exclude={"everything"})
        asked = Block(id="" if dry_run else f"bl_{secrets.token_hex(8)}", created_at=datetime.now(UTC), **fields)
        block = asked if dry_run else await store.add_block(asked)
        refuses = await store.blocked_agents(block)
        if dry_run:
            meant = [] if keep_running else await self._list_failing(store, block, refuses)
            meant += [] if keep_running else map(_target, await store.blocked_turns(block))
            would = tuple(outcome_of(target, "would_cancel") for target in meant)
            return BlockOutcome(block=block, changed=False, refuses=refuses, turns=would)
        turns = () if keep_running else await self._cancel(store, block, refuses)
        return BlockOutcome(block=block, changed=block.id == asked.id, refuses=refuses, turns=turns)

    async def _list_failing(self, store: Store, block: Block, refuses: Collection[str]) -> list[Target]:
        """The turns that the store does not know of and whose own code fails; others it refuses when they open."""
        sessions = self._sessions
        unopened = await find_unopened(sessions.temporal, store, sessions.settings.task_queue, limit=MOST)
        return [
            Target(turn.session, turn.turn, turn.agent, turn.request_id)
            for turn in unopened
            if turn.fails and _means(block, refuses, turn)
        ]

    async def _cancel(self, store: Store, block: Block, refuses: Collection[str]) -> tuple[CancelOutcome, ...]:
        """Look until the store has no open turn more that was not told to stop; those that fail are tried again."""
        who = f" by {block.by}" if block.by else ""
        why = f": {block.reason}" if block.reason else ""
        reason = f"blocked{who}{why} ({block.id})"
        outcomes: dict[tuple[str, int], CancelOutcome] = {}
        tries: dict[tuple[str, int], int] = {}
        for outcome in await self._tell(await self._list_failing(store, block, refuses), reason):
            outcomes[outcome.session, outcome.turn] = outcome
        while True:
            untold = [
                _target(turn)
                for turn in await store.blocked_turns(block)
                if tries.get(place := (turn.session, turn.turn), 0) < TRIES
                and (place not in outcomes or outcomes[place].outcome == "failed")
            ]
            if not untold:
                return tuple(outcomes.values())
            for outcome in await self._tell(untold, reason):
                place = outcome.session, outcome.turn
                outcomes[place], tries[place] = outcome, tries.get(place, 0) + 1

    async def _tell(self, targets: Sequence[Target], reason: str) -> list[CancelOutcome]:
        return await cancel_listed(self._sessions, targets, reason, drop_queue=True)

    async def unblock(self, block: str, *, by: str, tenant: str | None) -> bool:
        """Lift a block; False if it was lifted before.

        Raises:
            UnknownBlockError: There is none of that id, or it is not the tenant's.
        """
        store = await self._sessions.store()
        try:
            return await store.lift_block(block, by=by, tenant=tenant)
        except NotFoundError as error:
            raise UnknownBlockError(f"{error}; 'perdure blocks' lists the blocks in force") from None


def _means(block: Block, refuses: Collection[str], turn: UnopenedTurn) -> bool:
    """Whether a block means a turn that names a model, or that has those of its agent."""
    tenants = () if turn.tenant is None else (turn.tenant,)
    models = {turn.model} if turn.model is not None else {block.model} if turn.agent in refuses else set[str | None]()
    return block.fits(turn.agent, tenants, {model for model in models if model is not None})


def _target(turn: MeantTurn) -> Target:
    return Target(turn.session, turn.turn, turn.agent)
