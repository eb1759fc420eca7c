"""One generation: what the workflow asks for and what it gets back. The conversation is in neither."""

import hashlib
from decimal import Decimal

from perdure.contracts.budgets import Usage
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import SendRequest
from perdure.contracts.values import Value


class Generate(Value):
    """The input of the activity ``generate``.

    Attributes:
        parent: The step before; the conversation is what its chain of parents holds.
        call_ids: The calls whose results are new since the parent, in the order the model asked.
        failed: Results only the workflow knows, for calls whose activity could not record one.
        steered: Messages that came in while the turn ran.
        failures: Failed calls in a row before this one of which the model was told.
    """

    session: str
    turn: int
    step: int
    parent: str
    definition: str
    call_ids: tuple[str, ...] = ()
    failed: tuple[ToolOutcome, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    failures: int = 0

    def step_id(self) -> str:
        """The id of the step this call makes: 32 hexadecimal digits over all that determines its input.

        Results of calls never change once they are recorded, and the definition's hash covers the model: so an answer
        stored under this id answers exactly this call, and a second attempt returns it instead of paying again.
        """
        key = self.model_dump_json(include={"session", "turn", "step", "parent", "definition", "call_ids", "steered"})
        return hashlib.sha256(key.encode()).hexdigest()[:32]


class Generation(Value):
    """The result of the activity ``generate``; the answer itself stands in the store, under ``tip``.

    Attributes:
        preview: The first 1,000 characters of the text.
        cost_usd: None if the model's price is unknown.
        retry_seconds: Set when the call failed and the model is told so: the step holds the failure in place of an
            answer, and the next generation begins after so long.
    """

    tip: str
    preview: str = ""
    calls: tuple[PlannedCall, ...] = ()
    finish_reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    retry_seconds: float | None = None
