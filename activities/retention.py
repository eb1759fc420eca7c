"""The activity ``sweep_retention``: delete what is older than its retention, in the next sessions of one agent."""

from dataclasses import dataclass

from temporalio import activity

from perdure.activities.heartbeat import keep_beating
from perdure.activities.store_access import store_failures
from perdure.contracts.ids import RETENTION
from perdure.contracts.names import Activity
from perdure.contracts.retention import Kept, Retention, SweepSlice, Swept
from perdure.contracts.values import replace
from perdure.store import NotFoundError, Store
from perdure.store.errors import SessionRunsError
from perdure.store.retention import SLICE, Old


@dataclass(frozen=True)
class RetentionActivity:
    """Sweeps the store of one worker."""

    store: Store

    @activity.defn(name=Activity.SWEEP_RETENTION)
    async def sweep_retention(self, part: SweepSlice) -> Swept:
        """Sweep the next sessions. Safe to run twice: what is deleted is not found again."""
        async with keep_beating(), store_failures():
            await self.store.require(part.store)
            return await sweep(self.store, part)


async def sweep(store: Store, part: SweepSlice) -> Swept:
    """Sweep the next sessions of an agent, or of the next agent that has a retention."""
    retentions = await store.retentions()
    agent = part.agent or min(retentions, default="")
    if agent not in retentions:  # no such agent, or it has no retention any more
        return _with_next_agent(Swept(), part, agent, retentions)
    retention = retentions[agent]
    shortest = retention.shortest
    if shortest is None:
        return _with_next_agent(Swept(), part, agent, retentions)
    found = await store.old_sessions(agent, part.now - shortest, part.after)
    total = Swept()
    for old in found:
        total = total.plus(await _sweep_session(store, part, agent, retention, old))
    if len(found) < SLICE:
        return _with_next_agent(total, part, agent, retentions)
    return replace(total, going_on=replace(part, agent=agent, after=found[-1].session))


def _with_next_agent(total: Swept, part: SweepSlice, agent: str, retentions: dict[str, Retention]) -> Swept:
    later = min((name for name in retentions if name > agent), default=None)
    return replace(total, going_on=None if later is None else replace(part, agent=later, after=""))


async def _sweep_session(store: Store, part: SweepSlice, agent: str, retention: Retention, old: Old) -> Swept:
    def keep(why: str) -> Swept:
        return Swept(kept=(Kept(session=old.session, agent=agent, why=why),), kept_sessions=1)

    if old.open_turn is not None:
        return keep(f"its turn {old.open_turn} is open")
    ended = old.ended_at
    if retention.transcript is not None and ended is not None and ended < part.now - retention.transcript:
        if forks := await store.forks_of(old.session):
            return keep(f"{forks[0]}{f' and {len(forks) - 1} others' if forks[1:] else ''} stands on its steps")
        if retention.keep_latest:
            return await _keep_latest(store, part, old.session)
        if not part.dry_run:
            try:
                await store.erase_session(old.session, by=RETENTION, reason="retention")
            except SessionRunsError:
                return keep("a turn of it has just begun")
            except NotFoundError:  # erased by somebody else meanwhile
                return Swept()
        return Swept(erased=1)
    act = store.count_trimmed if part.dry_run else store.trim_session
    trimmed = await act(old.session, retention, part.now)
    return Swept(events=trimmed.events, artifacts=trimmed.artifacts)


async def _keep_latest(store: Store, part: SweepSlice, session: str) -> Swept:
    if not await store.needs_trimming(session):
        return Swept()
    if part.dry_run:
        return Swept(trimmed=1)
    trimmed = await store.keep_latest(session)
    return Swept(trimmed=1, events=trimmed.events, artifacts=trimmed.artifacts)
