"""What the workflow asks for is what the worker offers: names, types, handlers and search attributes."""

import inspect
import typing
from collections.abc import Callable
from typing import Any, cast

import pytest
import temporalio.activity
import temporalio.client
import temporalio.workflow
from prometheus_client import CollectorRegistry
from temporalio.common import SearchAttributeKey
from temporalio.worker import Worker

from perdure.activities.telling.metrics import Metrics
from perdure.contracts.names import (
    AGENT_TURN,
    DEFAULT_TASK_QUEUE,
    KNOCK,
    NOTIFY,
    SEARCH_ATTRIBUTE_TYPES,
    SWEEP,
    Activity,
    Query,
    SearchAttribute,
    Signal,
    Update,
)
from perdure.lanes.bodies import Bodies
from perdure.settings import Settings
from perdure.store import Store
from perdure.worker.app import Parts, build_workers
from perdure.workflows import stubs, visibility
from perdure.workflows.agent_turn import AgentTurn

pytestmark = pytest.mark.deep

Function = Callable[..., Any]


@pytest.fixture(scope="module")
async def worker(temporal: temporalio.client.Client) -> Worker:
    """A worker as it is composed for production; it never polls."""
    bodies = Bodies(1)
    parts = Parts(
        store=Store("sqlite:///:memory:"),
        agents={},
        metrics=Metrics(CollectorRegistry()),
        bodies=bodies,
        secrets=frozenset(),
        search_attributes=True,
    )
    bodies.close()
    worker, _ = build_workers(temporal, Settings(), parts)
    return worker


@pytest.fixture(scope="module")
def offered(worker: Worker) -> dict[str | None, Function]:
    """The worker's activities by name; the one without a name serves every other."""
    functions = cast("list[Function]", worker.config().get("activities", []))
    named = {temporalio.activity._Definition.must_from_callable(function).name: function for function in functions}
    assert len(named) == len(functions)
    return named


def asked() -> dict[str, Function]:
    """The activities that the workflow knows, by name."""
    functions = [function for _, function in inspect.getmembers(stubs, inspect.iscoroutinefunction)]
    return {str(temporalio.activity._Definition.must_from_callable(f).name): f for f in functions}


def test_the_worker_offers_exactly_the_named_activities_and_one_for_all_tools(
    offered: dict[str | None, Function],
) -> None:
    assert set(offered) == {*Activity, None}


def test_the_workflow_asks_for_exactly_the_named_activities() -> None:
    assert set(asked()) == set(Activity)


@pytest.mark.parametrize("name", list(Activity))
def test_a_stub_and_its_activity_agree_in_every_type(offered: dict[str | None, Function], name: Activity) -> None:
    """A difference would show in production only, as a payload that does not fit."""
    stub, body = asked()[name], offered[name]
    assert typing.get_type_hints(stub) == typing.get_type_hints(body)
    assert [*inspect.signature(stub).parameters] == [*inspect.signature(body).parameters]


def test_the_worker_runs_the_named_workflows_and_the_turn_has_exactly_the_named_handlers(worker: Worker) -> None:
    workflows = worker.config().get("workflows", [])
    names = [temporalio.workflow._Definition.must_from_class(workflow).name for workflow in workflows]
    assert names == [AGENT_TURN, NOTIFY, KNOCK, SWEEP]
    definition = temporalio.workflow._Definition.must_from_class(AgentTurn)
    assert definition.name == AGENT_TURN
    assert set(definition.signals) == set(Signal)
    assert set(definition.updates) == set(Update)
    assert set(definition.queries) == set(Query)


def test_each_search_attribute_is_set_under_its_name_and_type() -> None:
    """The type that the server is told and the type that a turn sets are written in two places."""
    keys = [value for value in vars(visibility).values() if isinstance(value, SearchAttributeKey)]
    types = {key.name: key.indexed_value_type.name.title() for key in keys}
    assert types == {str(name): kind for name, kind in SEARCH_ATTRIBUTE_TYPES.items()}
    assert len(keys) == len(SearchAttribute)


def test_the_names_that_other_services_write_down_do_not_change() -> None:
    """Renaming one breaks running turns, scripts and dashboards of other people."""
    assert (AGENT_TURN, NOTIFY, KNOCK, DEFAULT_TASK_QUEUE) == ("AgentTurn", "Notify", "Knock", "perdure")
    assert {"cancel"} <= set(Signal)
    assert {"send", "answer", "approve", "deny"} <= set(Update)
    assert {"status", "budget"} <= set(Query)
    assert {"open_turn", "generate", "ask", "commit_turn"} <= set(Activity)
