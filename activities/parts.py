"""The parts of a worker that its activities share: one value, handed whole to each of them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from perdure.activities.agents import Definitions, Elsewhere, Nowhere, Roster, TurnContexts
from perdure.activities.mcp.servers import McpServers
from perdure.activities.models.given_way import GivenWay
from perdure.activities.models.pace import Gates
from perdure.activities.models.provider_messages import Contents
from perdure.activities.recordings import Recordings
from perdure.activities.telling.metrics import Metrics
from perdure.activities.telling.notifications import Notifications
from perdure.activities.telling.traces import Traces
from perdure.agents.agent import Agent
from perdure.agents.data import InlineAgents
from perdure.lanes.bodies import Bodies
from perdure.store import Store


@dataclass(frozen=True, kw_only=True)
class ActivityParts:
    """Parts that the activities of one worker share.

    Attributes:
        inline: Agents of start requests; None refuses them.
        secrets: Secret values that no text may show.
        seeds: Whether turns that this worker opens have a seed.
        monotonic: Clock of the time that model calls take, in seconds.
        elsewhere: What other workers that poll tell of themselves.
        given_way: Limits that refusals of providers have taught, by session.
    """

    store: Store
    agents: Mapping[str, Agent]
    inline: InlineAgents | None
    definitions: Definitions
    contexts: TurnContexts
    bodies: Bodies
    mcp: McpServers
    metrics: Metrics
    recordings: Recordings
    gates: Gates
    notifications: Notifications
    traces: Traces
    secrets: frozenset[str]
    seeds: bool = True
    monotonic: Callable[[], float] = time.monotonic
    elsewhere: Elsewhere = field(default_factory=Nowhere)
    given_way: GivenWay = field(default_factory=GivenWay)

    @cached_property
    def contents(self) -> Contents:
        """The pictures and files of messages."""
        return Contents(self.store)

    @cached_property
    def roster(self) -> Roster:
        """Agents by their definitions; an agent of a start request is made once."""
        return Roster(self.agents, self.inline, self.definitions, self.elsewhere)
