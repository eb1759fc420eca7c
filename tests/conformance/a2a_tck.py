"""Runs A2A's technology compatibility kit against the door ``a2a``; fails if a test fails that is not waived below.

    A2A_TCK=FOLDER A2A_TCK_PYTHON=PROGRAM make judges

or ``python -m pytest -s -m deep tests/conformance/a2a_tck.py`` with the same variables.

FOLDER is a checkout of a2aproject/a2a-tck, branch ``1.0-dev``; PROGRAM is a Python that has what its pyproject.toml
needs. The kit says by the ids of its messages what the agent is to do; they are read on their way, and since the kit
uses an id for several messages, each is made unique there. The program keeps its report in ``reports/``.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure import Agent, File, ask_user, tool
from perdure.contracts.webhooks import Destination, Egress
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.conformance import say as tell
from tests.conformance.report import Report
from tests.gateway import gateway
from tests.house import House


@tool
def write() -> File:
    """Write a file."""
    return File("output.txt", "Generated file content", "text/plain")


AGENT = Agent(name="tck", model="openai/scripted", description="Does what the kit asks for.", tools=[ask_user, write])

EXTENSION = "urn:a2a:tck:required-extension"
RUNS: tuple[Mapping[str, Any], ...] = ({}, {"a2a_capabilities": ("extended-card",), "a2a_extensions": (EXTENSION,)})
"""Settings of the door in each run of the kit, which looks at what is refused by them in the second one."""

UNDECLARED = "cap-ext-004"
"""A part of the ids of messages that do not declare the extension."""

WAIVED: Mapping[str, str] = {
    "test_last_modified_present": "MAY: a card has no time of its own",
    "TestRestStreaming::test_streaming_content_type": "the kit wants a stream though the card says that there is none",
    "TestDataArtifact": "an agent's answer is text, or a value of its output schema, which the kit's agent has not",
    "TestMessageResponse": "every message begins a task, as the protocol allows",
    "test_error_uses_aip193_format": "the kit wants application/json; the specification now says application/a2a+json",
    "test_error_content_type": "the kit wants application/json; the specification now says application/a2a+json",
    "test_response_content_type": "the kit wants application/json; the specification now says application/a2a+json",
    "CORE-SEND-003": "the kit counts the refusal that it asks for as a failure",
    "test_content_type_not_supported_returns_415": "the specification now says 400",
    "test_content_type_not_supported_error": "a body that is not sent as JSON is an invalid request (-32600)",
}
"""Tests that fail, by a part of their names, each with the reason."""


class Provider:
    """Does what the id of the kit's message says, which a model never sees: it is found by the message's text."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}

    def answer(self, request: ChatRequest) -> Reply:
        asked = self.ids.get(str(request.messages[-1].get("content")), "")
        if "tck-input-required" in asked:
            return call(("ask_user", {"question": "Which one?"}))
        if "tck-artifact-file" in asked:
            return call(("write", {}))
        return say("Generated text content" if "tck-artifact-text" in asked else "Hello from TCK")


class Reading:
    """Reads the ids of the kit's messages, and makes each unique; declares the extension, which the kit does not."""

    def __init__(self, app: ASGIApp, ids: dict[str, str]) -> None:
        self._app = app
        self._ids = ids
        self._count = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (b"a2a-extensions", EXTENSION.encode())]}
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        left_out = {b"content-length"} | ({b"a2a-extensions"} if UNDECLARED.encode() in body else set())
        body = self._read(body)
        headers = [pair for pair in scope["headers"] if pair[0] not in left_out]
        headers.append((b"content-length", str(len(body)).encode()))
        told = False

        async def receive_read() -> Any:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app({**scope, "headers": headers}, receive_read, send)

    def _read(self, body: bytes) -> bytes:
        try:
            read = json.loads(body)
            message = cast("dict[str, Any]", read.get("params", read)["message"])
            name = message["messageId"]
            message["messageId"] = f"{name}-{next(self._count)}"
            self._ids["\n\n".join(part["text"] for part in message["parts"])] = name
        except (ValueError, KeyError, TypeError, AttributeError):
            return body
        return json.dumps(read).encode()


def trust_this_machine(check: Callable[..., Destination]) -> Callable[..., Destination]:
    """The check of addresses, which lets the kit's receiver through: its port is known only while the kit runs."""

    def checked(egress: Egress, url: str, **named: Any) -> Destination:
        found = urlsplit(url)
        if (found.scheme, found.hostname) == ("http", "localhost"):
            return Destination("http", "localhost", found.port or 80, trusted=True)
        return check(egress, url, **named)

    return checked


@pytest.mark.deep
@pytest.mark.timeout(900)
async def test_the_kit(house: House) -> None:
    folder = Path(os.environ["A2A_TCK"])
    house.environment.setattr(Egress, "check", trust_this_machine(Egress.check))
    scripted = Provider()
    async with ScriptedProvider(scripted.answer) as provider, house.worker(AGENT):
        house.use(provider)
        runs = [await run_kit(house, folder, scripted.ids, settings) for settings in RUNS]
    found = Found([case for cases, _ in runs for case in cases], together([kept for _, kept in runs]))
    report = found.report(await revision_of(folder))
    report.write()
    tell(f"{report.passed} of {report.of} {report.unit}; tests: {dict(found.outcomes)}")
    assert not found.unwaived, found.unwaived
    assert not [part for part in WAIVED if not any(part in name for name in found.failed)], "take these out of WAIVED"


Requirements = Mapping[str, Mapping[str, Any]]
"""What the kit says of each requirement, by its name."""


async def run_kit(
    house: House, folder: Path, ids: dict[str, str], settings: Mapping[str, Any]
) -> tuple[list[ElementTree.Element], Requirements]:
    """The tests of one run, and the requirements."""
    async with gateway(house, doors=("a2a",), gateway_max_requests=0, **settings) as door:
        assert door.app.middleware_stack is not None
        door.app.middleware_stack = Reading(door.app.middleware_stack, ids)
        python = os.environ.get("A2A_TCK_PYTHON", sys.executable)
        running = await asyncio.create_subprocess_exec(
            *(python, "run_tck.py", "--sut-host", f"{door.url}/a2a/tck", "--transport", "jsonrpc,http_json"),
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await running.communicate()
    tell(said.decode()[-3_000:])
    kept = json.loads((folder / "reports" / "compatibility.json").read_text(encoding="utf-8"))["per_requirement"]
    return [*ElementTree.parse(folder / "reports" / "junitreport.xml").iter("testcase")], kept


def together(runs: Sequence[Requirements]) -> Requirements:
    """The requirements of all runs: one that failed in any has failed, and one that passed in any has passed else."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in runs[0]:
        told = [run[name] for run in runs if name in run]
        status = next((one for one in ("FAIL", "PASS") if any(each["status"] == one for each in told)), "NOT TESTED")
        found[name] = {
            **told[0],
            "status": status,
            "test_ids": [test for each in told for test in each.get("test_ids", [])],
        }
    return found


async def revision_of(folder: Path) -> str:
    """The kit's commit."""
    running = await asyncio.create_subprocess_exec(
        *("git", "-C", str(folder), "rev-parse", "HEAD"), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await running.communicate()
    return said.decode().strip()


class Found:
    """Outcome of a run: its tests, and the requirements that they stand for.

    Attributes:
        outcomes: How many tests had each.
        failed: Names of the tests that failed; those of SHOULD are expected to, as the kit has it, and are here too.
        unwaived: Those for which there is no reason.
    """

    def __init__(self, cases: Sequence[ElementTree.Element], requirements: Requirements) -> None:
        self.outcomes = Counter(map(outcome_of, cases))
        self._requirements = requirements
        self.failed = sorted(
            f"{str(case.get('classname')).replace('.', '/')}::{case.get('name')}"
            for case in cases
            if outcome_of(case) in {"failed", "xfailed"}
        )
        self.unwaived = [name for name in self.failed if reason_of(name) is None]

    def report(self, revision: str) -> Report:
        """What is kept in the repository: the requirements of the level MUST, and each waiver with its reason."""
        levels = Counter(str(one["level"]) for one in self._requirements.values())
        must = Counter(str(one["status"]) for one in self._requirements.values() if one["level"] == "MUST")
        tested = must["PASS"] + must["FAIL"]
        return Report(
            standard="A2A 1.0",
            judge=f"a2a-tck {revision[:7]}",
            passed=must["PASS"],
            of=tested,
            unit=f"MUST requirements; {levels['MUST'] - tested} untested",
            command="pytest tests/conformance/a2a_tck.py",
            waived=dict(self._waivers()),
        )

    def _waivers(self) -> Iterator[tuple[str, str]]:
        for name, one in sorted(self._requirements.items()):
            if one["status"] != "FAIL":
                continue
            short = {str(test).rpartition("/")[2].removesuffix("]") for test in one["test_ids"]}
            tests = [test for test in self.failed if f"[{name}-" in test or last_of(test) in map(last_of, short)]
            reasons = sorted({reason for test in tests if (reason := reason_of(test)) is not None})
            yield f"{name} ({one['level']})", "; ".join(reasons)


def last_of(test: str) -> str:
    """Class and function of a test, without its parameters."""
    return "::".join(test.partition("[")[0].replace(".py", "").split("::")[-2:]).rpartition("/")[2]


def outcome_of(case: ElementTree.Element) -> str:
    """The outcome of a test, in pytest's words."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "xfailed" if skipped.get("type") == "pytest.xfail" else "skipped"


def reason_of(test: str) -> str | None:
    """Why a failure of the test is waived; None if it is not."""
    return next((why for part, why in WAIVED.items() if part in test), None)
