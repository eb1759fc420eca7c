"""The store's public face: each method is one transaction, run on a thread of the store's own.

A method whose caller is cancelled still ends its transaction; every write is therefore harmless when it is repeated.

Long, because it is the store's whole face: each operation has its method here, with what it promises.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.events import Envelope, Event, NewEvent
from perdure.contracts.generations import Generate
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.messages import Message, ToolMessage
from perdure.contracts.turns import CommitTurn, OpenTurn
from perdure.store import checkpoints, commit_turn, queries, session_lock, steps, tool_calls
from perdure.store import open_turn as openings
from perdure.store.database import (
    POSTGRESQL_CONNECTIONS,
    SQLITE_READERS,
    WRITES,
    Address,
    SqliteFile,
    connect,
    translated,
)
from perdure.store.errors import OtherStoreError
from perdure.store.migrate import prepare
from perdure.store.records import (
    Artifact,
    Begun,
    Claim,
    Committed,
    LedgerCall,
    Opened,
    PeopleWaitedFor,
    RegisteredAgent,
    SessionBefore,
    SessionFilter,
    SessionRecord,
    StepRecord,
    TurnGlance,
    TurnRecord,
)
from perdure.store.tool_calls import CallKey

T = TypeVar("T")

Observe = Callable[[str, float], None]
"""Takes the name of an operation and the seconds it took."""

Listen = Callable[[Sequence[Event]], None]
"""Takes events that were written, each once; called on a thread of the store."""


class Store:
    """A transcript store. Every method may raise :class:`StoreUnavailableError`; waiting may then help."""

    def __init__(self, url: str, observe: Observe | None = None) -> None:
        """Prepare for the address without opening it; ``Store.open`` is what callers use.

        Raises:
            StoreError: The address is none, or its driver is missing.
        """
        self._id = ""
        self._observe = observe
        self._listen: Listen | None = None
        self._address = Address(url)
        self._engine = connect(self._address)
        self._file = SqliteFile(self._address.file) if self._address.file and self._address.has_plain_file else None
        self._writing = self._engine.execution_options(**{WRITES: True})
        self._reading = self._engine
        if self._address.sqlite:
            # One thread writes, so writers of this process queue in order instead of polling for the file's lock.
            self._writers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perdure-store-write")
            self._readers = self._writers
            if not self._address.in_memory:
                self._readers = ThreadPoolExecutor(SQLITE_READERS, thread_name_prefix="perdure-store-read")
        else:
            # A read is one statement, or of rows that never change: it needs no transaction around it.
            self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._writers = ThreadPoolExecutor(POSTGRESQL_CONNECTIONS, thread_name_prefix="perdure-store")
            self._readers = self._writers

    @classmethod
    async def open(cls, url: str, *, upgrade: bool = False, observe: Observe | None = None) -> Self:
        """Open the store at ``sqlite:///FILE`` or ``postgresql://…``; ``upgrade`` creates and migrates its tables.

        ``observe`` is told the name and the seconds of each operation, its wait for a thread included.

        Raises:
            StoreUnavailableError: It cannot be reached, or is a missing file that may not be created.
            StoreVersionError: Its schema is not this release's.
        """
        store = cls(url, observe)
        try:
            await store._on(store._writers, lambda: store._prepare(upgrade=upgrade))
        except BaseException:
            await store.close()
            raise
        return store

    def listen(self, listener: Listen) -> None:
        """Tell the listener, and no other any more, which events this store writes, once they are committed."""
        self._listen = listener

    def _prepare(self, *, upgrade: bool) -> None:
        prepare(self._engine, self._address, upgrade=upgrade)
        self._id = self._read_once(queries.store_id)
        if self._file is not None:
            self._file.require_same()
            if upgrade:
                self._file.shorten_log(self._engine)

    @property
    def id(self) -> str:
        """The store's own id, as it was when this process opened it; a copy of a database keeps it."""
        return self._id

    @property
    def public_url(self) -> str:
        """The store's address without secrets, with an absolute path if it is a file."""
        return self._address.public_url

    async def require(self, wanted: str) -> None:
        """Refuse to work for a turn that lives in another store; a turn that names none may live in any.

        Raises:
            OtherStoreError: This is not the store of that id.
        """
        if wanted in {"", self._id}:
            return
        self._id = await self._read("store_id", queries.store_id)  # the database may have been exchanged meanwhile
        if wanted != self._id:
            msg = (
                f"this worker looks at the store {self._address} ({self._id}), the turn lives in the store {wanted}; "
                "start this worker with the PERDURE_STORE_URL of the others, or, if the turn's store is gone for good, "
                "terminate the turn's workflow"
            )
            raise OtherStoreError(msg)

    async def close(self) -> None:
        """Wait for running transactions and close all connections."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def __aenter__(self) -> Self:
        """The store itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        def translating() -> T:
            with translated(self._address):
                return work()

        return await asyncio.get_running_loop().run_in_executor(threads, translating)

    async def _write(self, operation: str, work: Callable[[Connection], T]) -> T:
        with self._timed(operation):
            return await self._on(self._writers, lambda: self._transaction(work))

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            if self._observe is not None:
                self._observe(operation, time.monotonic() - began)

    async def _read(self, operation: str, work: Callable[[Connection], T]) -> T:
        def reading() -> T:
            try:
                return self._read_once(work)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return self._read_once(work)

        with self._timed(operation):
            return await self._on(self._readers, reading)

    def _read_once(self, work: Callable[[Connection], T]) -> T:
        with self._reading.connect() as connection:
            return work(connection)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        committing = False

        def once() -> T:
            nonlocal committing
            written: list[Event] = []
            with self._writing.begin() as connection:
                connection.info[session_lock.WRITTEN] = (
                    written  # of a connection that lives on: an aborted one left its own
                )
                if self._file is not None:
                    self._file.require_same()
                result = work(connection)
                if self._file is not None:
                    self._file.note_wiped(connection)
                committing = True
            if written and self._listen is not None:
                self._listen(written)
            if self._file is not None:
                self._file.shorten_log(self._engine)
            return result

        try:
            return once()
        except DBAPIError as error:
            # A pooled connection may have died since its last use; this is found out by using it, not by asking first.
            # When the commit itself was cut off nobody knows whether it counts, and the caller decides.
            if committing or not error.connection_invalidated:
                raise
            return once()

    async def register_agents(self, definitions: Sequence[AgentDefinition]) -> None:
        """Note the agents a worker has loaded; the last one of a name counts."""
        await self._write("register_agents", lambda connection: openings.register_agents(connection, definitions))

    async def agents(self) -> tuple[RegisteredAgent, ...]:
        """The agents that workers have loaded, by name."""
        return await self._read("agents", openings.agents)

    async def definition(self, digest: str) -> AgentDefinition:
        """A frozen definition.

        Raises:
            NotFoundError: No turn was opened with it and no worker has loaded it.
        """
        return await self._read("definition", lambda connection: openings.definition(connection, digest))

    async def session_before(self, opening: OpenTurn) -> SessionBefore:
        """Where the session stands in which the turn is about to open, and what the turn goes on from."""
        return await self._read("session_before", lambda connection: openings.session_before(connection, opening))

    async def open_turn(
        self, opening: OpenTurn, definition: AgentDefinition, *, context_window: int | None = None
    ) -> Opened:
        """Begin the session's next turn; the same request id gives the turn it has begun before.

        A turn whose workflow was terminated is closed first, with the reason ``runtime.turn_closed``.

        Raises:
            TurnMismatchError: The caller expected another turn, or a newer run holds the session.
            NotFoundError: There is no checkpoint of which the request says that it goes on from it.
            ResumeRefusedError: The session cannot go on from it.
        """
        return await self._write(
            "open_turn", lambda connection: openings.open_turn(connection, opening, definition, context_window)
        )

    async def begin_generation(self, request: Generate, events: Sequence[NewEvent]) -> Begun:
        """The answer that is stored for this request, or the results it adds to the conversation.

        Calls that have no result by now get an error result; ``events`` are written unless the answer is there.

        Raises:
            NotFoundError: There is no such session, turn or tool call.
            TurnEndedError: The turn has ended.
        """
        return await self._write(
            "begin_generation", lambda connection: steps.begin_generation(connection, request, events)
        )

    async def finish_generation(
        self, step: StepRecord, calls: Sequence[LedgerCall], events: Sequence[NewEvent]
    ) -> StepRecord:
        """Store an answer and move the tip; the answer that is stored under this id already wins.

        Raises:
            NotFoundError: There is no such session or turn.
            TurnEndedError: The turn has ended.
        """
        return await self._write(
            "finish_generation", lambda connection: steps.finish_generation(connection, step, calls, events)
        )

    async def finish_compaction(self, step: StepRecord, events: Sequence[NewEvent]) -> StepRecord:
        """Store a summary in place of the messages before it and move the tip; the stored one wins.

        Raises:
            NotFoundError: There is no such session or turn.
            TurnEndedError: The turn has ended.
        """
        return await self._write(
            "finish_compaction", lambda connection: steps.finish_compaction(connection, step, events)
        )

    async def step(self, step: str) -> StepRecord | None:
        """The step of that id; None if there is none."""
        return await self._read("step", lambda connection: steps.find_step(connection, step))

    async def conversation(self, tip: str) -> tuple[Message, ...]:
        """What a model reads at the step: all messages from the root, or from the last compaction.

        Raises:
            NotFoundError: There is no such step.
        """
        return await self._read("conversation", lambda connection: steps.conversation(connection, tip))

    async def append_events(self, session: str, events: Sequence[NewEvent]) -> None:
        """Write events of the open turn; an event whose key is in the log already is left out.

        Raises:
            NotFoundError: There is no such session or turn.
            TurnEndedError: The turn has ended.
        """
        await self._write("append_events", lambda connection: session_lock.append_events(connection, session, events))

    async def retries(self, session: str, turn: int, step: int) -> tuple[Envelope, ...]:
        """The retries of one generation, in order."""
        return await self._read("retries", lambda connection: session_lock.retries(connection, session, turn, step))

    async def claim_call(
        self,
        *,
        session: str,
        turn: int,
        call_id: str,
        claimant: str,
        lost: str | None = None,
        events: Sequence[NewEvent],
    ) -> Claim:
        """Ask for a call, and write the events if it is given.

        The same claimant may ask again. A call that another one holds is uncertain, and nothing is written; it is given
        to whoever names that claimant as ``lost``, if it still is the one that holds it.

        Raises:
            NotFoundError: There is no such session, turn or tool call.
            TurnEndedError: The turn has ended, or a later attempt has the call.
        """
        key = CallKey(session=session, turn=turn, call_id=call_id)
        return await self._write(
            "claim_call",
            lambda connection: tool_calls.claim_call(connection, key, claimant=claimant, lost=lost, events=events),
        )

    async def finish_call(  # noqa: PLR0913 - the ledger's key is three of them
        self,
        *,
        session: str,
        turn: int,
        call_id: str,
        claimant: str,
        message: ToolMessage | None,
        events: Sequence[NewEvent],
        artifacts: Sequence[Artifact] = (),
    ) -> bool:
        """Record a call's result, or with None a background delegate's end; False if the claimant does not hold it."""
        key = CallKey(session=session, turn=turn, call_id=call_id)
        return await self._write(
            "finish_call",
            lambda connection: tool_calls.finish_call(
                connection, key, claimant=claimant, message=message, events=events, artifacts=artifacts
            ),
        )

    async def keep_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        """Keep what people send with their messages, before these are sent; what is there stays."""

        def write(connection: Connection) -> None:
            for artifact in artifacts:
                key = CallKey(session=artifact.session, turn=0, call_id="")
                tool_calls.insert_artifact(connection, key, artifact, datetime.now(UTC))

        await self._write("keep_artifacts", write)

    async def report_progress(self, session: str, call_id: str, claimant: str, event: NewEvent) -> bool:
        """Write how far a call is; False, and nothing is written, if the claimant does not hold the call any more."""
        key = CallKey(session=session, turn=event.turn, call_id=call_id)
        return await self._write(
            "report_progress", lambda connection: tool_calls.report_progress(connection, key, claimant, event)
        )

    async def commit_turn(self, commit: CommitTurn) -> Committed:
        """End a turn; one that has ended gives its recorded result.

        Raises:
            NotFoundError: There is no such session or turn.
        """
        return await self._write("commit_turn", lambda connection: commit_turn.commit_turn(connection, commit))

    async def session(self, session: str) -> SessionRecord:
        """A session and where it stands.

        Raises:
            NotFoundError: There is no such session.
        """
        return await self._read("session", lambda connection: queries.session(connection, session))

    async def sessions(
        self, *, limit: int = 50, only: Collection[str] | None = None, **wanted: Unpack[SessionFilter]
    ) -> tuple[tuple[SessionRecord, TurnRecord], ...]:
        """Sessions with their last turns, those that began last first; ``only`` these, if some are named."""
        return await self._read("sessions", lambda connection: queries.sessions(connection, wanted, limit, only))

    async def glances(self, turns: Mapping[str, int]) -> dict[str, TurnGlance]:
        """What a list shows of these turns, one of each session."""
        return await self._read("glances", lambda connection: queries.glances(connection, turns))

    async def open_runs(self, sessions: Collection[str] | None = None) -> dict[str, datetime]:
        """When the first runs of open turns began, by session: of these sessions, or of all."""
        return await self._read("open_runs", lambda connection: queries.open_runs(connection, sessions))

    async def people_waited_for(self, without: Collection[str] = ()) -> PeopleWaitedFor:
        """How many turns wait for a person now, and since when; those of the sessions ``without`` are not counted."""
        return await self._read("people_waited_for", lambda connection: queries.people_waited_for(connection, without))

    async def open_requests(self, session: str | None = None, agent: str | None = None) -> tuple[OpenRequest, ...]:
        """The input requests that nobody has decided about, of this session and of turns of this agent only."""
        return await self._read("open_requests", lambda connection: queries.open_requests(connection, session, agent))

    async def turn(self, session: str, turn: int) -> TurnRecord:
        """A turn by its number.

        Raises:
            NotFoundError: There is no such turn.
        """
        return await self._read("turn", lambda connection: queries.turn(connection, session, turn))

    async def turn_by_request(self, session: str, request_id: str) -> TurnRecord | None:
        """The turn that a request has begun, if it has."""
        return await self._read(
            "turn_by_request", lambda connection: queries.turn_by_request(connection, session, request_id)
        )

    async def turns(self, session: str) -> tuple[TurnRecord, ...]:
        """All turns of a session, in order."""
        return await self._read("turns", lambda connection: queries.turns(connection, session))

    async def events(self, session: str, *, after: int = 0, limit: int = 500) -> tuple[Envelope, ...]:
        """Events after a sequence number, in order; none for a session that nobody has begun."""
        return await self._read("events", lambda connection: queries.events(connection, session, after, limit))

    async def events_by_key(self, session: str, keys: Sequence[str]) -> tuple[Envelope, ...]:
        """The events that were written under these keys, in order."""
        return await self._read("events_by_key", lambda connection: queries.events_by_key(connection, session, keys))

    async def transcript(self, session: str, *, turn: int | None = None) -> tuple[Message, ...]:
        """Every message of the conversation as it is now, or as it was at the end of a turn.

        Compactions change what models read, not what is told here.

        Raises:
            NotFoundError: There is no such session or turn.
        """
        return await self._read("transcript", lambda connection: queries.transcript(connection, session, turn))

    async def steps(self, session: str) -> tuple[StepRecord, ...]:
        """All steps of a session, also those that no conversation reaches any more."""
        return await self._read("steps", lambda connection: queries.steps(connection, session))

    async def checkpoints(self, session: str) -> tuple[Checkpoint, ...]:
        """Every step of a session as a place to go on from, in order, also those that a rewind left behind.

        Raises:
            NotFoundError: There is no such session.
        """
        return await self._read("checkpoints", lambda connection: checkpoints.checkpoints(connection, session))

    async def artifact(self, artifact: str, *, session: str | None = None) -> Artifact:
        """A large output, an image or a file; of that session, if one is named.

        Raises:
            NotFoundError: There is no such artifact.
        """
        return await self._read("artifact", lambda connection: queries.artifact(connection, artifact, session))

    async def holds_call(self, session: str, turn: int, call_id: str, claimant: str) -> bool:
        """Whether the claimant holds a call that has no result yet."""
        key = CallKey(session=session, turn=turn, call_id=call_id)
        return await self._read("holds_call", lambda connection: tool_calls.holds_call(connection, key, claimant))

    async def result_of_call(self, session: str, turn: int, call_id: str) -> ToolMessage | None:
        """The result of a tool call; None while it has none."""
        key = CallKey(session=session, turn=turn, call_id=call_id)
        return await self._read("result_of_call", lambda connection: tool_calls.result_of_call(connection, key))
