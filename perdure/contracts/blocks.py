"""Blocks: which turns an operator refuses, by agent, tenant and model, and what stands in the audit trail."""

from collections.abc import Collection
from datetime import datetime
from typing import Self

from pydantic import Field, model_validator

from perdure.contracts.values import Label, PublicValue, Value

BLOCK_ID_PATTERN = r"^bl_[0-9a-f]{16}$"


class BlockRequest(Value):
    """A block to set; a turn must match all given filters.

    Attributes:
        agent: Only turns of this agent.
        tenant: Only turns of this tenant; empty is the default tenant.
        model: Only turns that may call this model, as the agent names it.
        everything: Whether the block is for all turns; it excludes filters.
        reason: Why; shown to everyone whose turn is refused.
        by: Who sets the block.
    """

    agent: Label | None = Field(default=None, min_length=1)
    tenant: Label | None = None
    model: Label | None = Field(default=None, min_length=1)
    everything: bool = False
    reason: Label = ""
    by: Label = ""

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        has_filter = any(value is not None for value in (self.agent, self.tenant, self.model))
        if not has_filter and not self.everything:
            msg = "name an agent, a tenant or a model, or set everything"
            raise ValueError(msg)
        if has_filter and self.everything:
            msg = "everything excludes filters; leave agent, tenant and model out, or leave everything out"
            raise ValueError(msg)
        return self


class Block(PublicValue):
    """A block; it is in force until it is lifted, and its row stays.

    Attributes:
        id: Id of the block, with which it is lifted.
        agent: The agent whose turns are refused; None for any.
        tenant: The tenant whose turns are refused; None for any, empty for the default tenant.
        model: The model whose turns are refused; None for any.
        reason: Why.
        by: Who asked for it.
        created_at: Since when it is in force.
        lifted_at: Until when it was; None while it is in force.
        lifted_by: Who lifted it.
    """

    id: str
    agent: str | None = None
    tenant: str | None = None
    model: str | None = None
    reason: str = ""
    by: str = ""
    created_at: datetime
    lifted_at: datetime | None = None
    lifted_by: str = ""

    def fits(self, agent: str, tenants: Collection[str], models: Collection[str]) -> bool:
        """Whether a turn of that agent, for one of these tenants, that may call these models is meant."""
        return (
            self.agent in {None, agent}
            and (self.tenant is None or self.tenant in tenants)
            and (self.model is None or self.model in models)
        )

    @property
    def scope(self) -> str:
        """Which turns are meant, in words."""
        parts = [
            *([f"agent {self.agent}"] if self.agent is not None else []),
            *([f"tenant {self.tenant or 'default'}"] if self.tenant is not None else []),
            *([f"model {self.model}"] if self.model is not None else []),
        ]
        return ", ".join(parts) or "everything"

    @property
    def in_words(self) -> str:
        """Block in words: scope, author, time and reason."""
        why = f": {self.reason}" if self.reason else ""
        since = self.created_at.isoformat(timespec="seconds")
        return f"new turns of {self.scope} are blocked by {self.by or 'an operator'} since {since}{why}"

    def describe(self) -> str:
        """Describe why a turn is refused, and how the block is lifted."""
        return f"{self.in_words}; lift the block with 'perdure unblock {self.id}', then send this again"
