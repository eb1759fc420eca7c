"""Settings of a worker reach its activities, also where something else than ``perdure.worker`` makes the parts."""

from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from perdure.activities.telling.metrics import Metrics
from perdure.contracts.webhooks import Egress
from perdure.lanes.bodies import Bodies
from perdure.settings import Settings
from perdure.worker import app
from perdure.worker.app import Parts


@pytest.mark.parametrize(
    ("variable", "value", "part", "settled"),
    [
        ("PERDURE_WEBHOOK_ALLOW", "hooks.example.org", "egress", Egress(("hooks.example.org",))),
        ("PERDURE_FAIL_WORKFLOWS", "1", "fail_workflows", True),
        ("PERDURE_TENANT_MAX_RUNNING", "acme=2", "tenant_max_running", {"acme": 2}),
    ],
)
def test_a_setting_is_heeded_whoever_makes_the_parts(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, part: str, settled: Any
) -> None:
    monkeypatch.setenv(variable, value)
    made = Mock()
    monkeypatch.setattr(app, "make_activities", made)
    bodies = Bodies(1)
    parts = Parts(
        store=Mock(),
        agents={},
        metrics=Metrics(CollectorRegistry()),
        bodies=bodies,
        secrets=frozenset(),
        search_attributes=True,
    )
    bodies.close()
    app._make_activities(Settings(), parts)
    (given, *_), _ = made.call_args
    assert getattr(given, part) == settled
