"""New limits for a turn that runs."""

from datetime import timedelta
from decimal import Decimal
from typing import TypedDict

from pydantic import ConfigDict, Field

from perdure.contracts.budgets import LONGEST_TURN, MOST_USD
from perdure.contracts.values import Value


class Limits(TypedDict, total=False):
    """What may be set; each is a whole limit and not what is added to one. ``seconds`` count from the turn's start."""

    max_steps: int
    cost_usd: Decimal | float | str
    llm_calls: int
    tool_calls: int
    behavior_calls: int
    events: int
    seconds: timedelta | float
    patches: int
    depth: int


class ExtendRequest(Value):
    """The input of the update ``extend``: new limits of the running turn, each as a whole; the others stay.

    Attributes:
        turn: A turn other than the named one is left as it is.
        end: Whether a limit may be one that is used up already, so that the turn ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: int | None = Field(default=None, ge=1)
    cost_usd: Decimal | None = Field(default=None, gt=0, lt=MOST_USD)
    llm_calls: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=0)
    behavior_calls: int | None = Field(default=None, ge=0)
    events: int | None = Field(default=None, ge=1)
    seconds: timedelta | None = Field(default=None, gt=timedelta(0), le=LONGEST_TURN)
    patches: int | None = Field(default=None, ge=0)
    depth: int | None = Field(default=None, ge=0)
    turn: int | None = Field(default=None, ge=1)
    end: bool = False

    @property
    def limits(self) -> dict[str, int | Decimal | timedelta]:
        """The limits that are set, by name."""
        return {name: value for name, value in self if name not in {"turn", "end"} and value is not None}
