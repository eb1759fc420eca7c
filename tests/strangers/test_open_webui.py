"""S-89 to S-91: Open WebUI, unmodified and in its newest release, in a browser at the door of Chat Completions.

Its settings are those of docs/chat.md; its own 36 tools, titles, tags and follow-ups are on, as by default.
"""

import asyncio
import json
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Agent, ask_user, tool
from perdure.cli.server import spawn, stop_process
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.strangers import environments, hearing
from tests.strangers.test_strangers import two_gateways
from tests.ui.browser import Browser, Page, find_chromium

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1_800)]

HEADERS = {"X-Chat-Id": "{{CHAT_ID}}", "X-User-Id": "{{USER_ID}}", "X-Task": "{{TASK}}"}
DOOR: dict[str, Any] = {
    "doors": ("chat",),
    "chat_conversation_header": "X-Chat-Id",
    "chat_person_header": "X-User-Id",
    "chat_task_header": "X-Task",
    "chat_task_agent": "titler",
    "chat_closed": "cancel",
}

WITHOUT_MODELS = {"OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1", "RAG_EMBEDDING_ENGINE": "openai"}
"""Variables with which it loads no models of its own, and asks nobody but the gateway."""

CALLS: dict[str, tuple[str, Any]] = {
    "effect": ("effect", {}),
    "pay": ("pay", {"amount": 7}),
    "slow": ("slow", {}),
    "clock": ("get_current_timestamp", {}),
}
TITLES = {"title": "A talk", "tags": ["General"], "follow_ups": ["Say more."]}


def brain(request: ChatRequest) -> Reply:
    """Calls what the last message of the user names, and then says what it has read."""
    said, last = hearing.hear(request)
    if said[last].startswith("### Task:"):
        return say(json.dumps(TITLES))
    if said[last] == "restart" and last == len(said) - 1:
        return call(("restart", {}), text="One moment.")
    return hearing.obey(request, CALLS) or say("read " + " and ".join(said[last:]))


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    """The commands of an environment with Open WebUI, which is gone after the tests."""
    find_chromium()
    with tempfile.TemporaryDirectory(prefix="perdure-strangers-") as name:
        yield environments.install_server("open-webui", Path(name))


@asynccontextmanager
async def open_webui(commands: Path, door: str, folder: Path) -> AsyncIterator[str]:
    """Open WebUI in front of a gateway, as one person alone runs it; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "data").mkdir()
    variables = environments.variables(
        WEBUI_AUTH="False",
        DATA_DIR=str(folder / "data"),
        WEBUI_SECRET_KEY="any",
        ENABLE_OLLAMA_API="False",
        OPENAI_API_BASE_URL=f"{door}/openai/v1",
        OPENAI_API_KEY="any",
        OPENAI_API_CONFIGS=json.dumps({"0": {"headers": HEADERS}}),
        **WITHOUT_MODELS,
    )
    log = folder / "open-webui.log"
    with log.open("wb") as output:
        serve = [str(commands / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = spawn(serve, output=output, env=variables)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def serving() -> bool:
                assert process.poll() is None, log.read_text(errors="replace")[-12_000:]
                try:
                    return (await client.get("/health")).is_success
                except httpx.HTTPError:
                    return False

            await eventually(serving)
        yield f"http://127.0.0.1:{port}"
    finally:
        await stop_process(process)


@dataclass
class Chat:
    """A page with a chat."""

    page: Page

    @classmethod
    @asynccontextmanager
    async def opened(cls, browser: Browser, url: str) -> AsyncIterator["Chat"]:
        async with browser.page(url) as page:
            yield cls(page)

    async def type(self, text: str) -> None:
        """Put a message into the box, once it is there and nothing is answered."""

        async def focused() -> bool:
            return bool(
                await self.page.evaluate(
                    "(() => { const box = document.querySelector('#chat-input'); box?.focus(); return box !== null"
                    " && document.activeElement === box && !document.querySelector('[aria-label=Stop]'); })()"
                )
            )

        async def there() -> bool:
            return bool(await self.page.evaluate("document.querySelector('#chat-input').textContent"))

        await self.page.wait(focused)
        await self.page.send("Input.insertText", text=text)
        await self.page.wait(there)

    async def say(self, text: str) -> None:
        await self.type(text)
        await self.page.press("Enter")

    async def reads(self, text: str) -> None:
        """Wait until the last answer ends so, and nothing is answered any more."""

        async def there() -> bool:
            return text in await self.last() and await self.is_idle()

        try:
            await self.page.wait(there)
        except TimeoutError:
            pytest.fail(f"the last answer is not {text!r}:\n{await self.page.text()}")

    async def is_idle(self) -> bool:
        """Whether nothing is answered."""
        return bool(await self.page.evaluate("document.querySelector('[aria-label=Stop]') === null"))

    async def reads_one_of(self, texts: Sequence[str]) -> None:
        """Wait until the page shows one of these texts, and nothing is answered any more."""

        async def there() -> bool:
            shown = await self.page.text()
            return any(text in shown for text in texts) and await self.is_idle()

        await self.page.wait(there)

    async def last(self) -> str:
        """The last answer that is shown."""
        found = "[...document.querySelectorAll('[id^=response-content-container]')].at(-1)?.innerText ?? ''"
        return " ".join(str(await self.page.evaluate(found)).split())

    async def press(self, label: str) -> None:
        """Press the last button that is called so."""
        await self._click(
            "[...document.querySelectorAll('button')].filter((one) => one.checkVisibility()"
            f" && one.ariaLabel === {json.dumps(label)}).at(-1)"
        )

    async def choose(self, item: str) -> None:
        """Choose in the menu that is open."""
        await self._click(
            "[...document.querySelectorAll('[role=menuitem], [role=menu] button')]"
            f".find((one) => one.textContent.trim() === {json.dumps(item)})"
        )

    async def _click(self, found: str) -> None:
        clicking = f"(() => {{ const one = {found}; one?.click(); return one !== undefined && one !== null; }})()"
        await self.page.wait(lambda: self.page.evaluate(clicking))

    async def edit(self, number: int, text: str) -> None:
        """Edit a message of the person, and send it."""
        await self._click(f"[...document.querySelectorAll('.edit-user-message-button')].at({number})")
        box = "document.querySelector('textarea[id^=message-edit]')"
        await self.page.wait(
            lambda: self.page.evaluate(f"({box}?.focus(), {box}?.select(), document.activeElement === {box})")
        )
        await self.page.send("Input.insertText", text=text)
        await self._click("document.querySelector('#confirm-edit-message-button')")

    async def links(self) -> list[str]:
        """Addresses of the gateway's pages in the chat."""
        return [link for link in await self.page.links() if "/ui/sessions/" in link]


SAID = Counter(
    {
        "effect one": 1,
        "two": 1,
        "clock three": 1,
        "": 1,  # the result of Open WebUI's own tool
        "effect two": 2,
        "slow": 1,
        "effect behind a stop": 1,
        "pay": 1,
        "thanks": 1,
        "effect here": 1,
        "effect there": 1,
        "restart": 1,
    }
)
"""What the person says, with the number of turns that it begins; what is said in two tabs at once begins one or two."""


async def test_people_chat_through_open_webui(house: House, commands: Path, tmp_path: Path) -> None:
    """S-89 to S-91: turns with tools, edit, another answer, stop, approval, the rest, two tabs, a gateway's restart."""
    effects, loop = Counter[str](), asyncio.get_running_loop()

    @tool
    def effect() -> str:
        """Do something that cannot be undone."""
        effects["effect"] += 1
        return "it is done"

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        effects["pay"] += 1
        return f"paid {amount}"

    @tool
    async def slow() -> str:
        """Take for ever."""
        effects["slow"] += 1
        await asyncio.Event().wait()
        return "never"

    @tool
    def restart() -> str:
        """Have the gateway be replaced while this runs."""
        effects["restart"] += 1
        asyncio.run_coroutine_threadsafe(replace_gateway(), loop).result(WAIT_SECONDS)
        return "it went on"

    agents = (
        Agent(name="tester", model="openai/scripted", tools=[effect, pay, slow, restart, ask_user]),
        Agent(name="titler", model="openai/scripted"),
    )
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(*agents),
        two_gateways(house, **DOOR) as (proxy, _, replace_gateway),
        open_webui(commands, proxy.url, tmp_path) as url,
        Browser.launched(tmp_path / "profile", tmp_path / "pictures") as browser,
        Chat.opened(browser, f"{url}/?models=tester") as chat,
    ):
        house.use(provider)
        await chat.page.click("Okay, Let's Go!")  # the notes of the release, to who comes for the first time
        await talk(chat, effects)
        await stop(chat, house, effects)
        await approve(chat, browser)
        await use_two_tabs(chat, browser)
        await chat.say("restart")
        await eventually(lambda: is_over(house))
        await chat.page.shows("One moment.")
        await chat.press("Continue Response")
        await chat.reads("read restart and it went on")
        await say_two_at_once(chat, browser, house)
        sessions, said = await said_in(house)
    at_once = said - SAID
    assert (sessions, said - at_once) == (1, SAID)
    assert at_once in ({"effect left": 1}, {"effect right": 1}, {"effect left": 1, "effect right": 1})
    assert effects == {
        name: sum(count for text, count in said.items() if name in text.split())
        for name in ("effect", "pay", "slow", "restart")
    }


async def talk(chat: Chat, effects: Counter[str]) -> None:
    """Three turns with tools, of the agent and of Open WebUI; another answer, and an edit."""
    await chat.say("effect one")
    await chat.reads("read effect one and it is done")
    await chat.say("two")
    await chat.reads("read two")
    await chat.say("clock three")
    await chat.reads('read clock three and {"current_timestamp"')
    await chat.edit(1, "effect two")
    await chat.reads("read effect two and it is done")
    assert effects == {"effect": 2}
    await chat.press("Regenerate")
    await chat.choose("Try Again")
    await eventually(lambda: has(effects, effect=3))
    await chat.reads("read effect two and it is done")


async def has(effects: Counter[str], **expected: int) -> bool:
    return all(effects[name] == count for name, count in expected.items())


async def is_over(house: House) -> bool:
    return all(session.open_turn is None for session, _ in await house.client.sessions(limit=200))


async def stop(chat: Chat, house: House, effects: Counter[str]) -> None:
    """Stop an answer, and say something at once."""
    await chat.say("slow")
    await eventually(lambda: has(effects, slow=1))
    await chat.press("Stop")
    await chat.say("effect behind a stop")
    await chat.reads("read effect behind a stop and it is done")


async def approve(chat: Chat, browser: Browser) -> None:
    """Approve a call at the gateway's page, and have the rest of the answer come."""
    await chat.say("pay")
    await chat.reads('pay waits for an approval: {"amount": 7}')
    await chat.page.picture("approval")
    async with browser.page((await chat.links())[-1]) as page:
        await page.shows("May pay run?")
        await page.click("Approve")
        await page.shows("Finished")
    await chat.press("Continue Response")
    await chat.reads("read pay and paid 7")
    await chat.page.picture("approved")
    await chat.say("thanks")
    await chat.reads("read thanks")


async def use_two_tabs(chat: Chat, browser: Browser) -> None:
    """Say something in one tab and then in the other."""
    async with Chat.opened(browser, str(await chat.page.evaluate("location.href"))) as other:
        await other.reads("read thanks")
        await chat.say("effect here")
        await chat.reads("read effect here and it is done")
        await other.reads("read effect here and it is done")
        await other.say("effect there")
        await other.reads("read effect there and it is done")
        await chat.reads("read effect there and it is done")


async def say_two_at_once(chat: Chat, browser: Browser, house: House) -> None:
    """Say something in each of two tabs; who comes second may be told to wait, and both may show the other's branch."""
    async with Chat.opened(browser, str(await chat.page.evaluate("location.href"))) as other:
        await other.reads("read restart and it went on")
        tabs = {"effect left": chat, "effect right": other}
        for text, tab in tabs.items():
            await tab.type(text)
        await asyncio.gather(*(tab.page.press("Enter") for tab in tabs.values()))
        answers = [*(f"read {text} and it is done" for text in tabs), "still answers another message"]
        for tab in tabs.values():
            await tab.reads_one_of(answers)
    await eventually(lambda: is_over(house))


async def said_in(house: House) -> tuple[int, Counter[str]]:
    """How many sessions the agent has, and what was said in them; each turn has a line."""
    sessions = [session.session for session, _ in await house.client.sessions(limit=200) if session.agent == "tester"]
    lines = [event.line() for session in sessions for event in await house.store.events(session, after=0, limit=1_000)]
    return len(sessions), Counter(str(line["prompt"]) for line in lines if line["type"] == "agent_start")
