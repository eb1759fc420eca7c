"""S-83: CopilotKit, unmodified and in its newest release, in a browser at the door of AG-UI.

The page and the gateway are of one origin, as with a proxy of one's own.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from perdure import Agent, ask_user, tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.gateway import gateway
from tests.house import WAIT_SECONDS, House
from tests.strangers import environments
from tests.strangers.hearing import hear, obey
from tests.ui.browser import Browser, Page, find_chromium

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1_200), environments.needs_node]

STOP = "[data-testid=copilot-send-button]"
"""The button of the chat that sends, and stops what runs."""

CONTEXT = "<context>\nThe page: in euros\n</context>\n\n"
"""Text before each message: the page has a context."""

CALLS: dict[str, tuple[str, Any]] = {
    "pay": ("pay", {"amount": 7}),
    "ask": ("ask_user", {"question": "Which colour?"}),
    "look": ("look", {"id": 7}),
    "choose": ("choose", {"question": "Which one?"}),
    "effect": ("effect", {}),
    "restart": ("restart", {}),
}


def brain(request: ChatRequest) -> Reply:
    """Calls what the last message of the user names, and then says what it has read."""
    if calls := obey(request, CALLS):
        return calls
    said, last = hear(request)
    reply = say("read " + " and ".join(text.removeprefix(CONTEXT) for text in said[last:]))
    return reply.after(faults.hang()) if "hang" in said[last].split() else reply


@dataclass
class Front:
    """One origin of a page and of the gateway that is its target."""

    script: Path
    target: str = ""
    url: str = ""
    seen: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    @property
    def connections(self) -> int:
        """How many threads pages have been given."""
        return sum(path.endswith("/connect") for path, _ in self.seen)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Front"]:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/agui/{rest:.*}", self._pass_on)
        app.router.add_get("/{name:.*}", self._page)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server = site._server
        assert server is not None
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        if request.path in {"/bundle.js", "/bundle.css"}:
            return web.FileResponse(self.script.with_name(request.path[1:]))
        head = '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/bundle.css">'
        text = f'{head}<div id="root"></div><script src="/bundle.js"></script>'
        return web.Response(text=text, content_type="text/html")

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() in {"content-type", "accept"}}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                request.method, f"{self.target}{request.path_qs}", data=await request.read(), headers=headers
            ) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            self.seen.append((request.path, answer.status))
            return response


@dataclass
class Chat:
    """A page with a chat, which has connected to its thread so many times."""

    page: Page
    front: Front
    connections: int = 1

    async def say(self, text: str) -> None:
        """Type a message, and send it: once the page has its thread, before which it forgets what is said."""

        async def focused() -> bool:
            return self.front.connections >= self.connections and bool(
                await self.page.evaluate(
                    "(() => { const box = document.querySelector('textarea'); box?.focus();"
                    " return box !== null && document.activeElement === box && !window.agent?.isRunning; })()"
                )
            )

        await self.page.wait(focused)
        await self.page.send("Input.insertText", text=text)
        await self.page.press("Enter")

    async def click(self, name: str) -> None:
        """Click what this selector finds, once it is there."""

        async def clicked() -> bool:
            found = f"document.querySelector({json.dumps(name)})"
            return bool(
                await self.page.evaluate(f"(() => {{ const one = {found}; one?.click(); return one !== null; }})()")
            )

        await self.page.wait(clicked)

    async def stop(self) -> None:
        """Press the button that stops what runs, until nothing does."""

        async def stopped() -> bool:
            pressed = f"window.agent?.isRunning && document.querySelector({json.dumps(STOP)})?.click()"
            await self.page.evaluate(pressed)
            return bool(await self.page.evaluate("!window.agent?.isRunning"))

        await self.page.wait(lambda: self.page.evaluate("window.agent?.isRunning"))
        await self.page.wait(stopped)

    async def reads(self, text: str) -> None:
        """Wait until the agent has said so, and runs no more."""

        async def there() -> bool:
            told = json.loads(await self.page.evaluate("document.querySelector('#told')?.textContent || '{}'"))
            said = [str(content) for role, content, _ in told.get("messages", []) if role == "assistant"]
            return text in said and not told["running"]

        try:
            await self.page.wait(there)
        except TimeoutError:
            errors = await self.page.evaluate("window.errors")
            pytest.fail(f"nobody said {text!r}: {errors} {self.page.browser.complaints}\n{await self.page.text()}")

    async def messages(self) -> list[tuple[str, str]]:
        told = json.loads(await self.page.evaluate("document.querySelector('#told').textContent"))
        return [(role, str(content)) for role, content, _ in told["messages"]]

    async def reload(self) -> None:
        """Load the page again."""
        self.connections = self.front.connections + 1
        await self.page.send("Page.reload")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's script, made of the newest releases."""
    find_chromium()
    return environments.bundle("copilotkit.jsx", tmp_path_factory.mktemp("copilotkit"))


EXPECTED = {"effect": 2, "pay": 2, "restart": 1}
"""Effects of all that is said and decided in the chats."""


async def test_people_use_threads_through_copilotkit(house: House, script: Path, tmp_path: Path) -> None:
    """S-83: approve, deny, cancel, answer, tools of the front end, reload, a second tab, stop, a gateway's restart."""
    effects, loop, stopping = Counter[str](), asyncio.get_running_loop(), AsyncExitStack()

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        effects["pay"] += 1
        return f"paid {amount}"

    @tool
    def effect() -> str:
        """Do something that cannot be undone."""
        effects["effect"] += 1
        return "it is done"

    @tool
    def restart() -> str:
        """Have the gateway be replaced while this runs."""
        effects["restart"] += 1
        asyncio.run_coroutine_threadsafe(replace_gateway(), loop).result(WAIT_SECONDS)
        return "it went on"

    async def replace_gateway() -> None:
        front.target = other.url
        await stopping.aclose()

    agent = Agent(name="tester", model="openai/scripted", tools=[pay, effect, restart, ask_user])
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(agent),
        gateway(house, doors=("agui",)) as other,
        stopping,
        Front(script).opened() as front,
        Browser.launched(tmp_path / "profile", tmp_path / "pictures") as browser,
    ):
        house.use(provider)
        front.target = (await stopping.enter_async_context(gateway(house, doors=("agui",)))).url
        await decide(browser, front)
        await look_in_two_tabs(browser, front)
        await stop_and_restart(browser, front)
    assert effects == EXPECTED


async def decide(browser: Browser, front: Front) -> None:
    """Approve, deny and cancel, answer a question, and run two tools of the page, one of them behind a reload."""
    async with browser.page(f"{front.url}/?thread=talk") as page:
        chat = Chat(page, front)
        await chat.say("effect")
        await chat.reads("read effect and it is done")
        await chat.say("pay")
        await page.shows("May pay run?")
        await page.picture("approval")
        await chat.click(".approve")
        await chat.reads("read pay and paid 7")
        await page.picture("approved")
        await chat.say("pay please")
        await chat.click(".deny")
        await chat.reads("read pay please and pay was denied by local: too much")
        await chat.say("pay now")
        await chat.click(".cancel")
        await chat.reads("read pay now and pay was denied by local")
        await chat.say("ask")
        await chat.click(".answer")
        await chat.reads("read ask and blue")
        await chat.say("look")
        await chat.reads("read look and seen 7")
        await chat.say("choose")
        await page.shows("executing Which one?")
        await chat.reload()
        await page.shows("executing Which one?")
        await chat.click(".chosen")
        await chat.reads("read choose and the red one")
        assert await page.evaluate("window.errors") == []
        told = [text for role, text in await chat.messages() if role == "user"]
        assert told == ["effect", "pay", "pay please", "pay now", "ask", "look", "choose"]


async def look_in_two_tabs(browser: Browser, front: Front) -> None:
    """Decide in one tab what waits in two, and decide otherwise in the other."""
    tabs = browser.page(f"{front.url}/?thread=tabs"), browser.page(f"{front.url}/?thread=tabs")
    async with tabs[0] as page, tabs[1] as beside:
        one, two = Chat(page, front, front.connections + 2), Chat(beside, front)
        await one.say("pay")
        await page.shows("May pay run?")
        await two.reload()
        await beside.shows("May pay run?")
        await one.reload()
        await page.shows("May pay run?")
        await two.click(".approve")
        await two.reads("read pay and paid 7")
        await one.click(".deny")
        await page.wait(lambda: page.evaluate("window.errors.length > 0"))
        assert "was approved by local" in str(await page.evaluate("window.errors"))
        await one.reload()
        await one.reads("read pay and paid 7")


async def stop_and_restart(browser: Browser, front: Front) -> None:
    """Stop a run and say something at once; replace the gateway while a tool runs, and load the page again."""
    async with browser.page(f"{front.url}/?thread=stops") as page:
        chat = Chat(page, front, front.connections + 1)
        await chat.say("hang")
        await chat.stop()
        await chat.say("effect")
        await chat.reads("read effect and it is done")
        await chat.say("restart")
        await page.wait(lambda: page.evaluate("window.errors.length > 0"))
        assert "the gateway stops" in str(await page.evaluate("window.errors"))
        await chat.reload()
        await chat.reads("read restart and it went on")
