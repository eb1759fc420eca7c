"""Questions of MCP servers in place of results: what people read, and what the server gets for their answers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CreateMessageRequest, InputRequiredResult

from perdure import HttpServerConfig
from perdure.activities.mcp.failures import McpError
from perdure.activities.mcp.questions import Answering, AskedByServer, InputNeededError, read_question
from perdure.contracts.server_questions import ServerAnswer
from tests.unit.activities.mcp_askers import Asker, form
from tests.unit.activities.mcp_http import older, web
from tests.unit.activities.mcp_peers import Connected, worker_of

Person = tuple[Asker, Connected]


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[Person]:
    at, asker = web(), Asker()
    config = HttpServerConfig(name="web", url=f"{at.url}/mcp")
    async with (
        at.serving(asker.server().streamable_http_app()),
        worker_of(config, folder=tmp_path, KEY="s3cret-of-the-worker") as connected,
    ):
        await connected.open()
        yield asker, connected


async def asked(connected: Connected, tool: str, answering: Answering | None = None, **arguments: Any) -> AskedByServer:
    with pytest.raises(InputNeededError) as needed:
        await connected.call(tool, answering=answering, **arguments)
    return needed.value.asked


def accepted(question: AskedByServer, value: Any) -> Answering:
    return Answering(question, ServerAnswer(number=question.question.number, action="accept", value=value))


async def test_the_answer_goes_back_with_the_servers_state(person: Person) -> None:
    """S-60: the question is for people, the state for the server alone; a stranger's pattern is not run."""
    asker, connected = person
    question = await asked(connected, "web__paint", what="the door")
    assert question.question.text == ("MCP server 'web' asks: Which colour?\nAnswer with {\"colour\": string}")
    assert question.question.form == {
        "type": "object",
        "properties": {"colour": {"type": "string"}},
        "required": ["colour"],
    }
    kept = AskedByServer.model_validate_json(question.model_dump_json())
    result = await connected.call("web__paint", answering=accepted(kept, {"colour": "red"}), what="the door")
    assert result.text == "the door is red"
    assert asker.said == [{"action": "accept", "content": {"colour": "red"}, "state": "painting the door"}]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_denial_is_mcps_own_word(person: Person, action: Any) -> None:
    """S-60."""
    _, connected = person
    question = await asked(connected, "web__paint", what="it")
    answering = Answering(question, ServerAnswer(action=action))
    assert (await connected.call("web__paint", answering=answering, what="it")).text == f"not painted: {action}"


async def test_where_nobody_can_be_asked_the_server_learns_it_at_once(person: Person) -> None:
    """S-60."""
    _, connected = person
    assert (await connected.call("web__paint", answering=Answering(has_people=False), what="it")).text == (
        "not painted: cancel"
    )


async def test_a_server_may_ask_again(person: Person) -> None:
    """S-60: each question has its number."""
    _, connected = person
    first = await asked(connected, "web__twice")
    second = await asked(connected, "web__twice", accepted(first, {"colour": "red"}))
    assert [first.question.number, second.question.number] == [1, 2]
    result = await connected.call("web__twice", answering=accepted(second, {"colour": "blue"}))
    assert result.text == "red, then blue"


async def test_several_parts_are_one_question_and_a_page_is_shown(person: Person) -> None:
    """S-60."""
    asker, connected = person
    question = await asked(connected, "web__sign")
    assert "Sign the paper\nOpen https://sign.example/7, then answer 'done'." in question.question.text
    assert '"s": {"size": integer (optional)}, "c": {"colour": string}' in question.question.text
    answer = {"s": {"size": 4}, "c": {"colour": "red"}}
    assert (await connected.call("web__sign", answering=accepted(question, answer))).text == "signed"
    assert asker.said == [
        {
            "p": {"action": "accept", "content": None},
            "s": {"action": "accept", "content": {"size": 4}},
            "c": {"action": "accept", "content": {"colour": "red"}},
        }
    ]


async def test_a_server_that_sends_its_state_alone_is_asked_again(person: Person) -> None:
    """S-60."""
    _, connected = person
    assert (await connected.call("web__patient")).text == "asked 3 times"


async def test_the_older_generation_is_not_offered_answers(tmp_path: Path) -> None:
    """S-60: it would hold its connection open until somebody has answered."""
    at, asker = web(), Asker()
    async with (
        at.serving(older(asker.server().streamable_http_app())),
        worker_of(HttpServerConfig(name="web", url=f"{at.url}/mcp"), folder=tmp_path) as connected,
    ):
        await connected.open()
        with pytest.raises(McpError):
            await connected.call("web__paint", what="the door")
    assert asker.said == []


def test_what_people_cannot_answer_is_refused() -> None:
    """S-60: the message says what the server wanted."""
    sampling = CreateMessageRequest(params={"messages": [], "maxTokens": 1})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    many = {"type": "object", "properties": {f"field {number}": {"type": "string"} for number in range(1_000)}}
    wrong = [
        (InputRequiredResult(input_requests={"a": sampling}), 1, "asks for sampling/createMessage, which perdure did"),
        (InputRequiredResult(input_requests={"a": form("?", many)}), 1, "whose schema is over 16,384 bytes"),
        (InputRequiredResult(request_state="x" * 300_000), 1, "over 262,144 bytes of state"),
        (InputRequiredResult(input_requests={"a": form("?", {})}), 21, "asked 20 questions about this call"),
    ]
    for result, number, why in wrong:
        with pytest.raises(McpError, match=why):
            read_question("web", result, number, str)


def test_a_question_does_not_show_the_workers_secrets() -> None:
    """S-52."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "like SECRET"}}}
    result = InputRequiredResult(input_requests={"a": form("Is SECRET right?", schema)})
    asked = read_question("web", result, 1, lambda text: text.replace("SECRET", "***"))
    assert "SECRET" not in asked.model_dump_json()
