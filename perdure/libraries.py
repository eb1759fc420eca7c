"""Names of libraries that perdure replaces, or reads although they are private, and whether they are as it expects.

A worker compares them before it starts, and a gateway those of uvicorn: a release that has renamed one would otherwise
fail call by call, or guard nothing. What is replaced is how mcp reads messages; nothing of litellm is.
"""

import dis
import functools
import gc
import importlib
import inspect
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from perdure.contracts.values import guess_name


@dataclass(frozen=True)
class Name:
    """A name of a library, and how perdure uses it.

    Attributes:
        library: The library's name in the package index.
        module: The module that has the name.
        path: The name in the module, with dots.
        parameters: What perdure gives to it; empty if perdure does not call it.
        awaited: Whether perdure awaits the call.
        sets: Attributes that the objects of this class set themselves, or that it declares as fields, and that perdure
            reads or sets.
    """

    library: str
    module: str
    path: str
    parameters: tuple[str, ...] = ()
    awaited: bool = False
    sets: tuple[str, ...] = ()

    def problem(self) -> str:
        """Reason that the name cannot be used as it is; empty if it can. What it stands in is named before it."""
        place = self.module
        try:
            found: Any = importlib.import_module(self.module)
            for part in self.path.split("."):
                place = f"{place}.{part}"
                found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
            known = {*inspect.get_annotations(found), *_attributes_in(found)} if self.sets else set[str]()
            unset = [name for name in self.sets if name not in known]
        except (ImportError, AttributeError):
            return f"has no {place}"
        if unset:
            return f"has no {place}.{unset[0]}"
        if not self.parameters:
            return ""
        function = getattr(found, "__func__", found)
        if self.awaited and not inspect.iscoroutinefunction(function):
            return f"has a {place} that cannot be awaited"
        return _misfit(place, inspect.signature(function).parameters, self.parameters)


_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"})
"""Instructions with the name of an attribute."""


def _attributes_in(made: type) -> set[str]:
    """Attributes that the functions of a class have in their code.

    The source is left alone: early releases of Python 3.11 and 3.12 may fail to parse one while another thread does
    (python/cpython#106905).
    """
    functions = [getattr(one, "__func__", one) for one in vars(made).values()]
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    return {one.argval for code in codes for one in dis.get_instructions(code) if one.opname in _ATTRIBUTES}


def _misfit(place: str, taken: Mapping[str, inspect.Parameter], given: Collection[str]) -> str:
    """Arguments that are given and not taken, or wanted and not given."""
    kinds = inspect.Parameter
    takes_all = any(parameter.kind is kinds.VAR_KEYWORD for parameter in taken.values())
    if missing := [] if takes_all else [name for name in given if name not in taken]:
        return f"takes no {' and no '.join(missing)} in {place}"
    wanted = [
        name
        for name, parameter in taken.items()
        if parameter.default is kinds.empty
        and parameter.kind not in {kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL}
        and name not in {*given, "self", "cls"}
    ]
    return f"wants {' and '.join(wanted)} in {place}" if wanted else ""


NAMES: tuple[Name, ...] = (
    Name("aiohttp", "aiohttp.client_proto", "ResponseHandler.is_connected"),
    Name("aiohttp", "aiohttp.client_proto", "ResponseHandler.should_close"),
    Name("aiohttp", "aiohttp", "TCPConnector", sets=("_factory",)),
    Name("temporalio", "temporalio.bridge.proto", "ActivityHeartbeat"),
    Name("temporalio", "temporalio.bridge.worker", "Worker.record_activity_heartbeat", ("comp",)),
    Name("temporalio", "temporalio.activity", "_Context.current"),
    Name("temporalio", "temporalio.activity", "_Context", sets=("heartbeat",)),
    Name("temporalio", "temporalio.worker._activity", "_ActivityOutboundImpl", sets=("_worker",)),
    Name("temporalio", "temporalio.worker._activity", "_ActivityWorker", sets=("_bridge_worker", "_data_converter")),
    Name(
        "uvicorn",
        "uvicorn.protocols.http.h11_impl",
        "RequestResponseCycle",
        sets=("response_complete", "disconnected", "message_event"),
    ),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol", sets=("conn", "flow", "cycle", "scope")),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol.handle_events"),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol.on_response_complete"),
    Name("uvicorn", "uvicorn.protocols.http.h11_impl", "H11Protocol._unset_keepalive_if_required"),
    Name("uvicorn", "uvicorn.protocols.http.flow_control", "FlowControl", ("transport",), sets=("write_paused",)),
    Name("uvicorn", "uvicorn.protocols.http.flow_control", "FlowControl.resume_reading"),
    Name("mcp", "mcp.client.streamable_http", "jsonrpc_message_adapter"),
    Name("mcp", "mcp.client.sse", "sse_within_origin"),
    Name("mcp", "mcp.shared.jsonrpc_dispatcher", "JSONRPCDispatcher._allocate_id"),
    Name("mcp", "mcp.shared.jsonrpc_dispatcher", "JSONRPCDispatcher", sets=("_next_id",)),
    Name("mcp", "mcp.client.session", "ClientSession", sets=("_dispatcher",)),
    Name("mcp", "mcp.client.session", "ClientSession._absorb_tool_listing", ("result", "complete")),
)
"""Every such name."""

TESTED = {"temporalio": ">=1.35,<1.36"}
"""Releases that a worker was tested with, where an installation may have newer ones too.

A program with the client alone uses public names, and shares the library with what else the program is made of.
"""

_OF_A_WORKER = ("aiohttp", "mcp", "standardwebhooks", "uvloop")
"""Libraries that a worker cannot start without; a program with the client alone hardly has all of them."""


class LibraryMismatchError(Exception):
    """A library is not as perdure expects it; the text names the release and those that fit."""


_READ_AT_IMPORT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no fetch of prices while importing
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",  # no fetch at the first Claude call
    "LITELLM_MODE": "PRODUCTION",  # no stray .env file
    "HF_HUB_OFFLINE": "1",  # no tokenizer download, which blocks for 20 s offline
    # By default a worker's 501st call to a provider would wait, unseen, until another has its answer.
    "AIOHTTP_CONNECTOR_LIMIT": "100000",  # 0 would be aiohttp's own default, 100
    "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "0",  # no limit but PERDURE_MAX_ACTIVITIES
}
"""Variables that litellm reads while it is imported, with the values that perdure gives to those that are not set."""


def prepare_litellm() -> None:
    """Set what litellm reads while it is imported; whoever may be the first to import it calls this before."""
    for name, value in _READ_AT_IMPORT.items():
        os.environ.setdefault(name, value)


def check_libraries(names: Iterable[Name] = NAMES) -> None:
    """Compare the libraries with what perdure was written for.

    Raises:
        LibraryMismatchError: A name is missing, or does not take what it is given.
    """
    prepare_litellm()
    for name in names:
        if problem := name.problem():
            raise mismatch_of(name.library, problem)


def mismatch_of(library: str, problem: str) -> LibraryMismatchError:
    """The error that says what a library lacks, and which releases have it."""
    text = f"{library} {release_of(library)} {problem}, which perdure needs"
    return LibraryMismatchError(f"{text}; {advice_for(library)}")


@contextmanager
def refuse_misfits() -> Iterator[None]:
    """Around an import of perdure's own modules: tell a name that a library has no more as that.

    Raises:
        LibraryMismatchError: An import or an attribute is missing.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        text = f"a library is missing or has another release than perdure needs: {error}"
        raise LibraryMismatchError(f"{text}; install 'perdure[worker]' again") from error


def names_used_here() -> tuple[Name, ...]:
    """The names of installed libraries, without a worker's where none can run."""
    runs_worker = _has_worker()
    return tuple(name for name in NAMES if release_of(name.library) and (runs_worker or name.library == "uvicorn"))


def _has_worker() -> bool:
    return all(release_of(library) for library in _OF_A_WORKER)


@functools.cache
def check_sdk() -> None:
    """Compare Temporal's SDK alone, once: for tests, which run activities without ``perdure.worker``.

    Raises:
        LibraryMismatchError: As of :func:`check_libraries`.
    """
    check_libraries(name for name in NAMES if name.library == "temporalio")


def find_untested() -> tuple[str, ...]:
    """The installed libraries whose releases are outside of the ranges that perdure was tested with."""
    needed = [Requirement(text) for text in requires("perdure") or ()]
    releases = {requirement.name: release_of(requirement.name) for requirement in needed}
    return tuple(
        dict.fromkeys(
            requirement.name
            for requirement in needed
            if (release := releases[requirement.name]) and not _tested(requirement).contains(release, prereleases=True)
        )
    )


def describe_untested(library: str) -> str:
    """Say which release of a library is installed, and which ones are tested."""
    return f"{library} {release_of(library)} is outside of the tested releases, {releases_that_fit(library)}"


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
    """The range of releases that perdure was tested with; empty if neither ``TESTED`` nor its metadata names one."""
    found = (Requirement(text) for text in requires("perdure") or ())
    return next((str(_tested(needed)) for needed in found if needed.name == library), "")


def _tested(needed: Requirement) -> SpecifierSet:
    return SpecifierSet(TESTED[needed.name]) if needed.name in TESTED and _has_worker() else needed.specifier


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


def settle_heap() -> None:
    """Keep what is loaded by now from the garbage collector: 400,000 objects of libraries, which live on anyway.

    Going through them again and again would be a tenth of a worker's CPU, and hold up a gateway's streams for a tenth
    of a second each time.
    """
    gc.collect()
    gc.freeze()
