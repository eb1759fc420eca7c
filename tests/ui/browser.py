"""Headless Chromium, driven over its DevTools protocol: open a page, wait for what it shows, read it, picture it.

The websocket is aiohttp's, which the lock has through litellm. Nothing but loopback is ever looked up or contacted.
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from perdure.cli.server import spawn, stop_process
from tests.house import eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""What the browser is called on a PATH."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, and the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",  # with the next two, a page goes on as if somebody looked at it
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)

WINDOW = {"width": 1500, "height": 1700, "deviceScaleFactor": 1, "mobile": False}
"""High enough for what is looked at: the UI draws no more of a long box than is seen."""

POLL_SECONDS = 0.1
"""Between two looks at a page; a look costs it a layout."""

PAGE_SECONDS = 30.0
"""How long a page may take until it shows what is waited for; usually it takes one or two seconds."""

READ = """
(() => {
  const read = (node) => [
    node.innerText ?? node.textContent ?? '',
    ...[...node.querySelectorAll('*')].flatMap((inner) => [
      inner.shadowRoot ? read(inner.shadowRoot) : '',
      inner.contentDocument?.body ? read(inner.contentDocument.body) : '',
    ]),
  ].join('\\n');
  return document.body ? read(document.body) : '';
})()
"""
"""The text that the page shows, that of shadow trees and of its own frames included."""


_CLICK = """
(() => {
  const found = [...document.querySelectorAll('button, a, summary')].filter((node) => node.checkVisibility())
    .findLast((node) => node.textContent.trim().startsWith(%s));
  found?.click();
  return found !== undefined;
})()
"""

_FOCUS = """
(() => {
  const label = [...document.querySelector(%s)?.querySelectorAll('label') ?? []]
    .find((node) => node.textContent.trim().startsWith(%s));
  label?.control.focus();
  label?.control.select?.();
  return label !== undefined && document.activeElement === label.control;
})()
"""

_CURLED = re.compile(r"[\u2018\u2019]")
"""What the UI's Markdown makes of an apostrophe."""


def find_chromium() -> str:
    """The browser on the PATH; without one the test is skipped, and says so."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium on the PATH (for example: apt-get install chromium)")


@dataclass
class Browser:
    """A running browser; each page is read in a tab of its own."""

    socket: aiohttp.ClientWebSocketResponse
    pictures: Path
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    answers: "dict[int, asyncio.Future[dict[str, Any]]]" = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    """What pages wrote to the console as errors and warnings, uncaught exceptions and refused resources included."""

    @classmethod
    @asynccontextmanager
    async def launched(cls, profile: Path, pictures: Path) -> AsyncIterator["Browser"]:
        """Start the browser with an empty profile, and end it."""
        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        log = profile.with_suffix(".log")
        pictures.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = spawn(command, output=output)
        try:

            async def listening() -> list[str]:
                assert process.poll() is None, f"Chromium ended with {process.returncode}:\n{log.read_text()}"
                port = profile / "DevToolsActivePort"
                return port.read_text().splitlines() if port.exists() else []

            port, path = await eventually(listening)
            url = f"ws://127.0.0.1:{port}{path}"
            async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
                browser = cls(socket, pictures)
                listener = asyncio.create_task(browser._listen())
                try:
                    yield browser
                finally:
                    listener.cancel()
        finally:
            await stop_process(process)

    @asynccontextmanager
    async def page(self, url: str) -> AsyncIterator["Page"]:
        """A tab that shows the page."""
        target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.send("Target.attachToTarget", targetId=target, flatten=True)
        page = Page(self, attached["sessionId"])
        try:
            await page.send("Emulation.setDeviceMetricsOverride", **WINDOW)
            await page.send("Emulation.setFocusEmulationEnabled", enabled=True)  # a hidden page asks for nothing
            await page.send("Runtime.enable")
            await page.send("Log.enable")
            await page.send("Page.navigate", url=url)
            yield page
        finally:
            await self.send("Target.closeTarget", targetId=target)

    async def send(self, method: str, session: str | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self.numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.answers[number] = answer
        message = {"id": number, "method": method, "params": parameters}
        await self.socket.send_json(message if session is None else {**message, "sessionId": session})
        async with asyncio.timeout(PAGE_SECONDS):
            return await answer

    async def _listen(self) -> None:
        async for message in self.socket:
            told = json.loads(message.data)
            if "method" in told:
                self.complaints += _complaints_in(told)
            answer = self.answers.pop(told.get("id"), None)
            if answer is None or answer.done():
                continue
            if "error" in told:
                answer.set_exception(RuntimeError(told["error"]["message"]))
            else:
                answer.set_result(told["result"])


def _complaints_in(message: dict[str, Any]) -> list[str]:
    """The text of a message of the protocol that says what went wrong in a page."""
    parameters = message["params"]
    match message["method"]:
        case "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            return [str(details.get("exception", {}).get("description") or details["text"])]
        case "Runtime.consoleAPICalled" if parameters["type"] in {"error", "warning", "assert"}:
            return [" ".join(str(part.get("value") or part.get("description")) for part in parameters["args"])]
        case "Log.entryAdded" if parameters["entry"]["level"] in {"error", "warning"}:
            return [f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}".strip()]
        case _:
            return []


@dataclass(frozen=True)
class Page:
    """A page in a tab."""

    browser: Browser
    session: str

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol on this tab."""
        return await self.browser.send(method, self.session, **parameters)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def text(self) -> str:
        """What the page shows now, each run of white space as one space, quotation marks as they are typed."""
        return _CURLED.sub("'", " ".join(str(await self.evaluate(READ)).split()))

    async def shows(self, *texts: str) -> None:
        """Wait until the page shows all these texts."""
        shown = ""

        async def there() -> bool:
            nonlocal shown
            shown = await self.text()
            return all(text in shown for text in texts)

        try:
            await self.wait(there)
        except TimeoutError:
            missing = [text for text in texts if text not in shown]
            seen, complaints = await self.evaluate("document.visibilityState"), self.browser.complaints
            pytest.fail(f"the {seen} page does not show {missing}; it complains {complaints}; it shows:\n{shown}")

    async def wait(self, condition: Callable[[], Awaitable[Any]]) -> None:
        """Wait until the condition gives something true."""
        async with asyncio.timeout(PAGE_SECONDS):
            while not await condition():
                await asyncio.sleep(POLL_SECONDS)

    async def lacks(self, text: str) -> None:
        """Wait until the page does not show the text."""

        async def gone() -> bool:
            return text not in await self.text()

        await self.wait(gone)

    async def click(self, name: str) -> None:
        """Click the button or link whose text begins so, once it is there."""

        async def clicked() -> bool:
            return bool(await self.evaluate(_CLICK % json.dumps(name)))

        await self.wait(clicked)

    async def type(self, label: str, text: str, within: str = "body") -> None:
        """Put the focus on the field whose label begins so, and type in place of what it holds."""

        async def focused() -> bool:
            return bool(await self.evaluate(_FOCUS % (json.dumps(within), json.dumps(label))))

        await self.wait(focused)
        await self.send("Input.insertText", text=text)

    async def choose(self, label: str, value: str) -> None:
        """Choose an option by its value in the list whose label begins so."""
        await self.type(label, "")
        await self.evaluate(
            f"document.activeElement.value = {json.dumps(value)};"
            " document.activeElement.dispatchEvent(new Event('change', {bubbles: true}))"
        )

    async def press(self, key: str) -> None:
        """Press a key where the focus is."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": {"Tab": 9, "Enter": 13, "Escape": 27}[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    async def go(self, url: str) -> None:
        """Follow a link to another page of the same application, which need not be loaded again."""
        await self.evaluate(
            "(() => {"
            " const link = document.createElement('a');"
            f" link.href = {json.dumps(url)};"
            " document.querySelector('#content').append(link); link.click(); link.remove();"
            "})()"
        )

    async def links(self) -> list[str]:
        """Where the links of the page lead."""
        found: list[str] = await self.evaluate("[...document.querySelectorAll('a')].map((link) => link.href)")
        return found

    async def picture(self, name: str) -> None:
        """Save what the page shows as a PNG."""
        taken = await self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        (self.browser.pictures / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))
