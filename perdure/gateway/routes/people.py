"""Replies to a turn that waits for them: answers, approvals and denials of people, results of callers.

An approval may stand for further calls: those that do are listed and revoked here.
"""

from typing import Annotated, ClassVar, Literal

from fastapi import Path
from pydantic import Field, model_validator

from perdure.client import RequestRefusedError
from perdure.client.requests import ResultMore
from perdure.client.standing_approvals import ApproveMore
from perdure.contracts.input_requests import InputReceipt, check_outcome
from perdure.contracts.standing_approvals import (
    REQUEST_ID_PATTERN,
    AlwaysScope,
    StandingApproval,
    Until,
    check_always,
)
from perdure.contracts.tool_choice import ToolChoice
from perdure.gateway.access import Approver, GatewayOf, OwnSession, Reader, Runner
from perdure.gateway.bodies import MEDIUM, Body, Json, Router
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.views import Page

router = Router(prefix="/v1", tags=["people"])

RequestId = Annotated[str, Path(min_length=1, max_length=200, pattern=REQUEST_ID_PATTERN)]


class AnswerBody(Body):
    """A reply to an input request; who replies is the token's name."""

    longest: ClassVar[int | None] = MEDIUM

    action: Literal["answer", "approve", "deny"]
    value: Json = Field(default=None, description="For answer: text, or JSON of at most 32 KiB")
    reason: str = Field(default="", max_length=1000, description="For deny; the model reads it. For always: why")
    digest: str = Field(default="", max_length=100, description="For approve: refuse a call with another digest")
    always: AlwaysScope | None = Field(
        default=None,
        description="For approve: it stands for every further call of the tool in the session, or with these arguments",
    )
    until: Until | None = Field(default=None, description="For always: when that ends, with a UTC offset")

    @model_validator(mode="after")
    def _fits_the_action(self) -> "AnswerBody":
        optional = ("value", "reason", "digest", "always", "until")
        given = {name for name in optional if getattr(self, name) not in (None, "")}
        approve = {"digest", "always", "until", "reason"}
        allowed = {"answer": {"value"}, "approve": approve, "deny": {"reason"}}[self.action]
        wrong, missing = sorted(given - allowed), self.action == "answer" and "value" not in self.model_fields_set
        if wrong or missing:
            said = f"takes no {wrong[0]}" if wrong else "needs a value"
            takes = "answer takes value, approve digest, always, until and reason, and deny reason"
            raise ValueError(f"{self.action} {said}; {takes}")
        if self.action == "approve":
            check_always(self.always, self.until, self.reason)
        return self


class ResultBody(Body):
    """Outcome of a tool call that the caller has run: a value or an error."""

    longest: ClassVar[int | None] = MEDIUM

    value: Json = Field(default=None, description="The result: text, or JSON of at most 32 KiB")
    error: str | None = Field(default=None, min_length=1, description="In its place: the text of an error")
    digest: str = Field(default="", max_length=100, description="Refuse a call with another digest")
    tool_choice: ToolChoice | None = Field(default=None, description="What the model has to call behind it")

    @model_validator(mode="after")
    def _has_one(self) -> "ResultBody":
        check_outcome(self.model_fields_set, self.error)
        return self


@router.post("/sessions/{session}/answers/{request}", operation_id="reply_to_request")
async def reply_to_request(
    caller: Approver,
    body: AnswerBody,
    session: OwnSession,
    request: RequestId,
    gateway: GatewayOf,
) -> InputReceipt:
    """Answer a question, approve a tool call, or deny either. The same reply twice is harmless.

    An approval with ``always`` stands for further calls until it is revoked.
    """
    client = gateway.client
    try:
        if body.action == "answer":
            return await client.answer(session, request, body.value, by=caller.name)
        if body.action == "approve":
            more = ApproveMore(digest=body.digest, always=body.always, until=body.until, reason=body.reason)
            return await client.approve(session, request, by=caller.name, **more)
        return await client.deny(session, request, by=caller.name, reason=body.reason)
    except RequestRefusedError as error:
        raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error


@router.get("/sessions/{session}/standing-approvals", operation_id="list_standing_approvals")
async def list_standing_approvals(
    _: Reader, session: OwnSession, gateway: GatewayOf, *, ended: bool = False
) -> Page[StandingApproval]:
    """List the standing approvals in force, the oldest first; with ``ended`` also revoked ones and those over."""
    return Page(items=await gateway.client.approvals.list(session, ended=ended))


@router.delete("/sessions/{session}/standing-approvals/{approval}", operation_id="revoke_standing_approval")
async def revoke_standing_approval(
    caller: Approver, session: OwnSession, approval: RequestId, gateway: GatewayOf
) -> StandingApproval:
    """Revoke a standing approval: from the model's next answer on, such calls ask again. Twice is harmless."""
    return await gateway.client.approvals.revoke(session, approval, by=caller.name)


@router.post("/sessions/{session}/results/{request}", operation_id="submit_result")
async def submit_result(
    caller: Runner, body: ResultBody, session: OwnSession, request: RequestId, gateway: GatewayOf
) -> InputReceipt:
    """Submit the result of a tool call that the caller runs, or its error. The same result twice is harmless."""
    more = ResultMore(error=body.error, by=caller.name, digest=body.digest, tool_choice=body.tool_choice)
    try:
        return await gateway.client.submit_result(session, request, body.value, **more)
    except RequestRefusedError as error:
        raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error
