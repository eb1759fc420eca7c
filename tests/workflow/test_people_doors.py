"""The doors for people beside the updates: the command line, the client, and Temporal's own command."""

import asyncio
import json
import os
import pty
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.client import RequestRefusedError, UnknownSessionError
from perdure.testing import Script, ScriptedProvider
from tests.house import ROOT, WAIT_SECONDS, House, eventually
from tests.temporal_cli import temporal
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several, waiting

pytestmark = pytest.mark.deep

COMMAND = str(Path(sys.executable).with_name("perdure"))


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def perdure(*arguments: str) -> tuple[int, str, str]:
    """The exit code and what the command line printed; no terminal is there."""
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_without_a_terminal_run_exits_7_and_the_command_it_prints_lets_the_turn_go_on(house: House) -> None:
    """The contract's exit code: for scripts, that hand the command to somebody."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        code, output, errors = await perdure("run", "tester", "go", "--session", house.session)
        question, approval = await waiting(house, 2)
        assert code == 7
        first = f"perdure answer {house.session} {question['request_id']} red"
        assert f"waiting for an answer: Which colour?; {first}" in errors
        assert f'pay {{"amount": 7}}; perdure approve {house.session} {approval["request_id"]}' in errors
        assert "? Which colour? (red / blue)" in output
        code, listed, _ = await perdure("list", "--state", "waiting_for_input")
        assert (code, house.session in listed, "waiting_for_input" in listed) == (0, True, True)
        code, output, errors = await perdure(*first.split()[1:], "--by", "ann")
        assert (code, errors) == (0, "")
        assert f"{question['request_id']} answered by ann" in output
        code, output, _ = await perdure("deny", house.session, approval["request_id"], "--reason", "no", "--json")
        assert (code, json.loads(output)["decision"]) == (0, "denied")
        code, output, errors = await perdure("follow", house.session)
        assert (code, errors) == (0, "")
        _, listed, _ = await perdure("list", "--state", "waiting_for_input")
        assert house.session not in listed
    assert results(provider.requests[-1].request.messages)[0] == "red"
    assert "answered by ann · ask_user" in output


async def test_a_reply_that_cannot_be_taken_is_a_mistake_in_one_line(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        code, _, errors = await perdure("answer", house.session, request["request_id"], "green")
        assert (code, errors.count("\n")) == (2, 1)
        assert "the answer has to be one of: red, blue" in errors
        code, _, errors = await perdure("approve", "nowhere", request["request_id"])
        assert (code, errors) == (
            2,
            "perdure: there is no session 'nowhere'; 'perdure list' names the sessions there are\n",
        )
        await handle.signal("cancel", {})
        await handle.result()


class Terminal:
    """A process at a terminal of its own: what it prints, and what a person types."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.text = ""

    async def __aenter__(self) -> "Terminal":
        self._main, theirs = pty.openpty()
        self._process = await asyncio.create_subprocess_exec(
            *(COMMAND, *self._arguments), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(self._main, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._main)
        os.close(self._main)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _read(self) -> None:
        try:
            self.text += os.read(self._main, 65_536).decode(errors="replace")
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._main)

    async def shows(self, text: str) -> None:
        async def there() -> bool:
            return text in self.text

        await eventually(there)

    def types(self, line: str, end: str = "\n") -> None:
        os.write(self._main, f"{line}{end}".encode())

    async def ends(self) -> int:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self._process.wait()


async def test_the_person_at_the_terminal_is_asked(house: House) -> None:
    """An option by its number, an approval that stands by always (S-84); what does not fit is asked for again."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        async with Terminal("run", "tester", "go", "--session", house.session) as terminal:
            await terminal.shows("  2. blue\r\n> ")
            terminal.types("green")
            await terminal.shows("has to be one of")
            terminal.types("2")
            await terminal.shows('? approve pay {"amount": 7} [y/n/always] ')
            terminal.types("always")
            assert await terminal.ends() == 0
    assert [given.scope for given in await house.client.approvals.list(house.session)] == ["tool"]
    assert results(provider.requests[-1].request.messages) == ["blue", "paid 7"]


async def test_a_question_that_somebody_else_answers_is_taken_back_at_the_terminal(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        (request,) = await waiting(house)
        async with Terminal("follow", house.session) as terminal:
            await terminal.shows("> ")
            await house.client.answer(house.session, request["request_id"], "red", by="ann")
            assert await terminal.ends() == 0
    assert results(provider.requests[-1].request.messages) == ["red"]


async def test_the_client_tells_what_a_turn_waits_for_and_replies(house: House) -> None:
    """The same receipt from the log when the turn is long over."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        await waiting(house, 2)
        question, approval = await turn.requests()
        assert (question.options, approval.needs) == (("red", "blue"), "approval")
        first = await house.client.answer(house.session, question.request_id, "red", by="ann")
        with pytest.raises(RequestRefusedError, match="by"):
            await house.client.deny(house.session, approval.request_id, by="")
        await house.client.approve(house.session, approval.request_id, by="ann", digest=approval.digest)
        assert (await turn.result()).stop_reason == "finished"
        assert await turn.requests() == ()
        again = await house.client.answer(house.session, question.request_id, "red", by="bob")
        assert again == first
        with pytest.raises(RequestRefusedError, match="was approved by ann"):
            await house.client.deny(house.session, approval.request_id, by="bob")
        with pytest.raises(UnknownSessionError):
            await house.client.answer("nowhere", question.request_id, "red")
    assert PAID == [7]


@pytest.mark.parametrize(
    ("asked", "name", "body", "read"),
    [
        (COLOUR, "answer", lambda request_id: {"request": request_id, "value": "red"}, "red"),
        (PAY, "approve", lambda request_id: {"request": request_id, "by": "ann"}, "paid 7"),
        (
            PAY,
            "deny",
            lambda request_id: {"request": request_id, "by": "ann", "reason": "no"},
            "pay was denied by ann: no",
        ),
    ],
)
async def test_temporals_own_command_replies(
    house: House, asked: Any, name: str, body: Callable[[str], dict[str, str]], read: str
) -> None:
    """Nothing of ours is needed where the person is."""
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        sent = json.dumps(body(request["request_id"]))
        where = ("--workflow-id", house.session, "--name", name, "--input", sent)
        code, output = await temporal("workflow", "update", "execute", *where, "--output", "json")
        assert code == 0, output
        assert json.loads(output)["result"]["request_id"] == request["request_id"]
        await handle.result()
    assert results(provider.requests[-1].request.messages) == [read]
