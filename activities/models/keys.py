"""Keys of providers, which stand in the worker's environment or where an agent's settings say."""

import functools
import importlib
import os
from typing import Any, cast

from perdure.activities.models import providers
from perdure.activities.models.provider_http import stand_in
from perdure.contracts.agents import AgentDefinition, names_of_call

_OWN_ACCESS = frozenset(
    {
        *("api_base", "base_url", "api_key"),
        *("aws_access_key_id", "aws_bedrock_runtime_endpoint", "aws_profile_name", "aws_role_name"),
        *("azure_ad_token", "client_secret", "vertex_credentials", "vertex_project"),
    }
)
"""Settings that give a call its key or address, so that it needs no variable of its provider."""


class MissingKeyError(Exception):
    """The worker's environment lacks variables that the call needs; the text names them. Nothing is sent."""


def require_key(definition: AgentDefinition) -> None:
    """Refuse a call without a key; a model at an address of the author's own needs none.

    Raises:
        MissingKeyError: Names the variables to set.
    """
    if stand_in.get() is not None:
        return
    params = definition.generate_params
    missing = tuple(name for name in names_of_call(params) if not os.environ.get(name))
    if _OWN_ACCESS.isdisjoint(params):
        missing += _find_missing_keys(definition.model)
    if missing:
        raise MissingKeyError(" and ".join(missing))


def _find_missing_keys(model: str) -> tuple[str, ...]:
    """The variables that a model's provider wants and the worker's environment lacks."""
    known = providers.PROVIDERS.get(model.partition("/")[0])
    return known.missing_keys() if known is not None else _missing_by_litellm(model)


@functools.cache
def _missing_by_litellm(model: str) -> tuple[str, ...]:
    """Likewise by litellm, which is loaded for such a model anyway. A worker's environment does not change."""
    found = cast("dict[str, Any]", importlib.import_module("litellm").validate_environment(model=model))
    return () if found["keys_in_environment"] else tuple(found["missing_keys"])
