"""S-83: the door of AG-UI, over HTTP with a real worker, judged by AG-UI's types and by ag-ui-validate."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui_validate.pytest_plugin import validate_agui_endpoint

from perdure import Agent, ask_user, tool
from perdure.testing import ChatRequest, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Reply
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually
from tests.unit.gateway.agui_types import judge_input, judge_run, write_report
from tests.workflow import slots

pytestmark = pytest.mark.judged("AG-UI 1.0", "ag-ui-validate")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
LOOK = {"name": "look", "description": "Look up.", "parameters": SCHEMA}


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay, ask_user])


@asynccontextmanager
async def opened(house: House, *replies: Reply, agent: Agent = AGENT, **settings: Any) -> AsyncIterator[Door]:
    async with (
        ScriptedProvider(Script(replies=replies)) as provider,
        house.worker(agent),
        gateway(house, doors=("agui",), **settings) as door,
    ):
        house.use(provider)
        yield door


def user(text: str, name: str = "m1") -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text}


def asked(run: str, *messages: dict[str, Any], thread: str = "t1", **more: Any) -> dict[str, Any]:
    fields = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, "protocolVersion": "1.0", **more}
    return judge_input({"threadId": thread, "runId": run, "messages": list(messages), **fields})


def events_of(answer: httpx.Response, earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The events of a run, judged."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    judge_run(events, earlier)
    return events


async def run(door: Door, body: dict[str, Any], earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return events_of(await door.http.post("/agui/tester", json=body), earlier)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def test_a_thread_goes_on_and_the_same_run_is_the_same(house: House, tmp_path: Path) -> None:
    """S-83: the validator's own client begins a run; a run is posted twice, and read again under its address."""
    async with opened(house, say("one"), say("two")) as door:
        report = await validate_agui_endpoint(f"{door.url}/agui/tester")
        told = write_report(report, tmp_path / "ag-ui-validate.json")
        assert (told["summary"]["errors"], told["summary"]["warnings"], told["diagnostics"]) == (0, 0, [])
        body = asked("r1", user("1"), context=[{"description": "where", "value": "here"}])
        answer = await door.http.post("/agui/tester", json=body)
        first = events_of(answer)
        assert (text_of(first), answer.headers["content-location"]) == ("one", "/agui/tester/threads/t1/runs/1.1")
        again = await run(door, body)
        assert (text_of(again), again[-1]) == ("one", first[-1])
        assert events_of(await door.http.get("/agui/tester/threads/t1/runs/r1")) == again
        named = events_of(await door.http.get(answer.headers["content-location"]))
        assert [event["type"] for event in named] == [event["type"] for event in again]
        said = {"id": "a1", "role": "assistant", "content": "one"}
        third = await run(door, asked("r2", user("1"), said, user("2", "m2")))
        assert text_of(third) == "two"
        assert [view.request_id for view in await house.client.turn_views("t1")] == ["r1", "r2"]


async def test_interrupts_are_resumed(house: House) -> None:
    """S-83: an approval and a question end a run, and the next one has their replies."""
    both = call(("pay", {"amount": 7}), ("ask_user", {"question": "Which colour?"}))
    async with opened(house, both, say("done")) as door:
        first = await run(door, asked("r1", user("go")))
        approval, question = first[-1]["outcome"]["interrupts"]
        resume = [
            {"interruptId": approval["id"], "status": "resolved", "payload": {"approved": True}},
            {"interruptId": question["id"], "status": "resolved", "payload": {"answer": "blue"}},
        ]
        for wrong, why in (
            (asked("r2", user("go"), resume=resume[:1]), "no output found"),
            (asked("r2", user("go"), user("more", "m2")), "the run waits for it"),
            (asked("r2", user("go"), resume=[{**resume[0], "interruptId": "call_x"}]), "asked for no 'call_x'"),
            (asked("r2", user("go"), resume=[{**resume[0], "payload": {"answer": "x"}}, resume[1]]), "needs an entry"),
        ):
            refused = await door.http.post("/agui/tester", json=wrong)
            assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid"), refused.text
            assert why in refused.json()["message"]
        calls = (approval["id"], question["id"])
        called = {"id": approval["id"], "type": "function", "function": {"name": "pay", "arguments": "{}"}}
        shown = {"id": "a1", "role": "assistant", "toolCalls": [called]}
        hooked = {
            "id": "x1",
            "role": "tool",
            "toolCallId": approval["id"],
            "content": "forged",
        }  # as CopilotKit sends it
        second = await run(door, asked("r2", user("go"), shown, hooked, resume=resume), calls)
        results = [event["content"] for event in second if event["type"] == "TOOL_CALL_RESULT"]
        assert (sorted(results), text_of(second)) == (["blue", "paid 7"], "done")
        again = await run(door, asked("r2", user("go"), resume=resume), calls)
        assert (text_of(again), again[-1]) == ("done", second[-1])
        other = [{**resume[0], "payload": {"approved": False}}, resume[1]]
        conflict = await door.http.post("/agui/tester", json=asked("r3", user("go"), resume=other))
        assert (conflict.status_code, conflict.json()["code"]) == (409, "request.conflict")


async def test_front_end_tools_run_in_the_caller(house: House) -> None:
    """S-81, S-83."""
    async with opened(house, call(("look", {"id": 7})), say("done")) as door:
        first = await run(door, asked("r1", user("go"), tools=[LOOK]))
        (call_id,) = first[-1]["outcome"]["pendingToolCallIds"]
        called = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}
        history = [user("go"), {"id": "a1", "role": "assistant", "toolCalls": [called]}]
        result = {"id": "x1", "role": "tool", "toolCallId": call_id, "content": "Ann"}
        unknown = {**result, "toolCallId": "call_x"}
        huge = {**result, "content": "x" * 1_000_000}
        for wrong in (unknown, huge):
            refused = await door.http.post("/agui/tester", json=asked("r2", *history, wrong, tools=[LOOK]))
            assert (refused.status_code, refused.json()["type"]) == (422, "RUN_ERROR"), refused.text
        second = await run(door, asked("r2", *history, result, tools=[LOOK]))
        assert text_of(second) == "done"
        assert text_of(await run(door, asked("r2", *history, result, tools=[LOOK]))) == "done"
        again = await door.http.post("/agui/tester", json=asked("r3", *history, {**result, "content": "Bob"}))
        assert (again.status_code, again.json()["code"]) == (409, "request.conflict")


def shown(call_id: str, tool: str = "pay") -> dict[str, Any]:
    """A call of the agent, as a client keeps it."""
    called = {"id": call_id, "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return {"id": call_id, "role": "assistant", "toolCalls": [called]}


def entry(call_id: str, status: str = "resolved", **payload: Any) -> dict[str, Any]:
    return {"interruptId": call_id, "status": status, **({"payload": payload} if payload else {})}


def seen_by(provider: ScriptedProvider) -> list[str]:
    """What the model has read last."""
    return [str(message["content"]) for message in provider.requests[-1].request.messages]


async def test_a_message_beside_decisions_is_read_with_them(house: House) -> None:
    """S-83: as CopilotKit sends them: under the run's own id, the hook's message of a tool behind all others."""
    async with opened(house, call(("pay", {"amount": 7})), say("done"), say("bye")) as door:
        first = await run(door, asked("r1", user("go")))
        (waits,) = first[-1]["outcome"]["interrupts"]
        name = waits["id"]
        hooked = {"id": "x1", "role": "tool", "toolCallId": name, "content": '{"approved": true}'}
        decided = asked(
            "r1", user("go"), shown(name), user("and quickly", "m2"), hooked, resume=[entry(name, approved=True)]
        )
        second = await run(door, decided, (name,))
        assert [event["content"] for event in second if event["type"] == "TOOL_CALL_RESULT"] == ["paid 7"]
        assert text_of(second) == "done"
        again = await run(door, decided, (name,))
        assert again[-1] == second[-1]
        answer = next(event["messageId"] for event in second if event["type"] == "TEXT_MESSAGE_START")
        conversation = [*decided["messages"], {"id": answer, "role": "assistant", "content": "done"}]
        third = await run(door, asked("r2", *conversation, user("thanks", "m3")))
        assert text_of(third) == "bye"
    heard = [message.content for message in await house.client.transcript("t1") if message.role == "user"]
    assert heard == ["go", "and quickly", "thanks"]


async def test_a_decision_that_somebody_made_elsewhere_costs_no_message(house: House) -> None:
    """S-83: a client that has to address the interrupt takes what stands, and says what comes next."""
    async with opened(house, call(("pay", {"amount": 7})), say("done"), say("bye"), say("end")) as door:
        first = await run(door, asked("r1", user("go")))
        name = first[-1]["outcome"]["interrupts"][0]["id"]
        await house.client.deny("t1", name, by="ann")
        await (await house.client.attach("t1", 1)).result()
        history = [user("go"), shown(name)]
        refused = await door.http.post("/agui/tester", json=asked("r2", *history, resume=[entry(name, approved=True)]))
        assert (refused.status_code, refused.json()["code"]) == (409, "request.conflict")
        assert 'the status "cancelled" takes it as it is' in refused.json()["message"]
        beside = asked("r2", *history, user("next", "m2"), resume=[entry(name, approved=True)])
        assert (await door.http.post("/agui/tester", json=beside)).status_code == 409
        taken = await run(door, asked("r3", *history, resume=[entry(name, "cancelled")]), (name,))
        assert text_of(taken) == "done"
        for number, resume in enumerate(([entry(name, "cancelled")], [entry(name, approved=False)])):
            words = user(("next", "after")[number], f"n{number}")
            said = await run(door, asked("r1", *history, words, resume=resume))  # under the id of the run that asked
            assert text_of(said) == ("bye", "end")[number]
    heard = [message.content for message in await house.client.transcript("t1") if message.role == "user"]
    assert heard == ["go", "next", "after"]


async def test_results_are_taken_where_they_stand_and_a_lost_one_holds_no_thread(house: House) -> None:
    """S-83: the run of a front end's tool has stopped, so a message goes on without its result."""
    calls = [call(("look", {"id": 7})), say("seen"), call(("look", {"id": 8})), say("went on")]
    async with opened(house, *calls) as door:
        first = await run(door, asked("r1", user("go"), tools=[LOOK]))
        (name,) = first[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "x1", "role": "tool", "toolCallId": name, "content": "Ann"}
        told = [user("go"), shown(name, "look"), result, user("and then?", "m2")]
        second = await run(door, asked("r2", *told, tools=[LOOK]), (name,))
        assert text_of(second) == "seen"
        third = await run(door, asked("r3", *told, {"id": "x", "role": "assistant"}, user("more", "m3"), tools=[LOOK]))
        (lost,) = third[-1]["outcome"]["pendingToolCallIds"]
        messages = *told, shown(lost, "look"), user("never mind", "m4")
        last = await run(door, asked("r4", *messages, tools=[LOOK]), (lost,))
        assert text_of(last) == "went on"
        (withdrawn,) = (event for event in last if event["type"] == "TOOL_CALL_RESULT")
        assert (withdrawn["toolCallId"], "message came" in withdrawn["content"]) == (lost, True)
    transcript = await house.client.transcript("t1")
    assert [str(message.content) for message in transcript if message.role == "user"] == [
        "go",
        "and then?",
        "more",
        "never mind",
    ]
    results = [str(message.content) for message in transcript if message.role == "tool"]
    assert results[0] == "Ann"
    assert "withdrawn" in results[1] or "not" in results[1]


async def test_older_clients_get_outcomes_that_they_know(house: House) -> None:
    """S-83: 0.0.59, which CopilotKit has, refuses what 1.0 has added to an outcome, and then the whole run."""
    async with opened(house, call(("look", {"id": 7})), say("never").after(faults.hang())) as door:
        body = asked("r1", user("go"), tools=[LOOK])
        del body["protocolVersion"]
        answer = await door.http.post("/agui/tester", json=body)
        last = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))
        assert last["outcome"] == {"type": "success"}


async def test_a_thread_is_connected_to_and_stopped(house: House) -> None:
    """S-83: as CopilotKit's runtime: its agents, a thread from the log for a page that was loaded again, and a stop."""
    replies = [
        call(("pay", {"amount": 7}), ("look", {"id": 1})),
        say("done"),
        say("never").after(faults.hang()),
    ]
    async with opened(house, *replies) as door:
        info = (await door.http.get("/agui/info")).json()
        assert info["agents"].keys() >= {"tester"}
        assert info["mode"] == "sse"
        nothing = await connect(door, "t1")
        assert [event["type"] for event in nothing] == ["RUN_STARTED", "RUN_FINISHED"]
        first = events_of(await door.http.post("/agui/agent/tester/run", json=asked("r1", user("go"), tools=[LOOK])))
        waits = await connect(door, "t1")
        assert waits[1] == {"type": "MESSAGES_SNAPSHOT", "messages": []}
        assert waits[-1]["outcome"] == first[-1]["outcome"]
        assert text_of(waits) == "go"
        (approval,), look = waits[-1]["outcome"]["interrupts"], "look"
        calls = {event["toolCallName"]: event["toolCallId"] for event in waits if event["type"] == "TOOL_CALL_START"}
        result = {"id": "x1", "role": "tool", "toolCallId": calls[look], "content": "Ann"}
        history = [user("go"), shown(calls["pay"]), shown(calls[look], look), result]
        await run(door, asked("r2", *history, resume=[entry(approval["id"], approved=True)]), (*calls.values(),))
        ended = await connect(door, "t1", (*calls.values(),))
        _, snapshot = (event["messages"] for event in ended if event["type"] == "MESSAGES_SNAPSHOT")
        assert [message["role"] for message in snapshot] == ["user", "assistant", "assistant"]
        results = {event["toolCallId"]: event["content"] for event in ended if event["type"] == "TOOL_CALL_RESULT"}
        assert results == {calls["pay"]: "paid 7", calls[look]: "Ann"}
        assert (text_of(ended), ended[-1]["outcome"]) == ("done", {"type": "success"})
        async with door.http.stream("POST", "/agui/agent/tester/run", json=asked("r3", user("on"))) as running:
            assert running.status_code == 200
            await eventually(lambda: is_running(house, "t1", 2))
            late = await door.http.post("/agui/agent/tester/stop/t1", json={"runId": "r1"})
            assert late.json()["stopped"] is False
            stopped = await door.http.post("/agui/agent/tester/stop/t1", json={"runId": "r3"})
            assert stopped.json()["stopped"] is True

        async def has_nothing_to_stop() -> bool:  # the run of a turn that has ended takes a cancel until it closes
            again = await door.http.post("/agui/agent/tester/stop/t1", json={})
            return again.json()["stopped"] is False

        await eventually(has_nothing_to_stop)
        assert text_of(await run(door, asked("r4", user("more")))) == "never"  # at once: the stop is over
        assert (await door.http.post("/agui/agent/tester/stop/none", json={})).status_code == 404


async def test_a_thread_that_waits_on_after_a_part_of_the_decisions_is_connected_to(house: House) -> None:
    """S-83: the page learns what still waits, and its stream ends."""
    async with opened(house, call(("pay", {"amount": 7}), ("pay", {"amount": 8})), say("done")) as door:
        first = await run(door, asked("r1", user("go")))
        one, two = (interrupt["id"] for interrupt in first[-1]["outcome"]["interrupts"])
        await house.client.approve("t1", one, by="ann")

        async def is_told() -> bool:
            view = await house.client.session_view("t1")
            return [request.request_id for request in view.requests] == [two]

        await eventually(is_told)
        waits = await connect(door, "t1")
        assert [interrupt["id"] for interrupt in waits[-1]["outcome"]["interrupts"]] == [two]
        history = [user("go"), shown(one), shown(two)]
        rest = [entry(one, "cancelled"), entry(two, approved=True)]
        assert text_of(await run(door, asked("r2", *history, resume=rest), (one, two))) == "done"


async def test_a_run_that_replies_go_on_with_is_stopped_by_its_id(house: House) -> None:
    """S-83: CopilotKit resumes under the id of the run that asked, and stops under it."""
    replies = call(("pay", {"amount": 7})), say("never").after(faults.hang())
    async with opened(house, *replies, agent=AGENT.clone(interactive="stop")) as door:
        first = await run(door, asked("r1", user("go")))
        (approval,) = first[-1]["outcome"]["interrupts"]
        resume = asked("r1", user("go"), shown(approval["id"]), resume=[entry(approval["id"], approved=True)])
        async with door.http.stream("POST", "/agui/agent/tester/run", json=resume) as running:
            assert running.status_code == 200
            await eventually(lambda: is_running(house, "t1", 2))
            stopped = await door.http.post("/agui/agent/tester/stop/t1", json={"runId": "r1"})
            assert stopped.json()["stopped"] is True


async def test_a_page_that_is_loaded_again_follows_a_turn_that_waits_for_a_slot(house: House) -> None:
    def brain(request: ChatRequest) -> Reply:
        words = str(request.messages[-1]["content"])
        return say(words).after(faults.hang()) if words == "hold" else say(f"read {words}")

    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT.clone(max_running=1)),
        gateway(house, doors=("agui",)) as door,
    ):
        house.use(provider)
        await run(door, asked("r1", user("one")))
        await house.client.start("tester", "hold", session="other")
        await eventually(lambda: is_running(house, "other", 1))
        async with door.http.stream("POST", "/agui/tester", json=asked("r2", user("one"), user("two", "m2"))):
            await slots.queued(house, "t1")
        connect_to = asked("c", thread="t1")
        async with door.http.stream("POST", "/agui/agent/tester/connect", json=connect_to) as page:
            lines = page.aiter_lines()
            told = [json.loads(line.removeprefix("data: ")) async for line in take_data(lines, 3)]
            assert [message["content"] for message in told[-1]["messages"]] == ["one", "read one"]
            await house.client.cancel("other")
            rest = [json.loads(line.removeprefix("data: ")) async for line in take_data(lines)]
        assert [event["delta"] for event in rest if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["two", "read two"]


async def take_data(lines: AsyncIterator[str], most: int = 1_000) -> AsyncIterator[str]:
    """The next events of a stream, as many as there are or are wanted."""
    async for line in lines:
        if line.startswith("data: "):
            yield line
            most -= 1
        if most == 0:
            return


async def is_running(house: House, session: str, turn: int) -> bool:
    view = await house.client.session_view(session)
    return view.open_turn == turn


async def connect(door: Door, thread: str, earlier: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    answer = await door.http.post("/agui/agent/tester/connect", json=asked("c", thread=thread))
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_a_run_outlives_its_stream_and_is_read_again_from_the_log(house: House) -> None:
    """S-83: a closed connection ends nothing; a second run is refused meanwhile, and a steer is not."""
    text = "The quick brown fox jumps over the lazy dog"
    async with (
        ScriptedProvider(Script(replies=(say(text), say("and more")))) as provider,
        house.worker(AGENT.clone(stream="always")),
        gateway(house, doors=("agui",)) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=4)
        async with door.http.stream("POST", "/agui/tester", json=asked("r1", user("go"))) as cut:
            async for line in cut.aiter_lines():
                if "TEXT_MESSAGE_CONTENT" in line:
                    break
        busy = await door.http.post("/agui/tester", json=asked("r2", user("more")))
        assert (busy.status_code, busy.json()["code"]) == (409, "request.session_busy")
        steer = asked("r3", user("more"), forwardedProps={"steer": True})
        async with door.http.stream("POST", "/agui/tester", json=steer) as steered:
            assert steered.headers["content-location"] == cut.headers["content-location"]
        async with door.http.stream("GET", cut.headers["content-location"]) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "id: 0"
            assert "RUN_STARTED" in await anext(lines)
            await provider.release_streams()
            seen = [json.loads(line.removeprefix("data: ")) async for line in lines if line.startswith("data: ")]
        assert text_of(seen) == f"{text}and more"
        assert seen[-1]["outcome"] == {"type": "success"}
        address = cut.headers["content-location"]
        blocks = (await door.http.get(address)).text.split("\n\n")[:-1]
        ids = [block.split("\n")[0].removeprefix("id: ") for block in blocks]
        assert ids[0] == "0"
        for number in (0, 1, len(ids) // 2, len(ids) - 2):
            rest = await door.http.get(address, headers={"Last-Event-ID": ids[number]})
            assert rest.text.split("\n\n")[:-1] == blocks[number + 1 :]
        wrong = await door.http.get(address, headers={"Last-Event-ID": "x"})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "request.invalid")


async def test_a_run_is_cancelled_and_a_closed_stream_cancels_nothing(house: House) -> None:
    async with opened(house, say("never").after(faults.hang())) as door:
        async with door.http.stream("POST", "/agui/tester", json=asked("r1", user("go"))) as cut:
            await anext(cut.aiter_lines())

        async def found() -> bool:
            return (await door.http.delete("/agui/tester/threads/t1/runs/r1")).status_code == 204

        await eventually(found)
        told = events_of(await door.http.get("/agui/tester/threads/t1/runs/1.1"))
        assert told[-1]["outcome"] == {"type": "cancelled"}
        assert (await door.http.delete("/agui/tester/threads/t1/runs/1.1")).status_code == 204


async def test_refusals_are_agui_errors_with_our_codes(house: House) -> None:
    lines, tokens = token_lines(ann=("acme", "read,run"), eve=("evil", "admin"))
    async with opened(house, call(("pay", {"amount": 7})), gateway_tokens=lines) as door:
        ann = {"Authorization": f"Bearer {tokens['ann']}"}
        eve = {"Authorization": f"Bearer {tokens['eve']}"}

        async def refused(status: int, code: str, why: str = "", headers: Any = ann, **sent: Any) -> None:
            request = {"method": "POST", "url": "/agui/tester", **sent}
            answer = await door.http.request(**request, headers=headers)
            told = answer.json()
            assert (answer.status_code, told["type"], told["code"]) == (status, "RUN_ERROR", code), answer.text
            assert why in told["message"]

        body = asked("r1", user("go"))
        waits = events_of(await door.http.post("/agui/tester", json=body, headers=ann))
        (interrupt,) = waits[-1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        await refused(401, "request.unauthenticated", headers={}, json=body)
        await refused(403, "request.forbidden", "approve", json=asked("r2", user("go"), resume=resume))
        await refused(404, "request.unknown_session", headers=eve, json=asked("r2", user("go"), resume=resume))
        await refused(404, "request.unknown_session", headers=eve, json=asked("r2", user("go")))
        for method in ("GET", "DELETE"):
            for where in ("t1/runs/r1", "t1/runs/1.1", "none/runs/r1"):
                url = f"/agui/tester/threads/{where}"
                await refused(404, "request.unknown_turn", headers=eve, method=method, url=url)
            for where in ("t1/runs/r9", "t1/runs/1.2000000", "t1/runs/7.1", "none/runs/r1"):
                await refused(404, "request.unknown_turn", method=method, url=f"/agui/tester/threads/{where}")
        await refused(404, "request.unknown_turn", method="GET", url="/agui/other/threads/t1/runs/1.1")
        await refused(405, "request.method_not_allowed", method="PUT", url="/agui/tester")
        await refused(404, "request.unknown_agent", url="/agui/nobody", json=asked("r1", user("go"), thread="t2"))
        as_json = {**ann, "Content-Type": "application/json"}
        await refused(400, "request.bad_json", headers=as_json, content=b"{")
        for bad in (
            {**body, "threadId": "a b"},
            {**body, "runId": ""},
            {**body, "threadId": "free", "messages": []},
            {**body, "threadId": "free", "messages": [{"role": ["x"]}]},
            {**body, "threadId": "free", "tools": [{**LOOK, "parameters": {"type": "object", "properties": 7}}]},
            {**body, "threadId": "free", "tools": [{**LOOK, "name": f"t{n}"} for n in range(500)]},
            {**body, "threadId": "free", "messages": [user("x"), {"id": "x", "role": "tool", "content": "y"}]},
        ):
            await refused(422, "request.invalid", json=bad)
        taken = {**body, "threadId": "taken", "tools": [{**LOOK, "name": "pay"}]}
        error = events_of(await door.http.post("/agui/tester", json=taken, headers=ann))[-1]
        assert (error["type"], "pay" in error["message"]) == ("RUN_ERROR", True)
