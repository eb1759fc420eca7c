"""Every door of one house, with the same four verbs: start a job, follow it, answer its question, cancel it."""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import openai
from mcp import Client as McpClient
from openai import AsyncOpenAI
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.cli.errors import ExitCode
from perdure.cli.mcp import Jobs
from perdure.contracts.names import AGENT_TURN
from perdure.gateway.doors.responses.places import ResponseId
from perdure.mcp_server import as_mcp
from tests.forked import Forked, forked
from tests.gateway import Door
from tests.house import WAIT_SECONDS, House, eventually
from tests.sse import follow
from tests.workflow.test_a2a_door import Peer, state_of
from tests.workflow.test_mcp_door import did

QUESTIONS = ("Which colour?", "Why?")
ANSWER = "blue"


class Seen(list[str]):
    """The questions that a follower has been shown, in order, and the numbers of the events that came with them.

    Attributes:
        numbers: Of all events, where the door tells them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def note(self, told: object) -> None:
        """Add the questions that stand in it for the first time."""
        text = told if isinstance(told, str) else json.dumps(told, default=str)
        self.extend(question for question in QUESTIONS if question in text and question not in self)

    async def has(self, count: int, following: "asyncio.Task[str]") -> None:
        """Wait until so many questions have been shown."""

        async def there() -> bool:
            assert len(self) >= count or not following.done(), following.result()
            return len(self) >= count

        await eventually(there)


class Way:
    """A door as its user has it. ``follow`` gives the door's own word for the end."""

    ended = "cancelled"

    def __init__(self, house: House, door: Door) -> None:
        self.house = house
        self.door = door

    async def start(self, session: str) -> None:
        raise NotImplementedError

    async def follow(self, session: str, seen: Seen) -> str:
        raise NotImplementedError

    async def answer(self, session: str) -> None:
        raise NotImplementedError

    async def cancel(self, session: str) -> None:
        raise NotImplementedError


class Native(Way):
    async def start(self, session: str) -> None:
        asked = {"agent": "tester", "prompt": "go", "session": session}
        assert (await self.door.http.post("/v1/sessions", json=asked)).status_code == 202

    async def follow(self, session: str, seen: Seen) -> str:
        async with follow(self.door.http, session, None, after=0) as stream:
            async for sent in stream:
                if sent.event == "end":
                    break
                seen.numbers.append(int(sent.id))
                seen.note(sent.data)
        turn = (await self.door.http.get(f"/v1/sessions/{session}/turns/1")).json()
        return str(turn["result"]["stop_reason"])

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            return (await self.door.http.get(f"/v1/sessions/{session}")).json()["requests"]

        (request,) = await eventually(asked)
        body = {"action": "answer", "value": ANSWER}
        path = f"/v1/sessions/{session}/answers/{request['request_id']}"
        assert (await self.door.http.post(path, json=body)).status_code == 200

    async def cancel(self, session: str) -> None:
        assert (await self.door.http.post(f"/v1/sessions/{session}/cancel", json={})).json()["stops"]


class Responses(Way):
    def __init__(self, house: House, door: Door) -> None:
        super().__init__(house, door)
        self.client = AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="x", max_retries=0)

    async def start(self, session: str) -> None:
        made = await self.client.responses.create(model="tester", input="go", conversation=session, background=True)
        assert made.id == str(ResponseId(session, 1))

    async def follow(self, session: str, seen: Seen) -> str:
        segment, status = 1, "completed"
        while status == "completed":
            opened = await self._open(str(ResponseId(session, 1, segment)))
            async for event in opened:
                seen.note(event.model_dump(mode="json"))
                if event.type in {"response.completed", "response.incomplete", "response.failed"}:
                    status = str(event.response.status)
            segment += 1
        return status

    async def _open(self, response: str) -> Any:
        async def there() -> Any:
            try:
                return await self.client.responses.retrieve(response, stream=True)
            except openai.NotFoundError:
                return None

        return await eventually(there)

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            return (await self.client.responses.retrieve(str(ResponseId(session, 1)))).output

        (call,) = await eventually(asked)
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": ANSWER}]
        await self.client.responses.create(input=output, conversation=session, background=True)

    async def cancel(self, session: str) -> None:
        await self.client.responses.cancel(str(ResponseId(session, 1, 2)))


class A2A(Way):
    ended = "CANCELED"

    def __init__(self, house: House, door: Door) -> None:
        super().__init__(house, door)
        self.peer = Peer(door.http)

    async def start(self, session: str) -> None:
        message = {**self.peer.message("go", contextId=session), "messageId": uuid.uuid4().hex}
        await self.peer.result("SendMessage", message=message, configuration={"returnImmediately": True})

    async def _task(self, session: str) -> dict[str, Any]:
        async def there() -> Any:
            return (await self.peer.result("ListTasks", contextId=session))["tasks"]

        (task,) = await eventually(there)
        return dict(task)

    async def follow(self, session: str, seen: Seen) -> str:
        task = await self._task(session)
        path, told = f"/a2a/tester/tasks/{task['id']}:subscribe", {"A2A-Version": "1.0"}
        while not state_of(task := await self.peer.result("GetTask", id=task["id"])).startswith("CANCEL"):
            async with self.door.http.stream("POST", path, headers=told) as stream:  # refused once the task has ended
                async for line in stream.aiter_lines():
                    seen.note(line)
        return state_of(task)

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            task = await self._task(session)
            return task if state_of(task) == "INPUT_REQUIRED" else None

        task = await eventually(asked)
        message = {**self.peer.message(ANSWER, taskId=task["id"]), "messageId": uuid.uuid4().hex}
        await self.peer.result("SendMessage", message=message, configuration={"returnImmediately": True})

    async def cancel(self, session: str) -> None:
        task = await self.peer.result("CancelTask", id=(await self._task(session))["id"])
        assert state_of(task) == "CANCELED"


class AgUi(Way):
    async def start(self, session: str) -> None:
        asked = {"threadId": session, "runId": "r1", "messages": [{"id": "m", "role": "user", "content": "go"}]}
        async with self.door.http.stream("POST", "/agui/tester", json=asked) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "id: 0"
            assert "RUN_STARTED" in await anext(lines)

    async def _run(self, session: str, segment: int, seen: Seen | None = None) -> dict[str, Any]:
        """The last event of a run that may begin only later."""
        where = f"/agui/tester/threads/{session}/runs/1.{segment}"

        async def read() -> dict[str, Any] | None:
            last = None
            async with self.door.http.stream("GET", where) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        last = json.loads(line.removeprefix("data: "))
                        if seen is not None:
                            seen.note(last)
            return dict(last) if last is not None else None

        return dict(await eventually(read))

    async def follow(self, session: str, seen: Seen) -> str:
        segment, outcome = 1, "interrupt"
        while outcome == "interrupt":
            outcome = (await self._run(session, segment, seen))["outcome"]["type"]
            segment += 1
        return outcome

    async def answer(self, session: str) -> None:
        (asked,) = (await self._run(session, 1))["outcome"]["interrupts"]
        resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"answer": ANSWER}}]
        body = {"threadId": session, "runId": "r2", "messages": [], "resume": resume}
        answered = await self.door.http.post("/agui/tester", json=body)
        assert (answered.status_code, "RUN_FINISHED" in answered.text) == (200, True), answered.text

    async def cancel(self, session: str) -> None:
        cancelled = await self.door.http.delete(f"/agui/tester/threads/{session}/runs/1.2")
        assert cancelled.status_code == 204, cancelled.text


class Mcp(Way):
    def __init__(self, house: House, door: Door, client: McpClient) -> None:
        super().__init__(house, door)
        self.client = client

    async def start(self, session: str) -> None:
        assert (await did(self.client, "start", agent="tester", prompt="go", session=session))["turn"] == 1

    async def follow(self, session: str, seen: Seen) -> str:
        async def ended() -> Any:
            told = await did(self.client, "wait", session=session)
            seen.note(told)
            return told if told["state"] == "ended" else None

        return str((await eventually(ended))["result"]["stop_reason"])

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            return (await did(self.client, "status", session=session))["requests"]

        (request,) = await eventually(asked)
        await did(self.client, "answer", session=session, request=request["request_id"], value=ANSWER, by="ann")

    async def cancel(self, session: str) -> None:
        await did(self.client, "cancel", session=session)


class CommandLine(Way):
    """Forked from a process that has loaded what it needs."""

    def _begin(self, *arguments: str) -> tuple[Forked, Path]:
        log = self.house.folder / f"cli-{uuid.uuid4().hex[:6]}.log"
        process = forked("perdure.cli", arguments, dict(os.environ), log)
        self.house.processes.append(process)
        return process, log

    async def _run(self, *arguments: str) -> str:
        process, log = self._begin(*arguments)
        assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0, log.read_text()
        return str(log.read_text())

    async def start(self, session: str) -> None:
        await self._run("run", "tester", "go", "--session", session, "--detach")

    async def follow(self, session: str, seen: Seen) -> str:
        end: dict[str, Any] | None = None
        while end is None:  # a follower that is no terminal is told to come again when somebody has answered
            process, log = self._begin("follow", session, "--after", str(len(seen.numbers)), "--json")

            async def ended(process: Forked = process, log: Path = log) -> bool:
                seen.note(log.read_text())
                return process.poll() is not None

            await eventually(ended)
            lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            assert lines or process.poll() == ExitCode.WAITING, log.read_text()
            seen.numbers.extend(line["seq"] for line in lines)
            end = next((line for line in lines if line["type"] == "agent_end"), None)
        return str(end["stop_reason"])

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            return [
                json.loads(line) for line in (await self._run("inbox", "--session", session, "--json")).splitlines()
            ]

        (request,) = await eventually(asked)
        await self._run("answer", session, request["request_id"], ANSWER, "--by", "ann")

    async def cancel(self, session: str) -> None:
        await self._run("cancel", session)


class Python(Way):
    async def start(self, session: str) -> None:
        await self.house.client.start("tester", "go", session=session)

    async def follow(self, session: str, seen: Seen) -> str:
        turn = await self.house.client.attach(session, 1)
        async for event in turn.events():
            seen.numbers.append(event.seq)
            seen.note(event.line())
        return str((await turn.result()).stop_reason)

    async def answer(self, session: str) -> None:
        (request,) = await eventually(lambda: self.house.client.inbox(session))
        await self.house.client.answer(session, request.request_id, ANSWER, by="ann")

    async def cancel(self, session: str) -> None:
        assert await self.house.client.cancel(session)


class Workflow(Way):
    """Plain Temporal."""

    async def start(self, session: str) -> None:
        asked = {"agent": "tester", "prompt": "go"}
        queue = self.house.settings.task_queue
        await self.house.temporal.start_workflow(AGENT_TURN, asked, id=session, task_queue=queue)

    async def _status(self, session: str) -> dict[str, Any]:
        return dict(await self.house.temporal.get_workflow_handle(session).query("status"))

    async def follow(self, session: str, seen: Seen) -> str:
        result = asyncio.ensure_future(self.house.temporal.get_workflow_handle(session).result())

        async def ended() -> bool:
            with contextlib.suppress(RPCError, WorkflowQueryFailedError):  # no worker has it yet
                seen.note(await self._status(session))
            return result.done()

        await eventually(ended)
        return str((await result)["stop_reason"])

    async def answer(self, session: str) -> None:
        async def asked() -> Any:
            return (await self._status(session))["requests"]

        (request,) = await eventually(asked)
        fields = {"request": request["request_id"], "value": ANSWER, "by": "ann"}
        await self.house.temporal.get_workflow_handle(session).execute_update("answer", fields)

    async def cancel(self, session: str) -> None:
        await self.house.temporal.get_workflow_handle(session).signal("cancel", {"reason": "enough"})


WAYS = ("native", "responses", "a2a", "agui", "mcp", "cli", "python", "workflow")


@asynccontextmanager
async def all_ways(house: House, door: Door) -> AsyncIterator[dict[str, Way]]:
    """Every door, by the names of :data:`WAYS`."""
    async with AsyncExitStack() as stack:
        jobs = Jobs()
        stack.push_async_callback(jobs.close)
        mcp = await stack.enter_async_context(McpClient(as_mcp(*jobs.tools()), read_timeout_seconds=WAIT_SECONDS))
        responses = Responses(house, door)
        await stack.enter_async_context(responses.client)
        yield {
            "native": Native(house, door),
            "responses": responses,
            "a2a": A2A(house, door),
            "agui": AgUi(house, door),
            "mcp": Mcp(house, door, mcp),
            "cli": CommandLine(house, door),
            "python": Python(house, door),
            "workflow": Workflow(house, door),
        }
