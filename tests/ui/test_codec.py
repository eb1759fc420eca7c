"""The Temporal UI shows encrypted payloads through the gateway: to a token with the scope, and to no other."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import temporalio.client

from perdure import Agent
from perdure.client.connect import make_converter
from perdure.local_ports import find_free_port
from perdure.security.keyring import Keyring
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.ui.browser import Browser, Page
from tests.ui.conftest import house_of

pytestmark = pytest.mark.deep

KEYRING = Keyring({"k1": bytes(range(32))})
PROMPT, OUTPUT = "MARK-prompt-7Q", "MARK-output-7Q"
LINES, TOKENS = token_lines(
    reader=("", "read,decrypt"),
    operator=("", "admin,read,run,approve"),
)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A house with keys, whose server has a UI."""
    async with house_of("codec", tmp_path, find_free_port()) as house:
        house.temporal = await temporalio.client.Client.connect(
            house.server.address, data_converter=make_converter(KEYRING)
        )
        yield house


async def log_in(browser: Browser, door: Door, name: str) -> None:
    """Give the browser the gateway's cookie, as the gateway's own page does."""
    async with browser.page(f"{door.url}/ui") as page:
        await page.shows("perdure")
        body = json.dumps({"method": "POST", "headers": {"content-type": "application/json"}})
        token = json.dumps(json.dumps({"token": TOKENS[name]}))
        status = await page.evaluate(f"fetch('/ui/login', {{...{body}, body: {token}}}).then((r) => r.status)")
        assert status == 204


async def ask_with_cookies(page: Page, endpoint: str) -> None:
    """What the dialogue of the UI's codec settings keeps: the endpoint, and to include cross-origin credentials."""
    kept = {"endpoint": json.dumps(endpoint), "includeCredentials": "true", "overrideRemoteCodecConfiguration": "true"}
    for name, value in kept.items():
        await page.evaluate(f"localStorage.setItem({json.dumps(name)}, {json.dumps(value)})")


async def test_the_ui_shows_content_to_a_token_with_the_scope_and_to_no_other(
    browser: Browser, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedProvider(Script(replies=(say(OUTPUT),))) as provider:
        house.use(provider)
        async with house.worker(Agent(name="tester", model="openai/scripted")):
            assert (await house.run(prompt=PROMPT))["output"] == OUTPUT
    ui = str(house.server.ui_url)
    run = (await house.temporal.get_workflow_handle(house.session).describe()).run_id
    url = f"{ui}/namespaces/default/workflows/{house.session}/{run}/history"

    def outcomes() -> list[tuple[str, str]]:
        lines = [vars(record) for record in caplog.records if record.name == "perdure.audit"]
        return [(line["who"], line["outcome"]) for line in lines if line["action"] == "decode_payloads"]

    async def refused() -> bool:
        return ("operator", "request.forbidden") in outcomes()

    with caplog.at_level(logging.INFO, "perdure.audit"):
        async with gateway(house, gateway_tokens=LINES, codec_origins=(ui,)) as door:
            await log_in(browser, door, "operator")
            async with browser.page(url) as page:
                await page.shows(house.session)
                await ask_with_cookies(page, f"{door.url}/codec")
            async with browser.page(url) as page:
                await eventually(refused)
                await page.shows(house.session)
                text = await page.text()
                assert PROMPT not in text
                assert OUTPUT not in text
            await log_in(browser, door, "reader")
            async with browser.page(url) as page:
                await page.shows(PROMPT, OUTPUT)
    assert ("reader", "done") in outcomes()
    assert ("operator", "done") not in outcomes()
