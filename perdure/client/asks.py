"""Requests that begin a turn (start, send, resume, fork, compact), and the function that carries them out."""

from dataclasses import dataclass, field
from typing import assert_never

from perdure.client.errors import RequestRefusedError
from perdure.client.requests import Content, SendOptions, read_content, session_id, turn_request, validate
from perdure.client.sessions import Sessions
from perdure.client.turn import Turn
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.sends import WhenBusy
from perdure.contracts.turn_options import ResumeOptions, TurnOptions
from perdure.store.admission import Fresh

GUIDANCE = "what matters for the work ahead"
"""Guidance of a summary when the person who asks for it names nothing."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A turn of a session, or of a new one if none is named."""

    agent: str
    prompt: Content
    session: str | None = None
    options: TurnOptions = field(default_factory=TurnOptions)


@dataclass(frozen=True, kw_only=True)
class Send:
    """A message for a session."""

    session: str
    prompt: Content
    when_busy: WhenBusy = "queue"
    options: SendOptions = field(default_factory=SendOptions)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A turn that goes on from the end of an idle session, or from a step of it; of its agent, if none is named."""

    session: str
    prompt: Content = ""
    at: int | None = None
    turn: int | None = None
    agent: str | None = None
    options: ResumeOptions = field(default_factory=ResumeOptions)


@dataclass(frozen=True, kw_only=True)
class Fork:
    """The first turn of a new session, ``into``, that goes on from a step of another one."""

    session: str
    into: str | None = None
    prompt: Content = ""
    at: int | None = None
    turn: int | None = None
    options: ResumeOptions = field(default_factory=ResumeOptions)


@dataclass(frozen=True, kw_only=True)
class Compact:
    """A turn that summarises the conversation of an idle session."""

    session: str
    guidance: str = ""
    request_id: str | None = None


Ask = Start | Send | Resume | Fork | Compact


async def carry_out(sessions: Sessions, ask: Ask, admitted: Fresh | None = None) -> Turn:
    """Begin the turn. What the store has admitted already is not asked again; Temporal always is.

    Raises:
        RequestRefusedError: The request is not valid; nothing was sent.
        UnknownAgentError: Workers poll the task queue, and none has registered the agent.
        UnknownSessionError: There is no session of that id.
        SessionBusyError: Another turn of the session runs.
    """
    match ask:
        case Start():
            return await _start(sessions, ask, admitted)
        case Send():
            is_known, tenant = admitted is not None and admitted.is_stored, _tenant_of(admitted)
            return await sessions.send(
                ask.session, ask.prompt, ask.when_busy, is_known=is_known, tenant=tenant, **ask.options
            )
        case Resume():
            origin = validate(ResumeFrom, {"turn": ask.turn, "step": ask.at})
            return await _go_on(sessions, ask, ask.session, origin, admitted, ask.agent)
        case Fork():
            if ask.into == ask.session:
                msg = f"session {ask.session!r} cannot be forked into itself; resume it there, or name another id"
                raise RequestRefusedError(msg)
            origin = validate(ResumeFrom, {"session": ask.session, "turn": ask.turn, "step": ask.at})
            into = session_id(ask.session) if ask.into is None else ask.into
            return await _go_on(sessions, ask, into, origin, admitted)
        case Compact():
            about = {"prompt": ask.guidance or GUIDANCE, "request_id": ask.request_id, "compact": True}
            request = turn_request(ask.session, {**about})
            if admitted is None or not admitted.is_stored:
                await sessions.find_run(ask.session)
            known = _tenant_of(admitted)
            return await sessions.start(ask.session, request, is_claimed=admitted is not None, tenant=known)
        case _:
            assert_never(ask)


async def _start(sessions: Sessions, ask: Start, admitted: Fresh | None) -> Turn:
    session = session_id(ask.agent) if ask.session is None else ask.session
    text, files = await read_content(ask.prompt)
    request = turn_request(session, {"agent": ask.agent, "prompt": text, **ask.options})
    if admitted is not None:
        if admitted.strangers:
            await sessions.refuse_agent(ask.agent, admitted.strangers)
    elif request.definition is None:
        await sessions.check_agent(ask.agent, ask.session)
    priority, known = ask.options.get("priority"), _tenant_of(admitted)
    return await sessions.start(session, request, files, priority, is_claimed=admitted is not None, tenant=known)


async def _go_on(
    sessions: Sessions,
    ask: Resume | Fork,
    into: str,
    origin: ResumeFrom,
    admitted: Fresh | None,
    agent: str | None = None,
) -> Turn:
    """Start a turn of the session ``into`` that goes on from a step of the session that is named."""
    text, files = await read_content(ask.prompt)
    request = turn_request(into, {"agent": agent, "resume_from": origin, "prompt": text, **ask.options})
    if admitted is None or not admitted.is_stored:
        await sessions.check_known(ask.session)
    priority, known = ask.options.get("priority"), _tenant_of(admitted)
    return await sessions.start(into, request, files, priority, is_claimed=admitted is not None, tenant=known)


def _tenant_of(admitted: Fresh | None) -> str | None:
    """The tenant that the store has said; None if it was not asked."""
    return None if admitted is None else admitted.tenant
