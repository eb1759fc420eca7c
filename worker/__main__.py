"""``python -m perdure.worker --agents MODULE …``: a worker for a cluster."""

import json
import logging
import os
import sys
from collections.abc import Mapping

import click
import uvloop

from perdure.activities.mcp.references import names_needed
from perdure.activities.secrets import secret_values
from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.environment import UnmetNeedError
from perdure.agents.tool import ToolDefinitionError
from perdure.client.errors import KeysMismatchError, ServerUnreachableError, TemporalConfigError
from perdure.contracts.agents import names_of_call
from perdure.contracts.queues import Role
from perdure.lanes.printing import log_what_code_prints
from perdure.libraries import (
    LibraryMismatchError,
    advice_for,
    check_libraries,
    describe_unknown_provider,
    describe_untested,
    find_untested,
    refuse_misfits,
)
from perdure.security.credentials import mask_addresses
from perdure.settings import SettingsError, load_settings, prepare_recordings
from perdure.store import StoreError
from perdure.store.errors import StoreConfigError
from perdure.tracing import is_on
from perdure.worker.agents import AgentLoadError, check_needs, load
from perdure.worker.search_attributes import SearchAttributesError
from perdure.worker.telemetry import AddressError, configure_logging

USAGE = 2
UNREACHABLE = 8


@click.command()
@click.option("--agents", "modules", multiple=True, metavar="MODULE", help="Module or file with agents; repeatable.")
@click.option("--task-queue", default=None, help="The task queue to poll; PERDURE_TASK_QUEUE by default.")
@click.option("--metrics-address", default=None, help="HOST:PORT of /metrics and the probes; empty turns them off.")
@click.option("--describe", is_flag=True, hidden=True, help="Load the agents, print them as JSON, and end.")
def main(modules: tuple[str, ...], task_queue: str | None, metrics_address: str | None, *, describe: bool) -> None:
    """Run a worker until SIGTERM."""
    changes = {"task_queue": task_queue, "metrics_address": metrics_address, "agents": modules or None}
    sys.exit(_run(changes, describe=describe))


def _run(changes: Mapping[str, object], *, describe: bool) -> int:
    try:
        settings = load_settings()
        is_on(os.environ)  # which refuses variables that cannot be used
    except SettingsError as error:
        return _fail(error, USAGE)
    try:
        settings = settings.model_copy(update={name: value for name, value in changes.items() if value is not None})
        prepare_recordings(settings)
        loaded = load(settings.agents)
        agents = loaded.agents
        if settings.recording_mode != "replay" and settings.routing.has(Role.TOOLS):  # else no tool runs
            check_needs(agents.values(), settings.task_queue, os.environ)
    except AgentLoadError as error:
        if (
            error.__cause__ is not None and not describe
        ):  # an exception of the user's code, which one line cannot explain
            configure_logging(settings.log_level, secret_values((), os.environ))
            logging.getLogger("perdure.worker").exception("the agents could not be loaded", exc_info=error.__cause__)
        return _fail(error, USAGE)
    except (SettingsError, AgentDefinitionError, ToolDefinitionError, UnmetNeedError) as error:
        return _fail(error, USAGE)
    if describe:
        click.echo(json.dumps([_describe(agent) for agent in agents.values()]))
        return 0
    configure_logging(settings.log_level, secret_values(agents.values(), os.environ))
    log_what_code_prints()
    for agent in agents.values():
        for problem in _find_unknown_providers(agent):
            logging.getLogger("perdure.worker").warning("agent %r: %s", agent.name, problem)
    warn_of_untested()
    try:
        check_libraries()
        with refuse_misfits():
            from perdure.worker.app import run  # noqa: PLC0415 - loads what activities need, which takes a second

        uvloop.run(run(settings, agents, loaded.registered))
    except (
        AddressError,
        KeysMismatchError,
        LibraryMismatchError,
        SettingsError,
        StoreConfigError,
        TemporalConfigError,
    ) as error:
        return _fail(error, USAGE)
    except (ServerUnreachableError, StoreError, SearchAttributesError) as error:
        return _fail(error, UNREACHABLE)
    return 0


def warn_of_untested() -> None:
    """Log each library whose release no worker was tested with."""
    for library in find_untested():
        logging.getLogger("perdure.worker").warning("%s; %s", describe_untested(library), advice_for(library))


def _find_unknown_providers(agent: Agent) -> list[str]:
    """A sentence for each model of a provider that there is not: its calls will fail."""
    models = (agent.model, *(fallback.model for fallback in agent.fallback_models))
    return [f"model {model}: {problem}" for model in models if (problem := describe_unknown_provider(model))]


def _describe(agent: Agent) -> dict[str, object]:
    """Describe an agent for ``perdure dev`` before any worker runs."""
    calls = [(agent.model, agent.generate_params)]
    calls += [(fallback.model, fallback.generate_params or {}) for fallback in agent.fallback_models]
    referred = {name for _, params in calls for name in names_of_call(params)}
    referred |= {name for server in agent.mcp_servers for name in names_needed(server)}
    return {
        "name": agent.name,
        "model": agent.model,
        "tools": len(agent.tools),
        "servers": len(agent.mcp_servers),
        "models_without_key": [model for model, params in calls if "api_key" not in params],
        "unknown_providers": _find_unknown_providers(agent),
        "unset": sorted(name for name in referred if not os.environ.get(name)),
    }


def _fail(error: Exception, code: int) -> int:
    click.echo(f"perdure: {mask_addresses(str(error))}", err=True)
    return code


if __name__ == "__main__":
    try:
        main()
    finally:
        # A blocking tool that would not end must not keep the process: its thread is not a daemon.
        sys.stdout.flush()
        sys.stderr.flush()
        if sys.exc_info()[0] is SystemExit:
            code = getattr(sys.exc_info()[1], "code", 0)
            os._exit(code if isinstance(code, int) else 1)
