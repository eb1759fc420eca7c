"""Start of a turn over HTTP: claimed for the tenant, once for each key, and answered when Temporal has it."""

import contextlib
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Annotated, assert_never

from fastapi import Header
from pydantic import BaseModel
from starlette.requests import Request

from perdure.client import (
    BlockedError,
    ClientError,
    RequestRefusedError,
    ReservedIdError,
    ResumeOptions,
    SessionBusyError,
    SessionErasedError,
    TurnOptions,
    UnknownAgentError,
    UnknownSessionError,
)
from perdure.client.asks import Ask, Compact, Fork, Resume, Send, Start
from perdure.client.requests import Content, SendOptions, session_id
from perdure.client.sessions import describe_missing_session
from perdure.contracts.errors import ReasonCode
from perdure.contracts.ids import slug_of
from perdure.contracts.sends import MAX_PROMPT_BYTES
from perdure.contracts.values import replace
from perdure.gateway.access import Gateway
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.limits import counted_from, too_many_running
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.views import Prompt, PromptText, TurnBody, TurnTicket
from perdure.store.admission import Admission, Asked, Blocked, Fresh, Known, OverLimit, Taken, Unseen
from perdure.store.tries import Try

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key with the same body gives the same answer; with another body it is refused",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A turn that is to be started.

    Attributes:
        action: The verb.
        ask: What is to be carried out; tenant, request id and a derived session come from the admission.
        body: All that was asked.
        key: The Idempotency-Key, or ours: see :class:`perdure.gateway.tries.Tries`.
        is_named: Whether the caller has chosen the id of a new session.
        refusal: Why it is not carried out, if it comes for the first time.
        attempt: The first try of a request without a key, which has one of ours then.
    """

    action: str
    ask: Ask
    body: BaseModel
    key: str | None
    request_id: str | None
    is_named: bool = False
    refusal: RequestRefusedError | None = None
    attempt: Try | None = None

    @property
    def has_name(self) -> bool:
        """Whether the session has a name, or gets one by its key: that of a first try is chosen at random."""
        return self.is_named or (self.key is not None and self.attempt is None)


def content_of(prompt: Prompt) -> Content:
    """A prompt of a request as the client takes it.

    Raises:
        ProblemError: It is too long.
    """
    texts = [prompt] if isinstance(prompt, str) else [part.text for part in prompt if isinstance(part, PromptText)]
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_PROMPT_BYTES:
        msg = (
            f"prompt: is {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}; let the agent read large input with a tool"
        )
        raise ProblemError(413, ReasonCode.REQUEST_TOO_LARGE, msg)
    return prompt if isinstance(prompt, str) else [part.model_dump(mode="json") for part in prompt]


def options_of(body: TurnBody, caller: Caller) -> dict[str, object]:
    """Options of a turn, as the client takes them; who asks is the token's to say, and so is for which tenant.

    Raises:
        ProblemError: It sets parameters of the model, and the token may not.
    """
    if body.generate_params and not caller.may(Scope.TUNE):
        msg = f"generate_params: the token {caller.name!r} lacks the scope 'tune'; use one that has it"
        raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
    return {**{name: getattr(body, name) for name in TurnBody.model_fields}, "by": caller.name}


async def start_once(gateway: Gateway, caller: Caller, request: Request, starting: Starting) -> TurnTicket:
    """Start the turn, or find that the same request has done so.

    Nothing is noted as answered before Temporal has the turn: after a crash in between, the retry starts it, by the
    same request id in the same session.

    Raises:
        ProblemError: The key came with another body, or the tenant has too many running jobs.
        BlockedError: An operator has blocked such turns.
        RequestRefusedError: ``refusal``, of a request that did not come before.
        UnknownSessionError: The session is another tenant's.
        ClientError: As the client raises it.
    """
    admission = await _admit(gateway, caller, starting)
    request.state.session = admission.session  # for the audit log
    match admission:
        case Known():
            return TurnTicket(**dict(admission.ticket))
        case Fresh():
            if starting.refusal is not None:
                raise starting.refusal
            return await _start(gateway, admission, starting)
        case Taken():
            raise _refusal(admission)
        case Blocked():
            raise BlockedError(admission.says)
        case OverLimit():
            raise too_many_running(admission.running)
        case Unseen():
            raise UnknownSessionError(describe_missing_session(admission.session))
        case _:
            assert_never(admission)


async def _admit(gateway: Gateway, caller: Caller, starting: Starting) -> Admission:
    """Have the store admit the turn, with what Temporal says of a session that the store may not know."""
    client, asked = gateway.client, _asked(caller, starting, most=gateway.limits.running)
    if asked.is_named and asked.session is not None:
        # A turn that was started past the gateway may be about to open it, and be another tenant's.
        asked = replace(asked, runs=await client.runs(asked.session))
    store = await client.store()
    admission = await store.admit(asked)
    if isinstance(admission, Unseen):
        elsewhere = None
        with contextlib.suppress(ClientError):
            elsewhere = await client.views.tenant_of_unopened(admission.session)
        admission = await store.admit(replace(asked, looked=True, elsewhere=elsewhere))
    return admission


def _asked(caller: Caller, starting: Starting, *, most: int) -> Asked:
    """Request to the store's admission."""
    ask, body = starting.ask, starting.body
    model = body.model if isinstance(body, TurnBody) else None
    asked = Asked(
        tenant=None if caller.sees_all else caller.tenant,
        action=starting.action,
        body=body.model_dump_json(exclude_unset=True),
        session=ask.session,
        key=starting.key or "",
        attempt=starting.attempt,
        request_id=starting.request_id or "",
        is_named=starting.is_named,
        model=model,
        most=most,
    )
    match ask:
        case Start():
            name = ask.session if starting.has_name else session_id(ask.agent)
            knows, stem = ask.options.get("definition") is not None, slug_of(ask.agent)
            return replace(asked, session=name, begins=True, stem=stem, agent=ask.agent, knows_agent=knows)
        case Fork():
            into = ask.into if starting.has_name else session_id(ask.session)
            return replace(asked, session=into, source=ask.session, begins=True, stem=slug_of(ask.session))
        case Send():
            return replace(asked, steers=ask.when_busy == "steer")
        case Resume() | Compact():
            return asked
        case _:
            assert_never(ask)


def _refusal(taken: Taken) -> Exception:
    """The error for a key or a session that the request may not have."""
    match taken.what:
        case "key":
            msg = "the Idempotency-Key came before, with another body; use a new one for another request"
            return ProblemError(409, ProblemCode.KEY_REUSED, msg)
        case "session":
            return UnknownSessionError(describe_missing_session(taken.session))
        case "erased":
            return SessionErasedError(taken.says)
        case "reserved":
            return ReservedIdError(taken.says)
        case _:
            assert_never(taken.what)


async def _start(gateway: Gateway, admission: Fresh, starting: Starting) -> TurnTicket:
    store = await gateway.client.store()
    try:
        async with counted_from(store, admission.session, admission.begun_at):
            turn = await gateway.client.carry_out(_complete(starting.ask, admission), admission)
    except SessionBusyError:
        if admission.claimed:  # a turn that was started past the gateway has this id, and no worker has opened it yet
            await store.release_session(admission.session, admission.tenant)
            raise UnknownSessionError(describe_missing_session(admission.session)) from None
        raise
    except (RequestRefusedError, UnknownAgentError):
        if admission.claimed:
            await store.release_session(admission.session, admission.tenant)
        raise
    key, number = starting.key or "", turn.turn
    if not key and (number is not None or admission.claimed):
        request_id, notice = turn.request_id, admission.notice
        return TurnTicket(session=admission.session, turn=number or 1, request_id=request_id, notice=notice)
    return TurnTicket(**dict(await store.note_outcome(admission, key, number, turn.request_id)))


def _complete(ask: Ask, admission: Fresh) -> Ask:
    """Complete a request with what the admission has found."""
    request_id = admission.request_id or None
    match ask:
        case Start():
            options = TurnOptions({**ask.options, "request_id": request_id, "tenant": admission.tenant})
            return replace_fields(ask, session=admission.session, options=options)
        case Fork():
            told = ResumeOptions({**ask.options, "request_id": request_id, "tenant": admission.tenant})
            return replace_fields(ask, into=admission.session, options=told)
        case Resume():
            told = ResumeOptions({**ask.options, "request_id": request_id, "tenant": admission.tenant})
            return replace_fields(ask, options=told)
        case Send():
            return replace_fields(ask, options=SendOptions({**ask.options, "request_id": request_id}))
        case Compact():
            return replace_fields(ask, request_id=request_id)
        case _:
            assert_never(ask)
