"""The doors for people: the updates ``answer``, ``approve`` and ``deny``. What they write is heard by the turn."""

from collections.abc import Sequence

from temporalio import workflow

from perdure.contracts.errors import ReasonCode
from perdure.contracts.input_requests import AnswerRequest, ApproveRequest, DenyRequest, InputReceipt, Reply
from perdure.contracts.names import Update
from perdure.contracts.values import JsonValue
from perdure.engine import people
from perdure.engine.state import Mailbox
from perdure.workflows.inbox import Inbox, Opened, read_input, refuse


class Counter(Inbox):
    """Where people reply to the turn's input requests. The same reply twice is harmless, and has the same receipt."""

    @workflow.update(name=Update.ANSWER)
    async def answer(self, *given: JsonValue) -> InputReceipt:
        """Take an answer to a question."""
        return await self._take(_answer(given))

    @answer.validator
    def _check_answer(self, *given: JsonValue) -> None:
        self._check(_answer(given))

    @workflow.update(name=Update.APPROVE)
    async def approve(self, *given: JsonValue) -> InputReceipt:
        """Let a tool call run."""
        return await self._take(_approval(given))

    @approve.validator
    def _check_approve(self, *given: JsonValue) -> None:
        self._check(_approval(given))

    @workflow.update(name=Update.DENY)
    async def deny(self, *given: JsonValue) -> InputReceipt:
        """Refuse a tool call, or an answer: the model gets an error result."""
        return await self._take(_denial(given))

    @deny.validator
    def _check_deny(self, *given: JsonValue) -> None:
        self._check(_denial(given))

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


def _answer(given: Sequence[JsonValue]) -> Reply:
    send = '{"request": "id", "value": "the answer"}'
    return read_input(given, AnswerRequest, what="reply", send=send).reply()


def _approval(given: Sequence[JsonValue]) -> Reply:
    return read_input(given, ApproveRequest, what="reply", send='{"request": "id", "by": "who"}').reply()


def _denial(given: Sequence[JsonValue]) -> Reply:
    send = '{"request": "id", "by": "who", "reason": "why"}'
    return read_input(given, DenyRequest, what="reply", send=send).reply()
