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
    if old.open_turn is not None:
        return _keep(old.session, agent, f"its turn {old.open_turn} is open")
    ended = old.ended_at
    if retention.transcript is not None and ended is not None and ended < part.now - retention.transcript:
        return await _sweep_transcript(store, part, agent, old.session, keeps_latest=retention.keep_latest)
    act = store.count_trimmed if part.dry_run else store.trim_session
    trimmed = await act(old.session, retention, part.now)
    return Swept(events=trimmed.events, artifacts=trimmed.artifacts)


def _keep(session: str, agent: str, why: str) -> Swept:
    return Swept(kept=(Kept(session=session, agent=agent, why=why),), kept_sessions=1)


async def _sweep_transcript(store: Store, part: SweepSlice, agent: str, session: str, *, keeps_latest: bool) -> Swept:
    """Erase a session and its delegates, the deepest first; or keep its latest, and no delegates of earlier turns."""
    if forks := await store.forks_of(session):
        return _keep(
            session, agent, f"{forks[0]}{f' and {len(forks) - 1} others' if forks[1:] else ''} stands on its steps"
        )
    below = await store.sessions_below(session, of_earlier_turns=keeps_latest)
    standing = [each for each in below if not each.is_erased]
    if running := next((each for each in standing if each.open_turn is not None), None):
        return _keep(session, agent, f"turn {running.open_turn} of its delegate {running.session} is open")
    latest = await _keep_latest(store, part, session) if keeps_latest else Swept()
    erased = 0
    for name in (*(each.session for each in standing), *(() if keeps_latest else (session,))):
        if not part.dry_run:
            try:
                await store.erase_session(name, by=RETENTION, reason="retention")
            except SessionRunsError:
                return latest.plus(_keep(session, agent, f"a turn of {name} has just begun"))
            except NotFoundError:  # somebody else has erased it meanwhile
                continue
        erased += 1
    return replace(latest, erased=erased)


async def _keep_latest(store: Store, part: SweepSlice, session: str) -> Swept:
    if not await store.needs_trimming(session):
        return Swept()
    if part.dry_run:
        return Swept(trimmed=1)
    trimmed = await store.keep_latest(session)
    return Swept(trimmed=1, events=trimmed.events, artifacts=trimmed.artifacts)
