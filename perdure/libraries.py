"""Names of libraries that perdure replaces, or reads although they are private, and whether they are as it expects.

A worker compares them before it starts, and a gateway those of uvicorn: a release that has renamed one would otherwise
fail call by call, or guard nothing. What is replaced is httpx's and httpx2's ``send``, and how mcp reads messages;
nothing of litellm is.
"""

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from perdure.contracts.values import guess_name


@dataclass(frozen=True)
class Name:
    """A name of a library, and the parameters that perdure gives to it."""

    library: str
    module: str
    path: str
    parameters: tuple[str, ...] = ()

    def problem(self) -> str:
        """Reason that the name cannot be used as it is; empty if it can."""
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.path.split("."):
                found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        except (ImportError, AttributeError):
            return f"has no {self.module}.{self.path}"
        if not self.parameters:
            return ""
        taken = inspect.signature(getattr(found, "__func__", found)).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values()):
            return ""
        missing = [name for name in self.parameters if name not in taken]
        return f"takes no {' and no '.join(missing)} in {self.module}.{self.path}" if missing else ""


_CONFIG = "litellm.llms.base_llm.chat.transformation"
_SHARED = ("model", "messages", "optional_params", "litellm_params")

NAMES: tuple[Name, ...] = (
    Name("httpx", "httpx", "AsyncClient.send", ("request", "stream", "follow_redirects")),
    Name("httpx2", "httpx2", "AsyncClient.send", ("request", "stream", "follow_redirects")),
    Name("aiohttp", "aiohttp.client_proto", "ResponseHandler.is_connected"),
    Name("temporalio", "temporalio.bridge.proto", "ActivityHeartbeat"),
    Name("temporalio", "temporalio.bridge.worker", "Worker.record_activity_heartbeat", ("comp",)),
    Name("temporalio", "temporalio.activity", "_Context.current"),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "RequestResponseCycle"),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol.handle_events"),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol.on_response_complete"),
    Name("mcp", "mcp.client.streamable_http", "jsonrpc_message_adapter"),
    Name("mcp", "mcp.client.sse", "sse_within_origin"),
    Name("mcp", "mcp.shared.jsonrpc_dispatcher", "JSONRPCDispatcher._allocate_id"),
    Name("mcp", "mcp.client.session", "ClientSession._absorb_tool_listing", ("result", "complete")),
    Name("litellm", "litellm._internal_context", "is_internal_call"),
    Name("litellm", "litellm", "get_llm_provider", ("model", "api_base", "api_key")),
    Name("litellm", "litellm.main", "responses_api_bridge_check", ("model", "custom_llm_provider", "tools")),
    Name("litellm", "litellm.utils", "get_optional_params", ("model", "custom_llm_provider", "messages", "tools")),
    Name("litellm", "litellm.utils", "ProviderConfigManager.get_provider_chat_config", ("model", "provider")),
    Name("litellm", _CONFIG, "BaseConfig.validate_environment", ("headers", "api_key", "api_base", *_SHARED)),
    Name("litellm", _CONFIG, "BaseConfig.transform_request", ("headers", *_SHARED)),
    Name("litellm", "litellm.llms.custom_httpx.http_handler", "get_ssl_configuration", ("ssl_verify",)),
)
"""Every such name, and public ones of litellm that its releases move."""


class LibraryMismatchError(Exception):
    """A library is not as perdure expects it; the text names the release and those that fit."""


def check_libraries(names: Iterable[Name] = NAMES) -> None:
    """Compare the libraries with what perdure was written for.

    Raises:
        LibraryMismatchError: A name is missing, or does not take what it is given.
    """
    for name in names:
        if problem := name.problem():
            text = f"{name.library} {release_of(name.library)} {problem}, which perdure needs"
            raise LibraryMismatchError(f"{text}; {advice_for(name.library)}")


def find_untested() -> Iterator[str]:
    """The installed libraries whose releases are outside of the ranges that perdure was tested with."""
    for text in requires("perdure") or ():
        requirement = Requirement(text)
        release = release_of(requirement.name)
        if release and not requirement.specifier.contains(release, prereleases=True):
            yield requirement.name


def advice_for(library: str) -> str:
    """Tell what to install instead."""
    fit = releases_that_fit(library)
    return f"install '{library}{fit}'" if fit else f"install another release of {library}"


def release_of(library: str) -> str:
    """The installed release; empty without one."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def releases_that_fit(library: str) -> str:
    """The range of releases that perdure was tested with, by its own metadata; empty if it names none."""
    found = (Requirement(text) for text in requires("perdure") or ())
    return next((str(needed.specifier) for needed in found if needed.name == library), "")


_PROVIDERS = re.compile(r"^class LlmProviders\(.*?^(?=\S)", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"^    \w+ = [\"']([^\"']+)[\"']", re.MULTILINE)


@functools.cache
def find_providers() -> frozenset[str]:
    """The providers that litellm has, read from its source: importing it takes seconds. Empty if they are not found."""
    found = find_spec("litellm")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(folder) / "types" / "utils.py"
        listed = _PROVIDERS.search(path.read_text(encoding="utf-8")) if path.is_file() else None
        if listed is not None:
            return frozenset(_VALUE.findall(listed[0]))
    return frozenset()


def describe_unknown_provider(model: str) -> str:
    """Describe what is wrong with the provider of a model, ``provider/model``; empty if nothing is known to be."""
    provider, known = model.partition("/")[0], find_providers()
    if not known or provider in known or any(provider == row.get("provider") for row in _registered()):
        return ""
    guess = guess_name(provider, (*USUAL, *known))
    return f"litellm has no provider {provider!r}{f'; {guess}' if guess else ''}"


USUAL = ("openai", "anthropic", "gemini", "azure", "mistral", "groq")
"""Looked at first: of equally near names the one that is meant more often."""


def _registered() -> list[dict[str, object]]:
    """Providers of users' own, if their modules have loaded litellm."""
    return getattr(sys.modules.get("litellm"), "custom_provider_map", None) or []
