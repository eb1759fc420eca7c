"""What asks for a pause of a session, or for its end, and what comes of that."""

from pydantic import ConfigDict

from perdure.contracts.turns import Label
from perdure.contracts.values import PublicValue, Value


class PauseRequest(Value):
    """The input of the updates ``pause`` and ``unpause``.

    Attributes:
        reason: Why; people who look at the session read it.
        by: Who says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Label = ""
    by: Label = ""


class PauseReceipt(PublicValue):
    """The result of the updates ``pause`` and ``unpause``.

    Attributes:
        turn: The turn that runs.
        changed: False if the session was paused already, or was not.
    """

    turn: int
    changed: bool
