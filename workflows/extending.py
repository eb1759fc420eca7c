"""The door for other limits: the update ``extend``. They hold from the turn's next action on; its time at once."""

from collections.abc import Sequence

from temporalio import workflow

from perdure.contracts.budgets import LIMITS, ExtendRequest
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import Update
from perdure.contracts.turns import BudgetStatus
from perdure.contracts.values import JsonValue
from perdure.engine.extending import ExtendError, extended
from perdure.engine.state import TurnState
from perdure.workflows.deadline import Deadline
from perdure.workflows.inbox import budget_of, or_nothing, read_input, refuse
from perdure.workflows.people import Counter


class Extending(Counter):
    """Where the limits of the running turn are changed. The same limits twice are harmless."""

    def __init__(self) -> None:
        super().__init__()
        self._deadline = Deadline()

    @workflow.update(name=Update.EXTEND)
    async def extend(self, *given: JsonValue) -> BudgetStatus:
        """Set limits; those that are not named stay."""
        asked = _parse(given)
        await workflow.wait_condition(lambda: self.opened is not None)
        # No await stands in between: whatever the turn does with its state, it does it with this one.
        extended_turn = self._extended(asked)
        assert self.turn is not None, "the turn is open"  # noqa: S101 - narrows the type
        self.turn.state = extended_turn
        self._deadline.changed(extended_turn)
        return budget_of(extended_turn)

    @extend.validator
    def _check_extend(self, *given: JsonValue) -> None:
        asked = _parse(given)
        if self.state is not None:
            self._extended(asked)

    def _extended(self, asked: ExtendRequest) -> TurnState:
        if self.state is None:
            raise refuse(ReasonCode.REQUEST_INVALID, "no turn runs whose limits could be changed")
        if self._deadline.past or self.mail.cancel is not None:
            raise refuse(
                ReasonCode.REQUEST_INVALID, f"turn {self.state.turn} is ending; the next message begins another"
            )
        try:
            return extended(self.state, asked, workflow.now())
        except ExtendError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None


def _parse(given: Sequence[JsonValue]) -> ExtendRequest:
    known = ", ".join(LIMITS)
    send = f'{{"max_steps": 50}}; the limits are {known}'
    asked = read_input(or_nothing(given), ExtendRequest, what="change of limits", send=send)
    if not asked.limits:
        message = f'name at least one limit, as in {{"max_steps": 50}}; there are {known}'
        raise refuse(ReasonCode.REQUEST_INVALID, message)
    return asked
