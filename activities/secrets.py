"""Collects the secret values that every text must be masked of, and masks what came from outside. Imports no vendor."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from perdure.activities.mcp.references import names_needed
from perdure.agents.agent import Agent
from perdure.agents.environment import secrets_among
from perdure.contracts.agents import SHORTEST_SECRET, names_of_call
from perdure.contracts.generations import Generate
from perdure.contracts.hooks import RunHooks
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turn_context import VARIABLES
from perdure.contracts.turns import CommitTurn
from perdure.contracts.values import replace
from perdure.security.redaction import redact_text, without_known
from perdure.settings import is_path, secrets_of

WithResults = TypeVar("WithResults", Generate, RunHooks, CommitTurn)


def secret_values(agents: Iterable[Agent], environment: Mapping[str, str]) -> frozenset[str]:
    """The values of the variables that agents refer to, and of the secrets that their tools need.

    Each line of a value with several lines counts as a secret too, since logs show single lines.
    """
    agents = tuple(agents)
    needed = (secrets_among(tool.needs, environment) for agent in agents for tool in agent.tools)
    values = secrets_of(environment).union(*needed)
    values |= values_of((name for name in environment if name.startswith(VARIABLES)), environment)
    values |= values_of((name for agent in agents for name in _referred_variables_of(agent)), environment)
    return values | {line for value in values for line in _lines(value)}


def values_of(names: Iterable[str], environment: Mapping[str, str]) -> set[str]:
    """The values of variables, without those that are no secret: short words, and paths that exist."""
    values = {environment.get(name, "") for name in names}
    return {value for value in values if len(value) >= SHORTEST_SECRET and not is_path(value)}


def with_masked_results(request: WithResults, secrets: Collection[str]) -> WithResults:
    """The request, with masks in the results that only the workflow knows: people and callers may have sent anything.

    An error is masked as that of a tool: of what looks like a credential, too.
    """
    return replace(request, failed=tuple(_masked(outcome, secrets) for outcome in request.failed))


def _masked(outcome: ToolOutcome, secrets: Collection[str]) -> ToolOutcome:
    error = outcome.error
    if error is None:
        return replace(outcome, preview=without_known(outcome.preview, secrets))
    shown = replace(error, message=redact_text(error.message, secrets))
    return replace(outcome, preview=redact_text(outcome.preview, secrets), error=shown)


def _referred_variables_of(agent: Agent) -> Iterator[str]:
    """The variables that the settings of the agent's models and servers name."""
    for params in (agent.generate_params, *(fallback.generate_params or {} for fallback in agent.fallback_models)):
        yield from names_of_call(params, secrets=True)
    for config in agent.mcp_servers:
        yield from names_needed(config)


def _lines(value: str) -> Iterator[str]:
    for line in (raw.strip() for raw in value.splitlines()):
        if len(line) >= SHORTEST_SECRET and not line.startswith("-----"):  # as keys begin and end
            yield line
