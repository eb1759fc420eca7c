"""The doors for people: the updates ``answer``, ``approve`` and ``deny``. What they write is heard by the turn."""

from collections.abc import Callable

from pydantic import ValidationError
from temporalio import workflow

from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import Update
from perdure.contracts.people import AnswerRequest, ApproveRequest, DenyRequest, InputReceipt, Reply
from perdure.contracts.values import JsonValue
from perdure.engine import people
from perdure.engine.state import Mailbox
from perdure.workflows.inbox import Inbox, Opened, one_line, refuse


class Counter(Inbox):
    """Where people reply to the turn's input requests. The same reply twice is harmless, and has the same receipt."""

    @workflow.update(name=Update.ANSWER)
    async def answer(self, request: JsonValue = None) -> InputReceipt:
        """Take an answer to a question."""
        return await self._take(_answer(request))

    @answer.validator
    def _check_answer(self, request: JsonValue = None) -> None:
        self._check(_answer(request))

    @workflow.update(name=Update.APPROVE)
    async def approve(self, request: JsonValue = None) -> InputReceipt:
        """Let a tool call run."""
        return await self._take(_approval(request))

    @approve.validator
    def _check_approve(self, request: JsonValue = None) -> None:
        self._check(_approval(request))

    @workflow.update(name=Update.DENY)
    async def deny(self, request: JsonValue = None) -> InputReceipt:
        """Refuse a tool call, or an answer: the model gets an error result."""
        return await self._take(_denial(request))

    @deny.validator
    def _check_deny(self, request: JsonValue = None) -> None:
        self._check(_denial(request))

    def _check(self, reply: Reply) -> None:
        """Refuse before anything is written, as far as it can be told: a turn that rotated may not be set up yet."""
        if self.state is not None:
            self._settled_by(reply)

    async def _take(self, reply: Reply) -> InputReceipt:
        await workflow.wait_condition(lambda: self.opened is not None)
        if self.state is None or not isinstance(self.opened, Opened):
            raise refuse(ReasonCode.REQUEST_INVALID, f"nothing waits for {reply.request!r}")
        self.mail, receipt = self._settled_by(reply)
        return receipt

    def _settled_by(self, reply: Reply) -> tuple[Mailbox, InputReceipt]:
        assert self.state is not None, "the turn is open"  # noqa: S101 - narrows the type
        try:
            return people.settle(self.state, self.mail, reply, workflow.now())
        except people.TooEarlyError as error:
            raise refuse(ReasonCode.REQUEST_TOO_EARLY, str(error)) from None
        except people.ReplyError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None


def _answer(request: JsonValue) -> Reply:
    return _read(lambda: AnswerRequest.model_validate(request).reply(), '{"request": "id", "value": "the answer"}')


def _approval(request: JsonValue) -> Reply:
    return _read(lambda: ApproveRequest.model_validate(request).reply(), '{"request": "id", "by": "who"}')


def _denial(request: JsonValue) -> Reply:
    return _read(lambda: DenyRequest.model_validate(request).reply(), '{"request": "id", "by": "who", "reason": "why"}')


def _read(parse: Callable[[], Reply], example: str) -> Reply:
    try:
        return parse()
    except ValidationError as error:
        message = f"the input is no reply: {one_line(error)}; send {example}"
        raise refuse(ReasonCode.REQUEST_INVALID, message) from None
