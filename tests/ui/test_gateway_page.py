"""The gateway's page in a browser, over jobs that run, wait for people, failed and ended; each picture is kept."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import Connection, select

from perdure.contracts.events import GenerationContent, NewEvent
from perdure.gateway.app import create_app
from perdure.gateway.serve import GatewayServer, bind
from perdure.local_ports import find_free_port
from perdure.store import schema
from perdure.testing import ScriptedProvider
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.ui.browser import Browser, Page
from tests.ui.conftest import house_of
from tests.ui.page_jobs import HOSTILE, PROMPT, WRITTEN, prepared
from tests.workflow.bodies import Body

pytestmark = pytest.mark.deep

PHONE = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}

NAMELESS = """
[...document.querySelectorAll('input, select, textarea, button, a[href], summary, meter, svg[role=img], img')]
  .filter((found) => found.checkVisibility() && !(found.labels?.length || found.getAttribute('aria-label')
    || found.getAttribute('alt') || found.textContent.trim())).map((found) => found.outerHTML.slice(0, 120))
"""
"""Controls of the page that have no name for a screen reader."""

LANDMARKS = """
({main: document.querySelectorAll('main').length, h1: document.querySelectorAll('h1').length,
  lang: document.documentElement.lang, nav: document.querySelectorAll('nav[aria-label]').length,
  first: document.querySelector('a, button, input').textContent,
  headed: [...document.querySelectorAll('section')].every((found) => found.getAttribute('aria-labelledby')
    || found.getAttribute('aria-label'))})
"""


Shown = tuple[House, Door, ScriptedProvider]


@pytest.fixture(scope="module")
async def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shown]:
    """The jobs on a worker, and a gateway; asked for after the browser, so that nothing is prepared in vain."""
    async with (
        house_of("page", tmp_path_factory.mktemp("jobs"), None) as house,
        prepared(house, Body()) as provider,
        gateway(house) as door,
    ):
        yield house, door, provider


ENDED_MEANWHILE = re.compile(r"409 \(Conflict\) \S+/(status|budget)$")
"""What a browser says of a question about a turn that has just ended; the page knows the answer."""


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    """No page may break its policy, refuse a file of its own or throw."""
    browser.complaints.clear()
    yield
    assert [complaint for complaint in browser.complaints if not ENDED_MEANWHILE.search(complaint)] == []


@asynccontextmanager
async def page_of(browser: Browser, door: Door, path: str, *expected: str) -> AsyncIterator[Page]:
    async with browser.page(f"{door.url}{path}") as page:
        await page.shows(*expected)
        yield page


_numbers = itertools.count(1)


async def fresh(house: House, agent: str) -> str:
    """A job of the agent that waits for a person."""
    session = f"{agent}-{next(_numbers)}"
    await house.client.start(agent, PROMPT, session=session)

    async def waits() -> bool:
        return bool(await house.store.open_requests(session))

    await eventually(waits)
    return session


VERDICTS = {
    "rivers": ("Finished", "4 steps", "Next: send a message", "llm.rate_limited", "Todos: 2 of 2 done"),
    "running": ("Runs the tool held", "live", "2 of 12", "search", "of $2.50"),
    "approval": ("Waits for a person", "your approval of pay", "May pay run?", '"amount": 1250.0', "Digest"),
    "question": ("Which river do you mean?", "Rhône", "Nobody will answer"),
    "failed": ("Failed", "account A-17 is closed", "tool.execution_error", "ended the turn", "Traceback"),
    "retrying": ("Retry 1 of 8 in", "llm.network_error", "it goes on by itself"),
    "lead": ("Runs the tool held", "geographer", "finished · 2 steps"),
    "hostile": ("Finished", HOSTILE),
}


@pytest.mark.parametrize("job", VERDICTS)
async def test_a_job_is_explained(browser: Browser, shown: Shown, job: str) -> None:
    _, door, _ = shown
    async with page_of(browser, door, f"/ui/sessions/{job}", *VERDICTS[job]) as page:
        await page.picture(f"page-{job}")
        assert await page.evaluate(NAMELESS) == []
        found = await page.evaluate(LANDMARKS)
        assert (found["main"], found["h1"], found["lang"], found["headed"]) == (1, 1, "en", True)
        assert found["first"] == "Skip to the content"
        assert "broken" not in await page.evaluate("document.title")
        assert await page.evaluate("document.querySelectorAll('img, #app script').length") == 0


PAGES = {
    "/ui": "tool.execution_error",
    "/ui/errors": "llm.rate_limited",
    **{f"/ui/sessions/{job}": texts[0] for job, texts in VERDICTS.items()},
}


@pytest.mark.parametrize("path", PAGES)
async def test_a_phone_needs_no_scrolling_sideways(browser: Browser, shown: Shown, path: str) -> None:
    _, door, _ = shown
    async with page_of(browser, door, path, PAGES[path]) as page:
        await page.send("Emulation.setDeviceMetricsOverride", **PHONE)
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        await page.picture(f"phone{path.replace('/', '-')}")


async def test_the_list_is_filtered_and_keeps_its_filters_in_the_address(browser: Browser, shown: Shown) -> None:
    _, door, _ = shown
    async with page_of(browser, door, "/ui", "rivers", "failed", "waits for a person", "tool.execution_error") as page:
        await page.picture("page-list")
        assert await page.evaluate(NAMELESS) == []
        await page.choose("Ended by", "error")
        await page.lacks("painter")
        await page.shows("failed")
        assert await page.evaluate("location.search") == "?stop_reason=error"
        assert "lead.geographer" not in await page.text()
    async with page_of(browser, door, "/ui?state=waiting_for_input", "approval", "question") as page:
        await page.lacks("painter")
        await page.type("Text", "appr")
        await page.lacks("question")
        await page.click("approval")
        await page.shows("May pay run?")


async def test_the_list_has_prompts_that_are_searched_and_what_open_jobs_have_done(
    browser: Browser, shown: Shown
) -> None:
    _, door, _ = shown
    async with page_of(browser, door, "/ui", "rivers", "Compare the rivers of Lyon", "Draw it larger.") as page:
        await page.type("Text", "it LARGER")
        await page.lacks("rivers of Lyon")
        await page.shows("painter")
    async with page_of(browser, door, "/ui?agent=running", "Compare the rivers") as page:
        steps = "document.querySelector('.jobs td[data-name=Steps]').textContent"
        assert await page.evaluate(steps) == "2"


async def test_the_list_says_what_waits_for_whoever_looks(browser: Browser, shown: Shown) -> None:
    _, door, _ = shown
    async with page_of(browser, door, "/ui", "Waits for you: ", "May pay run?", "Which river do you mean?") as page:
        await page.picture("page-inbox")
        await page.type("Agent", "approval")
        await page.lacks("Which river do you mean?")
        await page.click("May pay run?")
        await page.shows("Digest of the call")


async def test_the_list_has_the_jobs_of_every_tenant_and_is_filtered_by_one(browser: Browser, shown: Shown) -> None:
    _, door, _ = shown
    async with page_of(browser, door, "/ui", "rivers", "approval", "Tenant", "garonne") as page:
        await page.type("Tenant", "garonne")
        await page.lacks("painter")
        await page.shows("approval")
        await page.picture("page-list-tenant")
        assert await page.evaluate("location.search") == "?tenant=garonne"


async def test_the_waterfall_has_an_axis_names_and_folded_waits(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "question")
    await house.store.write("age", lambda connection: age(connection, session, timedelta(minutes=16)))
    async with page_of(browser, door, f"/ui/sessions/{session}", "ask_user", "a long wait, folded", "≈ 16 min") as page:
        ticks = await page.evaluate("[...document.querySelectorAll('.axis text')].map((found) => found.textContent)")
        assert (ticks[0], len(ticks) > 2) == ("0", True)
        await page.picture("page-waterfall")
        assert await page.evaluate(NAMELESS) == []


def age(connection: Connection, session: str, by: timedelta) -> None:
    """Let the events of a session have happened earlier."""
    events = schema.events
    mine = events.c.session == session
    for row in connection.execute(select(events.c.seq, events.c.at).where(mine)).all():
        connection.execute(events.update().where(mine, events.c.seq == row.seq).values(at=row.at - by))


async def test_an_approval_is_given_on_the_page(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "approval")
    async with page_of(browser, door, f"/ui/sessions/{session}", "May pay run?") as page:
        focused = await page.evaluate("document.activeElement.getAttribute('aria-labelledby')")
        assert focused == "people-title"
        await page.press("Tab")  # to the reason
        await page.press("Tab")  # to Approve
        await page.press("Enter")
        await page.shows("Finished", "Approved by local: pay", "Paid.")
        assert "May pay run?" not in await page.text()


async def test_an_approval_that_stands_is_given_and_revoked_on_the_page(browser: Browser, shown: Shown) -> None:
    """S-84: and shown with who gave it, until when and why."""
    house, door, _ = shown
    session = await fresh(house, "approval")
    async with page_of(browser, door, f"/ui/sessions/{session}", "May pay run?") as page:
        await page.click("Stop asking…")
        await page.shows("Approve pay and stop asking", "A rule that denies outranks it.")
        await page.picture("page-stop-asking")
        assert await page.evaluate(NAMELESS) == []
        await page.choose("Further calls", "tool")
        await page.type("Reason", "small sums", within="dialog")
        await page.click("Approve and stop asking")
        await page.shows(
            "Finished", "Approved by local: pay, and further calls too", "Approvals that stand", "small sums"
        )
        assert [given.scope for given in await house.client.approvals.list(session)] == ["tool"]
        await page.picture("page-standing")
        await page.click("Revoke the approval of pay")
        await page.lacks("Approvals that stand")
        assert await house.client.approvals.list(session) == ()


async def test_a_denial_has_a_reason_that_the_model_reads(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "approval")
    async with page_of(browser, door, f"/ui/sessions/{session}", "May pay run?") as page:
        await page.type("Reason", "too much")
        await page.click("Deny")
        await page.shows("Finished", "Denied by local: pay", "too much")


async def test_a_question_is_answered_and_a_message_starts_the_next_turn(browser: Browser, shown: Shown) -> None:
    """S-47: the page goes on after its last number when the next turn begins."""
    house, door, _ = shown
    session = await fresh(house, "question")
    async with page_of(browser, door, f"/ui/sessions/{session}", "Which river do you mean?") as page:
        await page.click("Saône")
        await page.shows("Finished", "The Saône, then.", "at its end")
        await page.type("Message", "And the Loire?")
        await page.click("Send")
        await page.shows("Taken by turn 2.", "And the Loire?", "2 of 2")
        assert "gap" not in await page.text()


async def test_a_result_and_a_failure_of_the_callers_tools_are_submitted_on_the_page(
    browser: Browser, shown: Shown
) -> None:
    """S-81: each at the request that it belongs to; the button for a failure needs its reason."""
    house, door, provider = shown
    session = await fresh(house, "caller")
    async with page_of(browser, door, f"/ui/sessions/{session}", "The caller runs lookup", "expires in") as page:
        await page.picture("page-results")
        assert await page.evaluate(NAMELESS) == []
        first, second = await house.client.inbox(session)
        await page.type("Result, or why there is none", "it is away", within=f"#request-{second.request_id}")
        assert await page.evaluate(f"{BUTTONS % second.request_id}.map((found) => found.ariaDisabled)") == [None, None]
        assert await page.evaluate(f"{BUTTONS % first.request_id}.map((found) => found.ariaDisabled)") == [None, "true"]
        await page.evaluate(f"{BUTTONS % second.request_id}[1].click()")
        await page.wait(lambda: page.evaluate(f"!document.querySelector('#request-{second.request_id}')"))
        await page.type("Result, or why there is none", "Ada", within=f"#request-{first.request_id}")
        await page.evaluate(f"{BUTTONS % first.request_id}[0].click()")
        await page.shows("Finished", "One is Ada.")
    messages = provider.requests[-1].request.messages
    assert [str(message["content"]) for message in messages if message["role"] == "tool"] == ["Ada", "it is away"]


BUTTONS = "[...document.querySelectorAll('#request-%s button')]"
"""Submit, and failed, of a request."""


async def test_a_turn_is_cancelled_in_a_dialog_that_keys_can_use(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "approval")
    async with page_of(browser, door, f"/ui/sessions/{session}", "May pay run?") as page:
        await page.click("Cancel the turn")
        await page.shows("what it has done stays")
        await page.picture("page-dialog")
        await page.press("Escape")
        await page.lacks("what it has done stays")
        await page.click("Cancel the turn")
        await page.type("Reason", "no longer needed", within="dialog")
        await page.press("Enter")
        await page.shows("Cancelled", "no longer needed", "no turn runs")
        disabled = await page.evaluate(
            "[...document.querySelectorAll('.verbs [aria-disabled]')].map((found) => found.title)"
        )
        assert set(disabled) == {"no turn runs"}


async def test_a_job_that_failed_is_resumed_from_its_verdict(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    started = await house.client.start("failed", PROMPT, session="failed-again")
    await started.result()
    offered = "lets the model read the error of charge, and goes on"
    async with page_of(browser, door, "/ui/sessions/failed-again", "Failed", "Resume now", offered) as page:
        await page.picture("page-resume")
        assert await page.evaluate(NAMELESS) == []
        await page.click("Resume now")
        await page.shows("Finished", "The account is closed.", "2 of 2")
        await page.lacks(offered)


async def test_an_answer_is_shown_while_it_is_written(browser: Browser, shown: Shown) -> None:
    house, door, provider = shown
    provider.hold_streams(after=4)
    await house.client.start("writer", PROMPT, session="writer")
    await provider.wait_for_held_streams()
    async with page_of(browser, door, "/ui/sessions/writer", "is writing", "The quick brown fox") as page:
        assert WRITTEN not in await page.text()
        await page.picture("page-writing")
        await provider.release_streams()
        await page.shows("Finished", WRITTEN)
        await page.lacks("is writing")


async def test_images_and_the_models_thinking_are_shown(browser: Browser, shown: Shown) -> None:
    _, door, _ = shown
    widths = "[...document.querySelectorAll('.files img')].map((found) => found.naturalWidth)"
    async with page_of(browser, door, "/ui/sessions/painter", "There it is.", "draw") as page:
        await page.evaluate("document.querySelector('details.tool').open = true")

        async def loaded() -> bool:
            return bool(await page.evaluate(widths) == [32, 48])

        await page.wait(loaded)
        assert await page.evaluate("document.querySelector('.files img').alt") == "small.png"
        await page.click("Load the model's thinking")
        await page.click("Thinking")
        await page.shows("A square has four sides.")
        await page.picture("page-painter")


async def test_of_a_job_of_thousands_of_events_a_window_is_drawn(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "question")
    answers = (GenerationContent(content=f"answer {step}.") for step in range(2, 5_002))
    events = [NewEvent(key=f"long/{step}", turn=1, step=step, event=said) for step, said in enumerate(answers, 2)]
    await house.store.append_events(session, events)
    blocks = "document.querySelectorAll('.block').length"
    async with page_of(browser, door, f"/ui/sessions/{session}", "answer 5001.", "Show 120 earlier", "5,006") as page:
        assert await page.evaluate(blocks) < 130
        await page.click("Show 120 earlier")
        await page.shows("answer 4800.")
        assert await page.evaluate(blocks) < 260
        await page.click("Raw log")
        await page.shows("Show 100 earlier of 4,906")
        assert await page.evaluate("document.querySelectorAll('.events > li').length") == 100
    async with page_of(browser, door, f"/ui/sessions/{session}#seq-4000", "answer 3995.") as page:

        async def is_focused() -> bool:
            return bool(await page.evaluate("document.activeElement.id") == "seq-4000")

        await page.wait(is_focused)
    await house.client.cancel(session)


async def test_a_job_is_paused_goes_on_and_is_erased(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    session = await fresh(house, "question")
    async with page_of(browser, door, f"/ui/sessions/{session}", "Which river do you mean?") as page:
        await page.click("Pause")
        await page.type("Reason", "lunch", within="dialog")
        await page.press("Enter")
        await page.shows("Paused since", "by local: lunch")
        await page.click("Go on")
        await page.shows("The job goes on where it was paused.")
        await page.evaluate("document.querySelector('dialog button[type=submit]').click()")
        await page.shows("Waits for a person since")
        await page.click("Saône")
        await page.shows("Finished")
        await page.click("Erase")
        await page.type("Type", session, within="dialog")
        await page.press("Enter")
        await page.shows("Cancel what runs")
        await page.lacks(session)
    # A busy machine's page may still have asked for the session, and been told that it is gone.
    browser.complaints[:] = [text for text in browser.complaints if not ("410 (Gone)" in text and session in text)]


async def test_many_are_cancelled_after_a_look_at_which(browser: Browser, shown: Shown) -> None:
    house, door, _ = shown
    await house.client.cancel("approval")
    sessions = [await fresh(house, "approval"), await fresh(house, "approval")]
    async with page_of(browser, door, "/ui?agent=approval&state=waiting_for_input", *sessions) as page:
        await page.click("Cancel what runs")
        await page.shows("Cancel 2 turns?", "Nothing is cancelled yet", *sessions)
        await page.picture("page-bulk")
        await page.type("Reason", "a drill", within="dialog")
        await page.press("Enter")
        await page.shows("No job fits")


async def test_a_break_of_the_policy_is_noticed(browser: Browser, shown: Shown) -> None:
    """The check that the other tests rely on."""
    _, door, _ = shown
    async with page_of(browser, door, "/ui/errors", "llm.rate_limited") as page:
        await page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
        )

        async def noticed() -> bool:
            return any("Content Security Policy" in text for text in browser.complaints)

        await page.wait(noticed)
        assert await page.evaluate("window.ran") is None
    browser.complaints.clear()


async def test_who_has_a_token_logs_in_and_sees_only_its_tenant(browser: Browser, shown: Shown) -> None:
    house, *_ = shown
    lines, tokens = token_lines(ann=("acme", "read"))
    async with gateway(house, gateway_tokens=lines) as door:
        async with page_of(browser, door, "/ui/sessions/rivers", "Log in") as page:
            await page.type("Token", "wrong")
            await page.press("Enter")
            await page.shows("unknown token")
            await page.type("Token", tokens["ann"])
            await page.picture("page-login")
            await page.press("Enter")
            await page.shows("There is nothing to show", "ann of acme")
            assert "Finished" not in await page.text()
            assert await page.evaluate("document.cookie") == ""
        async with page_of(browser, door, "/ui", "No job fits", "Log out") as page:
            await page.click("Log out")
            await page.shows("One of the gateway's bearer tokens")
    browser.complaints[:] = [text for text in browser.complaints if "status of 40" not in text]


async def test_the_light_tells_of_a_gateway_that_went_away(browser: Browser, shown: Shown) -> None:
    """S-47: after the reconnect nothing is missing and nothing came twice."""
    house, door, _ = shown
    session = await fresh(house, "question")
    port = find_free_port()
    async with browser.page("about:blank") as page:
        async with serving(door, port):
            await page.send("Page.navigate", url=f"http://127.0.0.1:{port}/ui/sessions/{session}")
            await page.shows("live · 6")
        await page.shows("reconnecting after 6")
        await page.picture("page-reconnecting")
        await house.client.answer(session, (await house.store.open_requests(session))[0].request_id, "Rhône")
        async with serving(door, port):
            await page.shows("The Saône, then.", "Finished")
            assert "gap" not in await page.text()
            numbers = await page.evaluate("[...document.querySelectorAll('.block')].map((found) => found.id)")
            assert len(numbers) == len(set(numbers))
    browser.complaints[:] = [text for text in browser.complaints if "net::ERR_" not in text]


@asynccontextmanager
async def serving(door: Door, port: int) -> AsyncIterator[str]:
    """Another gateway for the same jobs at a port of its own, for a while."""
    listener = bind(f"127.0.0.1:{port}", has_tokens=False)
    server = GatewayServer(create_app(door.app.state.gateway.client), grace=5)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
        await task
        listener.close()
