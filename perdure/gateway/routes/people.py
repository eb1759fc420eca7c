"""What people say to a turn that waits for them: answers, approvals and denials."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field, model_validator

from perdure.client import RequestRefusedError
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.values import JsonValue
from perdure.gateway.access import Approver, GatewayOf, OwnSession
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.views import Body

router = APIRouter(prefix="/v1", tags=["people"])


class AnswerBody(Body):
    """A reply to an input request; who replies is the token's name."""

    action: Literal["answer", "approve", "deny"]
    value: JsonValue = Field(default=None, description="For answer: text, or JSON of at most 32 KiB")
    reason: str = Field(default="", max_length=1000, description="For deny; the model reads it")
    digest: str = Field(default="", max_length=100, description="For approve: refuse a call with another digest")

    @model_validator(mode="after")
    def _fits_the_action(self) -> "AnswerBody":
        given = {name for name in ("value", "reason", "digest") if getattr(self, name) not in (None, "")}
        allowed = {"answer": {"value"}, "approve": {"digest"}, "deny": {"reason"}}[self.action]
        wrong, missing = sorted(given - allowed), self.action == "answer" and "value" not in self.model_fields_set
        if wrong or missing:
            said = f"takes no {wrong[0]}" if wrong else "needs a value"
            msg = f"{self.action} {said}; answer takes value, approve digest, and deny reason"
            raise ValueError(msg)
        return self


@router.post("/sessions/{session}/answers/{request}", operation_id="reply_to_request")
async def reply_to_request(
    caller: Approver,
    body: AnswerBody,
    session: OwnSession,
    request: Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")],
    gateway: GatewayOf,
) -> InputReceipt:
    """Answer a question, approve a tool call, or deny either. The same reply twice is harmless."""
    client = gateway.client
    try:
        if body.action == "answer":
            return await client.answer(session, request, body.value, by=caller.name)
        if body.action == "approve":
            return await client.approve(session, request, by=caller.name, digest=body.digest)
        return await client.deny(session, request, by=caller.name, reason=body.reason)
    except RequestRefusedError as error:
        raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error
