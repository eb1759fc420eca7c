"""The scripted provider, over real HTTP."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say

TWO = Script(replies=(call(("add", {"a": 1}), text="adding"), say("done")))
ASK: dict[str, JsonValue] = {"role": "user", "content": "hello you"}
ANSWERED: dict[str, JsonValue] = {"role": "assistant", "content": "adding"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60) as client:
        yield client


async def post(
    http: httpx.AsyncClient, provider: ScriptedProvider, *messages: dict[str, JsonValue], model: str = "m"
) -> httpx.Response:
    body = {"model": model, "messages": list(messages or (ASK,))}
    return await http.post(f"{provider.url}/chat/completions", json=body)


def content(response: httpx.Response) -> Any:
    return response.json()["choices"][0]["message"]["content"]


async def test_the_reply_is_chosen_by_the_answers_the_request_already_holds(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO) as provider:
        system: dict[str, JsonValue] = {"role": "system", "content": "Add."}
        assert content(await post(http, provider, system, ASK, ANSWERED, ASK)) == "done"
        first = await post(http, provider, ASK)
        again = await post(http, provider, ASK)
    assert first.json() == again.json()
    assert first.json()["choices"][0]["finish_reason"] == "tool_calls"
    asked = first.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert asked == {"name": "add", "arguments": '{"a": 1}'}
    assert [request.request.index for request in provider.requests] == [1, 0, 0]


async def test_a_restarted_provider_gives_the_same_answer(http: httpx.AsyncClient) -> None:
    answers = []
    for _ in range(2):
        async with ScriptedProvider(TWO) as provider:
            answers.append((await post(http, provider)).json())
    assert answers[0] == answers[1]


async def test_a_script_that_is_used_up_says_so(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(Script(replies=(say("only"),))) as provider:
        response = await post(http, provider, ASK, ANSWERED)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "script exhausted at reply 2"


async def test_a_script_may_repeat_its_last_reply(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(Script(replies=(say("more"),), repeat=True)) as provider:
        assert content(await post(http, provider, ASK, ANSWERED, ANSWERED)) == "more"


async def test_a_script_may_be_a_function_and_each_model_has_its_own(http: httpx.AsyncClient) -> None:
    def echo(request: ChatRequest) -> Reply:
        return say(f"{request.model}: {request.messages[-1]['content']}")

    async with ScriptedProvider(echo, models={"other": Script(replies=(say("mine"),))}) as provider:
        assert content(await post(http, provider)) == "m: hello you"
        assert content(await post(http, provider, model="other")) == "mine"


async def test_a_script_may_be_a_list_of_replies(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider([call(("look", {})), say("done")], models={"other": [say("mine")]}) as provider:
        assert (await post(http, provider)).json()["choices"][0]["finish_reason"] == "tool_calls"
        assert content(await post(http, provider, ASK, ANSWERED)) == "done"
        assert content(await post(http, provider, model="other")) == "mine"


@pytest.mark.parametrize("answers", ["done", ["done"], {"replies": []}, 7])
def test_what_is_no_script_is_refused_before_anything_is_asked(answers: Any) -> None:
    with pytest.raises(TypeError, match="a script is a list of replies"):
        ScriptedProvider(answers)
    with pytest.raises(TypeError, match="a script is a list of replies"):
        ScriptedProvider(models={"m": answers})


async def test_a_raw_reply_is_sent_as_it_is(http: httpx.AsyncClient) -> None:
    raw = Reply(
        calls=(("a", '{"broken'), ("b", {})), call_ids=("", ""), finish_reason="length", message={"refusal": "no"}
    )
    async with ScriptedProvider(Script(replies=(raw,))) as provider:
        choice = (await post(http, provider)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["refusal"] == "no"
    assert [made["id"] for made in choice["message"]["tool_calls"]] == ["", ""]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"broken'


async def test_faults_come_first_in_their_order_and_each_session_has_its_own(http: httpx.AsyncClient) -> None:
    reply = say("fine").after(faults.status(429, headers={"retry-after": "2"}), faults.status(503))
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        responses = [await post(http, provider) for _ in range(4)]
        other = await post(http, provider, {"role": "user", "content": "someone else"})
    assert [response.status_code for response in responses] == [429, 503, 200, 200]
    assert responses[0].headers["retry-after"] == "2"
    assert other.status_code == 429
    assert [request.fault for request in provider.requests] == ["status", "status", None, None, "status"]


async def test_a_fault_may_meet_every_request(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO, always=faults.error(429, "no more", name="insufficient_quota")) as provider:
        responses = [await post(http, provider) for _ in range(3)]
    assert [response.json()["error"]["code"] for response in responses] == ["insufficient_quota"] * 3


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (faults.close_before_reply(), httpx.RemoteProtocolError),
        (faults.reset_before_reply(), httpx.ReadError),
        (faults.cut_body(), httpx.RemoteProtocolError),
        (faults.reset_in_body(), httpx.ReadError),
    ],
)
async def test_a_broken_connection_is_seen_as_one(http: httpx.AsyncClient, fault: Any, raised: type[Exception]) -> None:
    async with ScriptedProvider(TWO, always=fault) as provider:
        with pytest.raises(raised):
            await post(http, provider)
    assert provider.request_count == 1


async def test_a_broken_body_is_seen_as_one(http: httpx.AsyncClient) -> None:
    bad = (faults.garbage(), faults.page(200), faults.empty_choices(), faults.drip(0.0001), faults.delay(0.01))
    async with ScriptedProvider(Script(replies=(say("fine").after(*bad),))) as provider:
        for kind in ("application/json", "text/html"):
            broken = await post(http, provider)
            assert (broken.status_code, broken.headers["content-type"]) == (200, kind)
            with pytest.raises(json.JSONDecodeError):
                broken.json()
        assert (await post(http, provider)).json()["choices"] == []
        assert content(await post(http, provider)) == "fine"
        assert content(await post(http, provider)) == "fine"


async def test_the_provider_sees_a_client_that_goes_away_while_it_hangs(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO, always=faults.hang()) as provider:
        waiting = asyncio.create_task(post(http, provider))
        await provider.wait_for_requests(1)
        assert provider.disconnects == 0
        waiting.cancel()
        await provider.wait_for_disconnect()
    assert provider.disconnects == 1


async def test_a_silence_in_the_body_lasts_until_the_client_goes() -> None:
    async with ScriptedProvider(TWO, always=faults.hang_in_body()) as provider:
        url, body = f"{provider.url}/chat/completions", {"model": "m", "messages": [ASK]}
        async with httpx.AsyncClient() as http, http.stream("POST", url, json=body) as response:
            first = await anext(response.aiter_raw())
            assert response.status_code == 200
            assert 0 < len(first) < int(response.headers["content-length"])
            assert provider.disconnects == 0
        await provider.wait_for_disconnect()


async def test_a_provider_that_refuses_can_come_back_at_its_address(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO) as provider:
        url = provider.url
        assert content(await post(http, provider)) == "adding"
        await provider.refuse()
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await post(http, provider)
        assert (provider.request_count, provider.connection_count) == (1, 1)
        await provider.accept()
        await provider.accept()
        assert (provider.url, content(await post(http, provider))) == (url, "adding")
    assert (provider.request_count, provider.connection_count) == (2, 2)


async def test_requests_and_connections_are_counted_apart(http: httpx.AsyncClient) -> None:
    reply = say("fine").after(faults.rate_limited(), faults.close_before_reply())
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        assert (await post(http, provider)).status_code == 429
        with pytest.raises(httpx.RemoteProtocolError):
            await post(http, provider)
        assert content(await post(http, provider)) == "fine"
    assert (provider.request_count, provider.connection_count) == (3, 2)


async def test_leaving_the_provider_ends_what_hangs(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO, always=faults.hang()) as provider:
        waiting = asyncio.create_task(post(http, provider))
        await provider.wait_for_requests(1)
    with pytest.raises(httpx.HTTPError):
        await waiting


async def test_a_wait_for_what_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.provider.WAIT_SECONDS", 0.05)
    async with ScriptedProvider(TWO) as provider:
        with pytest.raises(TimeoutError):
            await provider.wait_for_requests(1)


async def test_many_connections_and_many_requests_on_one_are_served() -> None:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    async with ScriptedProvider(TWO) as provider, httpx.AsyncClient(limits=limits, timeout=30) as http:
        for _ in range(2):
            responses = await asyncio.gather(*(post(http, provider) for _ in range(100)))
            assert {response.status_code for response in responses} == {200}
    assert provider.request_count == 200


async def test_what_is_no_chat_request_is_refused_and_the_connection_goes_on(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(TWO) as provider:
        base = provider.url.removesuffix("/v1")
        assert (await http.get(f"{base}/healthz")).json() == {"status": "ok"}
        assert (await http.get(f"{base}/elsewhere")).status_code == 404
        for body in (b"no json", b"[]", b"{}", b'{"model": "m", "messages": 3}'):
            assert (await http.post(f"{provider.url}/chat/completions", content=body)).status_code == 400
        assert (await post(http, provider)).status_code == 200
    assert provider.request_count == 1


def _asserting(request: ChatRequest) -> Reply:
    assert request.tools, "no tool is offered"
    return say("fine")


def _forgetful(request: ChatRequest) -> Any:
    """Return nothing."""


def _lost(request: ChatRequest) -> Reply:
    msg = "nothing of this name"
    raise LookupError(msg)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_asserting, "no tool is offered"),
        (_forgetful, "instance of Reply"),
        (_lost, "LookupError('nothing of this name')"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_scripts_function_that_fails_is_told_in_a_refusal_that_is_not_retried(
    http: httpx.AsyncClient, path: str, function: Any, said: str
) -> None:
    """A dropped connection would be tried again for minutes, and would not say why."""
    async with ScriptedProvider(function) as provider:
        body = {"model": "m", "messages": [ASK], "max_tokens": 9}
        refused = await http.post(f"{provider.anthropic_url}{path}", json=body)
        again = await http.post(f"{provider.anthropic_url}{path}", json=body)
        assert provider.connection_count == 1
    assert (refused.status_code, again.status_code) == (400, 400)
    text = refused.json()["error"]["message"]
    assert text.startswith("the script's function failed: ")
    assert said in text


async def test_a_reply_that_cannot_be_sent_is_refused_too(http: httpx.AsyncClient) -> None:
    reply = Reply(text="fine").model_copy(update={"message": {"odd": object()}})
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        refused = await post(http, provider)
    assert (refused.status_code, "not JSON serializable" in refused.text) == (400, True)


async def test_usage_depends_on_the_texts_alone(http: httpx.AsyncClient) -> None:
    async with ScriptedProvider(Script(replies=(say("x" * 40),))) as provider:
        usage = (await post(http, provider)).json()["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 11, "total_tokens": 14}


def test_a_script_survives_json() -> None:
    script = Script(replies=(call(("t", {"a": [1]})).after(faults.status(429, headers={"retry-after": "1"})), say("x")))
    assert Script.model_validate_json(script.model_dump_json()) == script


@pytest.mark.deep
async def test_a_script_is_served_from_a_process_of_its_own(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(TWO.model_dump_json())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "perdure.testing", "--script", str(file), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(120):
        url = (await process.stdout.readline()).decode().strip()
        response = await http.post(f"{url}/chat/completions", json={"model": "m", "messages": [ASK]})
        os.kill(process.pid, signal.SIGTERM)
        await process.wait()
    assert content(response) == "adding"
