"""The receiver that the page on webhooks shows takes each message of a turn once, and no forged one."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Agent
from perdure.client import Client
from perdure.contracts.webhooks import WebhookEvent
from perdure.settings import Settings
from perdure.testing import Script, ScriptedProvider, say
from tests.docs.serving import served
from tests.house import House, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
ADD, RECEIVE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_receiver_of_the_page_takes_each_message_once(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"seen": set()}
    exec(compile(RECEIVE, "docs/webhooks.md", "exec"), names)
    async with served(names["app"]) as origin:
        house.environment.setenv("PERDURE_WEBHOOK_ALLOW", origin)
        house.settings = Settings()
        async with await Client.connect(house.settings) as client:
            added = await client.webhooks.add(f"{origin}/hook", ["ended"])
            house.environment.setenv("HOOK_SECRET", added.secret)
            async with (
                ScriptedProvider(Script(replies=(say("done"),))) as provider,
                house.worker(Agent(name="tester", model="openai/scripted")),
            ):
                house.use(provider)
                await house.run()
                (done,) = await eventually(lambda: client.webhooks.deliveries(added.id, state="delivered"))
                await client.webhooks.redrive(added.id, done.message)

                async def again() -> bool:
                    (now,) = await client.webhooks.deliveries(added.id)
                    return now.state == "delivered" and now.started_at > done.started_at

                await eventually(again)
        async with httpx.AsyncClient() as forger:
            headers = {"webhook-id": "forged", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
            forged = await forger.post(f"{origin}/hook", json={"type": "turn.ended"}, headers=headers)
    assert forged.status_code == 401
    assert capsys.readouterr().out == f"turn.ended {house.session} finished\n"
    assert names["seen"] == {done.message}


def test_the_page_names_each_event() -> None:
    table = PAGE.split("## Messages")[1].split("## The receiver")[0]
    types = re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)
    assert types == [*(f"turn.{event}" for event in sorted(WebhookEvent)), "webhook.test"]
