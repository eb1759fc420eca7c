"""Going on from a chosen place: a session from its end or an earlier step, or a new session from a step of another."""

from abc import ABC, abstractmethod
from typing import Unpack

from perdure.client.errors import RequestRefusedError, UnknownSessionError
from perdure.client.requests import Content, Files, ResumeOptions, read_content, session_id, turn_request, validate
from perdure.client.turn import Turn
from perdure.contracts.checkpoints import Checkpoint, ResumeFrom
from perdure.contracts.turns import TurnRequest
from perdure.store import Store
from perdure.store.errors import NotFoundError


class Checkpoints(ABC):
    """The part of the client that is about checkpoints."""

    @abstractmethod
    async def store(self) -> Store:
        """The transcript store."""

    @abstractmethod
    async def _start(self, session: str, request: TurnRequest, files: Files = ()) -> Turn:
        """Start a turn."""

    @abstractmethod
    async def _known_to_the_store(self, session: str) -> None:
        """See that the session exists."""

    async def resume(
        self,
        session: str,
        prompt: Content = "",
        *,
        at: int | None = None,
        turn: int | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Turn:
        """Go on with an idle session: from its end, from the end of a turn, or from step ``at`` of a turn.

        From an earlier place it is a rewind: what came after stays stored, and leaves the conversation. Without a
        prompt nothing is added, and the model answers what stands at the end: a message, or results of calls.

        Args:
            session: The session.
            prompt: What to go on with; as for :meth:`Client.start`, it may hold images and files.
            at: The step, by its number; its calls have their results, and never run again.
            turn: The turn of the step; None is the last. 0 is before the first message.
            options: As for a turn that is started.

        Raises:
            UnknownSessionError: There is no session of that id.
            SessionBusyError: A turn of the session runs.
            ServerUnreachableError: The server does not answer.
        """
        origin = validate(ResumeFrom, {"turn": turn, "step": at})
        text, files = await read_content(prompt)
        request = turn_request(session, {"resume_from": origin, "prompt": text, **options})
        await self._known_to_the_store(session)
        return await self._start(session, request, files)

    async def fork(
        self,
        session: str,
        prompt: Content = "",
        *,
        at: int | None = None,
        turn: int | None = None,
        into: str | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Turn:
        """Begin a new session from a step of another one, which stays as it is and may even run.

        Nothing is copied, so a fork costs the same wherever it begins. ``into`` is the new session's id; the other
        arguments are those of :meth:`resume`.

        Raises:
            UnknownSessionError: There is no session of that id.
            RequestRefusedError: The new session is to have the name of the old one.
            SessionBusyError: The new session exists, and a turn of it runs.
            ServerUnreachableError: The server does not answer.
        """
        if into == session:
            msg = f"session {session!r} cannot be forked into itself; resume it there, or name another id"
            raise RequestRefusedError(msg)
        origin = validate(ResumeFrom, {"session": session, "turn": turn, "step": at})
        new = session_id(session) if into is None else into
        text, files = await read_content(prompt)
        request = turn_request(new, {"resume_from": origin, "prompt": text, **options})
        await self._known_to_the_store(session)
        return await self._start(new, request, files)

    async def checkpoints(self, session: str) -> list[Checkpoint]:
        """Every step of the session as a place to go on from, in order; also those that a rewind left behind.

        Raises:
            UnknownSessionError: There is no session of that id in the store.
        """
        store = await self.store()
        try:
            return list(await store.checkpoints(session))
        except NotFoundError as error:
            raise UnknownSessionError(f"{error}; 'perdure list' names the sessions there are") from error
