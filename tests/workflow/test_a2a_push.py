"""S-83: push notifications of A2A are webhooks of one task: signed, retried and kept as webhooks are."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.receiver import Received, Receiver
from tests.unit.gateway.a2a_rules import judge, judge_update
from tests.workflow.test_a2a_door import AGENT, OTHER, Peer, opened, state_of

TOKEN, CREDENTIALS = "token-of-the-task-1", "credentials-of-the-receiver-1"


@pytest.fixture
async def receiver(house: House) -> AsyncIterator[Receiver]:
    """A receiver that workers and the gateway allow."""
    async with Receiver.listening() as listening:
        house.settings = house.settings.model_copy(update={"webhook_allow": ("*", listening.origin)})
        yield listening


def config_of(receiver: Receiver, **more: Any) -> dict[str, Any]:
    known = {"scheme": "Bearer", "credentials": CREDENTIALS}
    return {"id": "mine", "url": receiver.url, "token": TOKEN, "authentication": known, **more}


async def arrived(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    """Updates that so many notifications had, each judged by the protocol's own rules."""

    async def there() -> list[Received]:
        return receiver.got if len(receiver.got) >= count else []

    told = [json.loads(got.body) for got in await eventually(there)]
    for update in told:
        judge_update(update)
    return [update["statusUpdate"] for update in told]


def state(update: dict[str, Any]) -> str:
    return str(update["status"]["state"]).removeprefix("TASK_STATE_")


async def test_a_task_tells_its_wait_and_its_end_as_a_stream_does(house: House, receiver: Receiver) -> None:
    """S-83: from a configuration in the message itself; with its token and credentials, and without content."""
    async with opened(house, call(("ask_user", {"question": "Which colour?"})), say("blue it is")) as (peer, _):
        sent = {"taskPushNotificationConfig": config_of(receiver)}
        task = (await peer.result("SendMessage", message=peer.message("paint"), configuration=sent))["task"]
        await arrived(receiver, 1)
        ended = await peer.send("blue", taskId=task["id"])
        assert state_of(ended) == "COMPLETED"
        waited, done = await arrived(receiver, 2)
    assert {(update["taskId"], update["contextId"]) for update in (waited, done)} == {(task["id"], task["contextId"])}
    assert (state(waited), state(done)) == ("INPUT_REQUIRED", "COMPLETED")
    assert done["status"]["timestamp"] == ended["status"]["timestamp"]
    assert done["metadata"]["stopReason"] == "finished"
    for got in receiver.got:
        assert got.headers["x-a2a-notification-token"] == TOKEN
        assert got.headers["authorization"] == f"Bearer {CREDENTIALS}"
        assert got.headers["content-type"] == "application/a2a+json"
        assert b"colour" not in got.body
        assert b"blue" not in got.body


async def test_a_tenants_open_tasks_have_no_more_configurations_than_its_limit(
    house: House, receiver: Receiver
) -> None:
    """S-95: a message that brings one too many begins nothing; one in place of another, and those of others, count."""
    asks = call(("ask_user", {"question": "?"}))
    house.settings = house.settings.model_copy(update={"gateway_max_pushes": 2})
    async with opened(house, asks, say("done")) as (peer, _):
        first, second = await peer.send("go"), await peer.send("go")
        create = "CreateTaskPushNotificationConfig"
        for task in (first, second):
            await peer.result(create, taskId=task["id"], **config_of(receiver))
        await peer.result(create, taskId=first["id"], **config_of(receiver, token="another"))
        code = (-32000, "request.too_many_pushes")
        assert await peer.error(create, taskId=first["id"], **config_of(receiver, id="more")) == code
        before = len(await house.client.sessions())
        sent = {"taskPushNotificationConfig": config_of(receiver)}
        assert await peer.error("SendMessage", message=peer.message("go"), configuration=sent) == code
        assert len(await house.client.sessions()) == before
        assert state_of(await peer.send("yes", taskId=first["id"])) == "COMPLETED"
        await peer.result(create, taskId=second["id"], **config_of(receiver, id="more"))
        assert state_of(await peer.send("yes", taskId=second["id"])) == "COMPLETED"


async def test_a_configuration_is_made_read_listed_and_deleted_by_both_bindings(
    house: House, receiver: Receiver
) -> None:
    """S-83: and its credentials are shown to nobody again, and Temporal never has them."""
    async with opened(house, call(("ask_user", {"question": "?"})), say("a"), say("b")) as (peer, door):
        task = await peer.send("go")
        path = f"/tasks/{task['id']}/pushNotificationConfigs"
        made = await peer.result("CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver))
        judge("TaskPushNotificationConfig", made)
        shown = {"id": "mine", "taskId": task["id"], "url": receiver.url, "authentication": {"scheme": "Bearer"}}
        assert made == shown
        (waits,) = await arrived(receiver, 1)
        assert state(waits) == "INPUT_REQUIRED"
        again = await peer.rest("POST", path, json=config_of(receiver))
        assert (again.status_code, again.json()) == (200, shown)
        own = (await peer.rest("POST", path, json={"url": receiver.url})).json()
        assert own == {"id": task["id"], "taskId": task["id"], "url": receiver.url}
        listed = await peer.result("ListTaskPushNotificationConfigs", taskId=task["id"])
        judge("ListTaskPushNotificationConfigsResponse", listed)
        assert listed == (await peer.rest("GET", path)).json() == {"configs": [shown, own]}
        found = await peer.result("GetTaskPushNotificationConfig", taskId=task["id"], id="mine")
        assert found == (await peer.rest("GET", f"{path}/mine")).json() == shown
        (kept,) = [
            hook
            for hook in await house.store.webhooks(turn=(task["contextId"], 1))
            if hook.push and hook.push.id == "mine"
        ]
        assert (await door.http.get("/v1/webhooks")).json()["items"] == []
        assert (await door.http.get(f"/v1/webhooks/{kept.id}")).json()["push"] == {"id": "mine", "scheme": "Bearer"}
        for _ in range(2):
            assert await peer.result("DeleteTaskPushNotificationConfig", taskId=task["id"], id=task["id"]) == {}
        assert (await peer.rest("DELETE", f"{path}/mine")).json() == {}
        assert (await peer.rest("GET", path)).json() == {"configs": []}
        assert (await peer.rest("GET", f"{path}/mine")).status_code == 404
        assert await peer.error("GetTaskPushNotificationConfig", taskId=task["id"], id="mine") == (
            -32001,
            "request.unknown_turn",
        )
        assert state_of(await peer.send("yes", taskId=task["id"])) == "COMPLETED"
        count = len(receiver.got)
        assert count == 2
        await peer.result("CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver, id="late"))
        told = await arrived(receiver, count + 1)
        assert state(told[-1]) == "COMPLETED"
        await peer.send("the next task", contextId=task["contextId"])
        assert len(receiver.got) == count + 1
        async for run in house.temporal.list_workflows('WorkflowType = "Notify"'):
            history = (await house.temporal.get_workflow_handle(run.id).fetch_history()).to_json()
            assert TOKEN not in history
            assert CREDENTIALS not in history


async def test_who_may_configure_what_is_checked_before_anything_begins(house: House, receiver: Receiver) -> None:
    """S-83: addresses are checked as those of other webhooks, and a task is its tenant's alone."""
    lines, tokens = token_lines(
        ann=("acme", "run,read,approve"), eve=("evil", "run,read,approve"), bob=("acme", "read")
    )
    async with (
        ScriptedProvider(Script(replies=(call(("ask_user", {"question": "?"})),))) as provider,
        house.worker(AGENT, OTHER),
        gateway(house, doors=("a2a",), gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
        door.holder(tokens["bob"]) as bob,
    ):
        house.use(provider)
        peer, thief, reader = Peer(ann), Peer(eve), Peer(bob)
        for url in (
            "http://127.0.0.1:1/x",
            "https://169.254.169.254/x",
            "ftp://example.com",
            "https://a:b@example.com",
            "",
        ):
            inside = {"taskPushNotificationConfig": {"url": url}}
            error = await peer.error("SendMessage", message=peer.message("x"), configuration=inside)
            assert error == (-32602, "request.invalid"), url
        assert (await peer.result("ListTasks"))["totalSize"] == 0
        task = await peer.send("x", contextId="desk-1")
        for odd in (
            {"url": "https://10.0.0.7/x"},
            {"token": "two\r\nlines: 1"},
            {"authentication": {"scheme": "Be arer"}},
            {"authentication": {"scheme": "Bearer", "credentials": "x\ny"}},
        ):
            error = await peer.error(
                "CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver, **odd)
            )
            assert error == (-32602, "request.invalid"), odd
        await peer.result("CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver))
        for number in range(9):
            await peer.result(
                "CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver, id=f"c{number}")
            )
        more = await peer.error("CreateTaskPushNotificationConfig", taskId=task["id"], **config_of(receiver, id="more"))
        assert more == (-32602, "request.invalid")
        about = {"taskId": task["id"], "id": "mine"}
        for operation in ("Create", "Get", "Delete"):
            params = {**about, **(config_of(receiver) if operation == "Create" else {})}
            error = await thief.error(f"{operation}TaskPushNotificationConfig", **params)
            assert error == (-32001, "request.unknown_turn"), operation
            told = await reader.rpc(f"{operation}TaskPushNotificationConfig", **params)
            assert ("result" in told) == (operation == "Get"), told
        assert len((await reader.result("ListTaskPushNotificationConfigs", taskId=task["id"]))["configs"]) == 10
