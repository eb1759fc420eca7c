"""``perdure mcp`` and tasks of MCP's extension (SEP-2663): the SDK's own client polls, answers and cancels a job."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult, Request, RequestParams, Result
from pydantic import ConfigDict

from perdure import Agent, ask_user, tool
from perdure.contracts.a2a import TaskId
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.test_mcp_door import HELD, MCP, did

pytestmark = pytest.mark.deep

EXTENSION = "io.modelcontextprotocol/tasks"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", description="Tests things.", model="openai/scripted", tools=[pay, ask_user])


class Created(Result):
    """A task in place of a result, with whatever fields it has."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str


class Told(Result):
    model_config = ConfigDict(extra="allow")


class Params(RequestParams):
    model_config = ConfigDict(extra="allow")
    task_id: str


class Host(ClientExtension):
    """A host that takes tasks, and keeps the id of the last one."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []

    async def keep(self, created: Created, _: ClaimContext) -> CallToolResult:
        self.created.append(created.model_dump(by_alias=True))
        return CallToolResult(content=[])

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self.keep)]


async def elicited(_: ClientRequestContext, __: ElicitRequestParams) -> ElicitResult:
    raise AssertionError("questions come by tasks/get")


@asynccontextmanager
async def host(extension: Host | None = None, *, asks: bool = True) -> AsyncIterator[Client]:
    child = StdioServerParameters(command=sys.executable, args=MCP, env=dict(os.environ))
    extensions = [] if extension is None else [extension]
    forms: Any = elicited if asks else None
    async with Client(
        child, read_timeout_seconds=WAIT_SECONDS, extensions=extensions, elicitation_callback=forms
    ) as client:
        yield client


async def ask(client: Client, method: str, task: str, **params: Any) -> dict[str, Any]:
    request: Request[Params, str] = Request(method=method, params=Params(task_id=task, **params))
    told = await client.session.send_request(request, Told)
    return {name: value for name, value in told.model_dump(by_alias=True, exclude_none=True).items() if name != "_meta"}


async def begun(client: Client, extension: Host, **arguments: Any) -> dict[str, Any]:
    """The task that ``wait`` gives for a job that is begun here."""
    started = await did(client, "start", agent="tester", prompt="go", **arguments)
    await client.call_tool("wait", {"session": started["session"]})
    return extension.created[-1]


async def polled(client: Client, task: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    last: dict[str, Any] = {}

    async def there() -> bool:
        last.update(await ask(client, "tasks/get", task))
        assert last["resultType"] == "complete"
        return until(last)

    await eventually(there)
    return last


def is_at(status: str) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["status"] == status


async def test_a_long_job_is_a_task_that_any_server_goes_on_with(house: House) -> None:
    """S-78: questions and approvals come by tasks/get, and tasks/update replies; the server may end meanwhile."""
    both = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?", "options": ["blue", "red"]}))
    extension = Host()
    async with ScriptedProvider(Script(replies=(both, say("done")))) as provider, house.worker(AGENT):
        house.use(provider)
        async with host(extension) as client:
            task = (await begun(client, extension))["taskId"]
        async with host(Host()) as client:
            told = await polled(client, task, lambda told: len(told.get("inputRequests", ())) == 2)
            asked = {
                str(request["params"]["message"]).split()[0]: (name, request["params"]["requestedSchema"])
                for name, request in told["inputRequests"].items()
            }
            approval, question = asked["May"], asked["Which"]
            assert question[1]["properties"]["value"]["enum"] == ["blue", "red"]
            bad = {approval[0]: {"action": "accept", "content": {}}}
            with pytest.raises(MCPError, match="decision is approve or deny") as wrong:
                await ask(client, "tasks/update", task, inputResponses=bad)
            assert wrong.value.code == -32602
            closed = {approval[0]: {"action": "cancel"}, "call_of_nobody": {"action": "accept", "content": {}}}
            assert await ask(client, "tasks/update", task, inputResponses=closed) == {"resultType": "complete"}
            replies = {
                approval[0]: {"action": "accept", "content": {"decision": "approve"}},
                question[0]: {"action": "accept", "content": {"value": "blue"}},
            }
            for _ in range(2):  # sent again, as by a host that has not heard
                assert await ask(client, "tasks/update", task, inputResponses=replies) == {"resultType": "complete"}
            told = await polled(client, task, is_at("completed"))
            result = told["result"]["structuredContent"]["result"]
            assert (result["stop_reason"], result["output"]) == ("finished", "done")
            answers = {
                message["content"] for message in provider.requests[-1].request.messages if message["role"] == "tool"
            }
            assert answers == {"paid 7", "blue"}


async def test_a_task_is_cancelled_and_one_that_ended_is_a_result(house: House) -> None:
    """S-78."""
    extension = Host()
    async with ScriptedProvider(HELD) as provider, house.worker(AGENT), host(extension) as client:
        house.use(provider)
        task = await begun(client, extension)
        assert (task["status"], task["ttlMs"], task["resultType"]) == ("working", None, "task")
        for _ in range(2):
            assert await ask(client, "tasks/cancel", task["taskId"]) == {"resultType": "complete"}
            await polled(client, task["taskId"], is_at("cancelled"))
        again = await did(client, "start", agent="tester", prompt="go")
        await polled(client, str(TaskId(again["session"], 1)), is_at("completed"))
        ended = await did(client, "wait", session=again["session"], turn=1)
        assert ended["result"]["output"] == "done"
        assert len(extension.created) == 1


async def test_whoever_does_not_take_tasks_or_names_none_is_told(house: House) -> None:
    """S-78: without the extension nothing changes; unknown ids, and a host whose user cannot be asked."""
    extension = Host()
    waits = Script(replies=(call(("pay", {"amount": 7})),))
    async with ScriptedProvider(waits) as provider, house.worker(AGENT):
        house.use(provider)
        async with host() as plain:
            started = await did(plain, "start", agent="tester", prompt="go")
            told = await did(plain, "wait", session=started["session"])
            assert told["state"] == "waiting_for_input"
            assert await code_of(plain, "tasks/get", str(TaskId(started["session"], 1))) == -32021
        async with host(extension, asks=False) as client:
            told = await did(client, "wait", session=started["session"])
            assert (told["state"], extension.created) == ("waiting_for_input", [])
            for name in (str(TaskId("nobody", 1)), "x", ""):
                for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                    assert await code_of(client, method, name) == -32602
            result = await client.call_tool("wait", {"session": "nobody"})
            assert result.is_error


async def code_of(client: Client, method: str, task: str) -> int:
    """The code that a request is refused with."""
    with pytest.raises(MCPError) as refused:
        await ask(client, method, task, inputResponses={})
    return refused.value.code
