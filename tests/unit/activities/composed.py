"""The activities of a worker over a store, composed as production composes them."""

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry

from perdure import Agent
from perdure.activities.agents import Elsewhere, Nowhere
from perdure.activities.models.pace import Gates
from perdure.activities.recordings import Recordings
from perdure.activities.telling.metrics import Metrics
from perdure.agents.data import InlineAgents
from perdure.lanes.bodies import Bodies
from perdure.store import Store
from perdure.worker.app import Activities, Parts, make_activities


def activities_over(
    store: Store,
    agents: Mapping[str, Agent],
    bodies: Bodies,
    elsewhere: Elsewhere | None = None,
    inline: InlineAgents | None = None,
) -> Activities:
    """The activities of a worker with these agents; ``elsewhere`` says what the other workers have."""
    parts = Parts(
        store=store,
        agents=agents,
        metrics=Metrics(CollectorRegistry()),
        bodies=bodies,
        secrets=frozenset(),
        search_attributes=False,
        elsewhere=elsewhere or Nowhere(),
        inline=inline,
    )
    recordings = Recordings(mode="off", folder=Path(), store=store, secrets=frozenset())
    return make_activities(parts, recordings, Gates(parts.metrics, room=1))
