"""The page on jobs from other services: its Python, TypeScript and JavaScript run as they stand there."""

import asyncio
import hashlib
import hmac
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from perdure import Agent, tool
from perdure.client import Client
from perdure.settings import Settings
from perdure.testing import Script, ScriptedProvider, call, say
from tests import npm_servers
from tests.docs.serving import served
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.ui.browser import Browser

pytestmark = pytest.mark.deep

PAGE = (Path(__file__).parents[2] / "docs" / "services.md").read_text(encoding="utf-8")
RUN_JOB, _, _, RELAY, CHAT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(TYPESCRIPT,) = re.findall(r"```typescript\n(.*?)```", PAGE, re.DOTALL)
(PREVIEW,) = re.findall(r"```javascript\n(.*?)```", PAGE, re.DOTALL)
(HTML,) = re.findall(r"```html\n(.*?)```", PAGE, re.DOTALL)

TEXT = "Rivers 🚣 flow down to the sea"
SECRET = "the secret of the chat"

with_node = pytest.mark.skipif(shutil.which("node") is None, reason="no Node on the PATH (apt-get install nodejs)")


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount in dollars."""
    return f"paid {amount}"


WRITER = Agent(name="writer", model="openai/scripted", tools=[pay])


@asynccontextmanager
async def door_of(house: House, *replies: Any, **scopes: str) -> AsyncIterator[tuple[Door, ScriptedProvider]]:
    """A gateway with a worker behind it; tokens of these names stand in variables."""
    lines, tokens = token_lines(**{name: ("acme", scope) for name, scope in scopes.items()})
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(WRITER):
        house.use(provider)
        async with gateway(house, gateway_tokens=lines) as door:
            house.environment.setenv("PERDURE_URL", door.url)
            house.environment.setenv("PERDURE_TOKEN", tokens["service"])
            house.environment.setenv("APPROVERS", json.dumps({"U07ANA": tokens.get("ana")}))
            yield door, provider


def executed(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, "docs/services.md", "exec"), names)
    return names


async def run(*command: str, cwd: Path) -> str:
    """Run a program, and give what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode(errors="replace")[-6000:]
    return out.decode()


async def test_the_python_of_the_page_runs_one_job_for_one_key(house: House) -> None:
    async with door_of(house, say("The Rhine."), service="run,read") as (_, provider):
        run_job = executed(RUN_JOB)["run_job"]
        first, second = await asyncio.gather(*(run_job("Name a river.", "order-17") for _ in range(2)))
    assert (first["output"], first["stop_reason"]) == ("The Rhine.", "finished")
    assert first == second
    assert len(provider.requests) == 1


@npm_servers.makers_installed
async def test_the_typescript_of_the_page_runs_a_job(house: House, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(npm_servers.FOLDER / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node.d.ts").write_text("declare const process: { env: Record<string, string | undefined> };\n")
    main = 'console.log(JSON.stringify(await runJob("Name a river.", "order-17")));\n'
    (tmp_path / "main.ts").write_text(TYPESCRIPT + main, encoding="utf-8")
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    async with door_of(house, say("The Rhine."), service="run,read") as (door, _):
        made = (f"{door.url}/openapi.json", "-o", "perdure.ts")
        await run(npm_servers.program("openapi-typescript"), *made, cwd=tmp_path)
        await run(npm_servers.program("tsc"), *options, "main.ts", "node.d.ts", cwd=tmp_path)
        told = json.loads(await run("node", "main.js", cwd=tmp_path))
    assert (told["output"], told["stop_reason"]) == ("The Rhine.", "finished")


def piece(attempt: int, offset: int, text: str, *, step: int = 1, kind: str = "text") -> dict[str, Any]:
    return {"turn": 1, "step": step, "attempt": attempt, "kind": kind, "offset": offset, "text": text}


@with_node
async def test_the_preview_of_the_page_keeps_the_rules_of_a_reader(tmp_path: Path) -> None:
    """S-15: two attempts never mix, a gap waits for a whole one, and what is stored replaces all."""
    steps = [
        (piece(1, 0, "a🚣"), "a🚣"),
        (piece(1, 2, "b"), "a🚣b"),
        (piece(1, 9, "late"), ""),
        (piece(1, 13, "r"), ""),
        (piece(1, 0, "a🚣b, later"), "a🚣b, later"),
        (piece(1, 0, "hm", kind="thinking"), "a🚣b, later"),
        (piece(2, 0, "", kind="tool_call"), ""),
        (piece(1, 0, "old"), ""),
        (piece(2, 0, "new"), "new"),
        ({"turn": 1, "step": 1, "stored": True}, ""),
        (piece(2, 3, "er"), ""),
        (piece(3, 0, "newest"), ""),
        (piece(1, 0, "next", step=2), "next"),
        ({"turn": 1, "step": 1, "stored": True}, "next"),
    ]
    (tmp_path / "preview.js").write_text(PREVIEW, encoding="utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "main.js").write_text(
        'import { Preview } from "./preview.js";\n'
        "const preview = new Preview();\n"
        f"const steps = {json.dumps([step for step, _ in steps])};\n"
        "const show = (step) => ((step.stored ? preview.store(step) : preview.add(step)), preview.text);\n"
        "console.log(JSON.stringify(steps.map(show)));\n",
        encoding="utf-8",
    )
    shown = json.loads(await run("node", "main.js", cwd=tmp_path))
    assert shown == [expected for _, expected in steps]


@asynccontextmanager
async def relay_of(names: dict[str, Any]) -> AsyncIterator[str]:
    """The service of the page with its two files, which any server of files can send."""
    app: FastAPI = names["app"]

    @app.get("/")
    def show() -> Response:
        return HTMLResponse(HTML)

    @app.get("/favicon.ico")
    def send_nothing() -> Response:
        return Response()

    @app.get("/preview.js")
    def send_preview() -> Response:
        return Response(PREVIEW, media_type="text/javascript")

    async with names["gateway"], served(app) as origin:
        yield origin


def streams_of(door: Door) -> dict[str, int]:
    """The open streams by their tenants."""
    found: dict[str, int] = door.app.state.gateway.limits._open
    return found


async def test_the_page_of_the_page_shows_the_text_as_it_comes_and_the_stored_answer(
    house: House, tmp_path: Path
) -> None:
    """S-15: in a browser, which follows the relay; when a tab is closed, so is its stream."""
    async with (
        Browser.launched(tmp_path / "profile", tmp_path / "pictures") as browser,
        door_of(house, say("first"), say(TEXT), service="run,read") as (door, provider),
        door.holder(os.environ["PERDURE_TOKEN"]) as service,
        relay_of(executed(RELAY)) as origin,
    ):
        body = {"agent": "writer", "prompt": "go", "session": "job-1"}
        assert (await service.post("/v1/sessions", json=body)).status_code == 202
        await (await house.client.attach("job-1", 1)).result()
        provider.hold_streams(after=4)
        await house.store.watch("job-1")
        assert (await service.post("/v1/sessions/job-1/messages", json={"prompt": "go"})).status_code == 202
        await provider.wait_for_held_streams()
        async with browser.page(f"{origin}/?session=job-1") as page:
            await page.shows("first Rivers 🚣 flow")
            assert "sea" not in await page.text()
            async with browser.page(f"{origin}/?session=job-1") as other:
                await other.shows("first Rivers 🚣 flow")
                assert streams_of(door) == {"acme": 2}

            async def left() -> bool:
                return streams_of(door) == {"acme": 1}

            await eventually(left)
            await provider.release_streams()
            await page.shows(f"first {TEXT}")
            await (await house.client.attach("job-1", 2)).result()

            async def closed() -> bool:
                return not door.app.state.gateway.hub.sessions

            await eventually(closed)
            assert await page.text() == f"first {TEXT}"
            assert browser.complaints == []
        async with httpx.AsyncClient(base_url=origin) as asker:
            missing = await asker.get("/jobs/none/events")
            assert (missing.status_code, missing.json()["code"]) == (404, "request.unknown_session")
            assert (await asker.get("/jobs/x%3Ftree=1/events")).status_code == 422


def pressed(user: str, value: str, *, stamp: float | None = None, secret: str = SECRET) -> tuple[str, dict[str, str]]:
    """What a chat sends when somebody presses a button, as Slack signs it."""
    body = urlencode({"payload": json.dumps({"user": {"id": user}, "actions": [{"value": value}]})})
    at = str(int(time.time() if stamp is None else stamp))
    signature = hmac.new(secret.encode(), f"v0:{at}:{body}".encode(), hashlib.sha256).hexdigest()
    return body, {"x-slack-request-timestamp": at, "x-slack-signature": f"v0={signature}"}


async def test_a_job_is_approved_by_the_buttons_of_the_page(house: House) -> None:
    """The one who pressed is the one who decided; forged and old presses, and those of strangers, decide nothing."""
    posts: list[dict[str, Any]] = []
    chat = FastAPI()

    @chat.post("/")
    async def take(request: Request) -> None:
        posts.append(await request.json())

    replies = (call(("pay", {"amount": 5})), say("Paid."))
    async with (
        served(executed(CHAT)["app"]) as origin,
        served(chat) as chat_url,
        httpx.AsyncClient(base_url=origin) as buttons,
    ):
        house.environment.setenv("PERDURE_WEBHOOK_ALLOW", origin)
        house.environment.setenv("CHAT_URL", chat_url)
        house.environment.setenv("CHAT_SECRET", SECRET)
        house.settings = Settings()
        async with await Client.connect(house.settings) as client:
            added = await client.webhooks.add(f"{origin}/hook", ["waiting"], tenant="acme")
        house.environment.setenv("HOOK_SECRET", added.secret)
        async with door_of(house, *replies, service="read", ana="approve", bot="run") as (_, _):
            turn = await house.client.start("writer", "Pay.", session="job-1", tenant="acme")

            async def posted() -> bool:
                return bool(posts)

            await eventually(posted)
            said, actions = posts[0]["blocks"]
            assert said["text"]["text"] == 'job-1 wants to call pay with {"amount": 5}'
            approve, deny = (button["value"] for button in actions["elements"])

            async def press(*given: Any, **options: Any) -> httpx.Response:
                body, headers = pressed(*given, **options)
                return await buttons.post("/callback", content=body, headers=headers)

            assert (await press("U07ANA", approve, secret="another")).status_code == 401
            assert (await press("U07ANA", approve, stamp=time.time() - 400)).status_code == 401
            assert (await buttons.post("/callback", content="payload={}")).status_code == 401
            assert (await buttons.post("/hook", content="{}")).status_code == 401
            assert (await press("U0STRANGER", approve)).json() == {"text": "You are no approver."}
            assert [request.request_id for request in await house.store.open_requests("job-1")] != []
            assert (await press("U07ANA", approve)).json() == {"text": "Done."}
            assert (await turn.result()).output == "Paid."
            assert (await press("U07ANA", approve)).json() == {"text": "Done."}
            assert "Done." not in (await press("U07ANA", deny)).text
    house.session = "job-1"
    (decided,) = await house.events("user_input_received")
    assert decided["by"] == "ana"
