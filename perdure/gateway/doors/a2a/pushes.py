"""Configurations of push notifications: webhooks of a task, as the protocol shows them. Credentials are never shown."""

from perdure.client.pushes import Pushes
from perdure.contracts.a2a import TaskId
from perdure.contracts.webhooks import PushConfig, Webhook
from perdure.gateway.doors.a2a.errors import A2AError, Reason
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.doors.a2a.requests import Push


async def add(client: Pushes, task: TaskId, asked: Push) -> Object:
    """Add a configuration to a task, in place of the one with that id.

    Raises:
        RequestRefusedError: The address may not be used, or the task has too many.
    """
    scheme = "" if asked.authentication is None else asked.authentication.scheme
    push = PushConfig(id=name_of(task, asked), scheme=scheme)
    return _describe(task, await client.add(task.session, task.turn, asked.url, push, asked.headers()))


def name_of(task: TaskId, asked: Push) -> str:
    """Id of the configuration that is asked for: by default the task's."""
    return asked.id or str(task)


async def find(client: Pushes, task: TaskId, name: str) -> Object:
    """The configuration of that id.

    Raises:
        A2AError: The task has none.
    """
    for webhook in await client.list(task.session, task.turn):
        if webhook.push is not None and webhook.push.id == name:
            return _describe(task, webhook)
    raise A2AError(Reason.TASK_NOT_FOUND, f"the task has no configuration {name[:200]!r} of push notifications")


async def list_all(client: Pushes, task: TaskId) -> Object:
    """All configurations of a task."""
    return {"configs": [_describe(task, webhook) for webhook in await client.list(task.session, task.turn)]}


def _describe(task: TaskId, webhook: Webhook) -> Object:
    push = webhook.push or PushConfig(id="")
    told: Object = {"id": push.id, "taskId": str(task), "url": webhook.url}
    return {**told, "authentication": {"scheme": push.scheme}} if push.scheme else told
