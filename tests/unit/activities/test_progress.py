"""Reports of progress: seldom written, never in the way of the body, and the last one is never lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.activities.heartbeat import keep_beating
from perdure.activities.toolbox import runner
from perdure.activities.toolbox.runner import Progress
from perdure.contracts.events import NewEvent, ToolProgress
from perdure.contracts.tools import CallTool
from perdure.store import Store, StoreUnavailableError
from tests.house import WAIT_SECONDS

CALL = CallTool(session="s", turn=2, step=3, call_id="c1", definition="d")


class Log(Store):
    """A store that keeps what is reported; ``answers`` says how it takes one, the last way for all that follow."""

    def __init__(self, *answers: bool | Exception) -> None:  # no database behind it
        self.answers = list(answers or [True])
        self.written: list[NewEvent] = []
        self.asked = 0
        self.taken = asyncio.Event()

    async def report_progress(self, session: str, call_id: str, claimant: str, event: NewEvent) -> bool:
        assert (session, call_id, claimant) == ("s", "c1", "w1")
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.taken.set()
        if isinstance(answer, Exception):
            raise answer
        self.written += [event] if answer else []
        return answer

    async def next(self) -> None:
        """Wait for one more."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.taken.wait()
        self.taken.clear()


Test = Callable[[Progress], Awaitable[None]]


async def in_activity(log: Log, test: Test) -> None:
    async def act() -> None:
        async with keep_beating():
            await test(Progress(store=log, call=CALL, claimant="w1"))

    await ActivityEnvironment().run(act)


def said(events: list[NewEvent]) -> list[float]:
    return [event.event.progress for event in events if isinstance(event.event, ToolProgress)]


async def test_the_first_report_is_written_at_once_and_the_last_with_the_result() -> None:
    log = Log()

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            reports.report(1)
            await log.next()
            for number in range(2, 500):
                reports.report(number)
            await asyncio.sleep(0)
        assert (said(log.written), said(reports.take_last())) == ([1], [499])
        assert log.written[0].key == "2/c1/tool_progress/w1/1"

    await in_activity(log, test)


async def test_what_is_reported_meanwhile_is_one_event_of_the_next_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.05)
    log = Log()

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            reports.report(1)
            await log.next()
            reports.report(2)
            reports.report(3)
            await log.next()
        assert (said(log.written), reports.take_last()) == ([1, 3], [])

    await in_activity(log, test)


async def test_a_body_on_a_thread_of_its_own_may_report() -> None:
    log = Log()

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            threading.Thread(target=reports.report, args=(1,)).start()
            await log.next()
        assert said(log.written) == [1]

    await in_activity(log, test)


async def test_a_store_that_is_away_costs_the_body_nothing_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PROGRESS_SECONDS", 0.05)
    log = Log(StoreUnavailableError("away"), StoreUnavailableError("away"), True)

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            reports.report(1)
            for _ in range(3):
                await log.next()
        assert (said(log.written), reports.take_last()) == ([1], [])

    await in_activity(log, test)


async def test_what_could_not_be_written_goes_with_the_result() -> None:
    """Under the same key: it may have been written after all."""
    log = Log(StoreUnavailableError("away"))

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            reports.report(1)
            await log.next()
        (last,) = reports.take_last()
        assert (last.key, said([last])) == ("2/c1/tool_progress/w1/1", [1])

    await in_activity(log, test)


async def test_an_attempt_that_has_lost_its_claim_stops_asking() -> None:
    log = Log(False)

    async def test(reports: Progress) -> None:
        with reports.take_reports(()):
            reports.report(1)
            await log.next()
            await asyncio.sleep(0)
            reports.report(2)
        assert (reports.take_last(), log.asked) == ([], 1)

    await in_activity(log, test)


async def test_nothing_is_taken_before_or_after_the_body() -> None:
    log = Log()

    async def test(reports: Progress) -> None:
        reports.report(1)
        with reports.take_reports(()):
            pass
        reports.report(2)
        await asyncio.sleep(0)
        assert (reports.take_last(), log.asked) == ([], 0)

    await in_activity(log, test)


async def test_a_message_is_one_short_line_without_secrets() -> None:
    """S-52."""
    log = Log()

    async def test(reports: Progress) -> None:
        with reports.take_reports({"tr0ub4dor-and-3"}):
            reports.report(1, 2, "with tr0ub4dor-and-3,\n half \ud83d " + "x" * 10_000)
        (last,) = reports.take_last()
        assert isinstance(last.event, ToolProgress)
        assert last.event.message.startswith("with ***, half \ufffd xxx")
        assert len(last.event.message) == runner.MESSAGE_CHARACTERS

    await in_activity(log, test)
