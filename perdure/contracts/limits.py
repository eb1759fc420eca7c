"""New limits for a turn that runs."""

from datetime import timedelta
from decimal import Decimal
from typing import TypedDict

from pydantic import ConfigDict, Field

from perdure.contracts.budgets import Dimensions


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


LIMITS = ("max_steps", *Dimensions.model_fields)
"""Names of the limits that can be set, in the order in which they are told."""


class ExtendRequest(Dimensions):
    """The input of the update ``extend``: new limits of the running turn, each as a whole; the others stay.

    Attributes:
        turn: A turn other than the named one is left as it is.
        end: Whether a limit may be one that is used up already, so that the turn ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: int | None = Field(default=None, ge=1)
    turn: int | None = Field(default=None, ge=1)
    end: bool = False

    @property
    def limits(self) -> dict[str, int | Decimal | timedelta]:
        """The limits that are set, by name."""
        named = {name: getattr(self, name) for name in LIMITS}
        return {name: limit for name, limit in named.items() if limit is not None}
