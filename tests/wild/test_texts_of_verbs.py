"""Texts that nothing can keep, in each text of each verb: half a character, and in a name NUL or a book.

Half a character is a lone surrogate, as JavaScript and Windows' file names send them. Seen in public trackers: an emoji
that was cut in two ends in an error of the serializer, without the field's name; NUL is an error of the database.

The arguments come from the classes, the commands and the document of the gateway, so that a new one is not forgotten.
"""

import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock
from urllib.parse import quote

import click
import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from perdure.cli.main import VERBS, cli
from perdure.cli.options import Text
from perdure.cli.prompts import JsonObject, Prompt
from perdure.client import Client, RequestRefusedError, Turn
from perdure.client.schedules import Schedules
from perdure.client.standing_approvals import StandingApprovals
from perdure.client.webhooks import Webhooks
from perdure.contracts.texts import CONTENT
from perdure.gateway.app import create_app
from perdure.settings import Settings
from perdure.store import Store
from tests.unit.cli.invoked import assert_one_line, perdure
from tests.unit.store.given import HELPER, opening

HALF = "cut \ud83d in two"
SAID = {
    "half": (HALF, "holds half a character, which no store can keep; send whole ones, in UTF-8"),
    "NUL": ("a\0b", "has the character NUL; leave it out"),
    "a book": ("x" * 1_000_000, "has 1,000,000 characters, at most 10,000 are taken; shorten it"),
}
SAID_OVER_HTTP = {**SAID, "a book": ("x" * 20_000, SAID["a book"][1].replace("1,000,000", "20,000"))}
"""Within the bounds of a head and of the smaller bodies."""

OF_NO_TEXT = {"self", "settings", "after", "before", "deltas", "heartbeat", "overlap", "limit"}


def verbs() -> Iterator[tuple[type, str, str]]:
    """Each argument of each verb."""
    for made in (Client, Turn, Schedules, Webhooks, StandingApprovals):
        for name, verb in vars(made).items():
            if inspect.isfunction(verb) and not name.startswith("_"):
                for parameter in inspect.signature(verb).parameters.values():
                    if parameter.name not in OF_NO_TEXT:
                        yield made, name, parameter.name


async def call(verb: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> None:
    made = verb(*given, **named)
    if inspect.isasyncgen(made):
        await anext(made)
    elif inspect.isawaitable(made):
        await made


def each_way(value: str) -> dict[str, Any]:
    return {"text": value, "among others": ["x", value], "inside": {"a": [value]}, "as a name": {value: 1}}


@pytest.mark.parametrize(("made", "name", "argument"), list(verbs()), ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize("kind", SAID)
async def test_each_text_of_each_verb_is_refused_in_the_same_sentence(
    made: type, name: str, argument: str, kind: str
) -> None:
    """S-14: before anything is sent or stored. NUL, and length, are content's own matter."""
    verb, (text, said) = getattr(made, name), SAID[kind]
    signature = inspect.signature(verb)
    for value in each_way(text).values() if kind == "half" or argument not in CONTENT else ():
        given: list[Any] = [Mock()]
        named: dict[str, Any] = {}
        for parameter in list(signature.parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= {"extra": value} if parameter.name == argument else {}
            elif parameter.name == argument:
                named[parameter.name] = value
            elif parameter.default is parameter.empty:
                named[parameter.name] = "x"
        told = "extra" if "extra" in named else argument
        with pytest.raises(RequestRefusedError) as refused:
            await call(verb, given, named)
        assert str(refused.value) == f"{told}: {said}"


def commands(below: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each verb of the command line with its words."""
    if isinstance(below, click.Group):
        for word, command in below.commands.items():
            yield from commands(command, (*path, word))
    else:
        yield path, below


def texts_of_commands() -> Iterator[tuple[tuple[str, ...], str]]:
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        for path, found in commands(command, (verb,)):
            for parameter in found.params:
                if isinstance(parameter.type, Text | Prompt | JsonObject):
                    yield path, parameter.name or ""


def line_of(path: tuple[str, ...], odd: str, value: str) -> list[str]:
    """A command line with a value for what it needs, and this one for the parameter."""
    command = cli.get_command(click.Context(cli), path[0])
    for word in path[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    assert command is not None
    words: list[str] = []
    for parameter in command.params:
        given = value if parameter.name == odd else "x"
        if isinstance(parameter, click.Option):
            words += [f"{parameter.opts[0]}={given}"] if parameter.name == odd else []
        else:
            words.append(given)
    return [*path, *words]


@pytest.mark.parametrize(("path", "parameter"), list(texts_of_commands()), ids=str)
def test_each_text_of_each_command_is_refused_in_the_same_sentence(path: tuple[str, ...], parameter: str) -> None:
    """S-14: without a server or a store."""
    for kind, (text, said) in SAID.items():
        if kind == "half" or parameter not in CONTENT:
            assert_one_line(perdure(*line_of(path, parameter, text)), 2, "invalid value for '", said)


def test_every_verb_of_the_command_line_that_takes_texts_is_among_them() -> None:
    without = {"blocks", "agents", "doctor", "setup", "completion", "store", "replay", "list", "mcp"}
    assert {path[0] for path, _ in texts_of_commands()} >= set(VERBS) - without


@pytest_asyncio.fixture
async def app() -> AsyncIterator[FastAPI]:
    """The gateway of a client that would reach no server; its store has one session."""
    client: Any = Client(Mock(), Settings(store_url="sqlite://", task_queue="none"))
    async with await Store.open("sqlite://", upgrade=True) as store:
        await store.open_turn(opening(session="s"), HELPER)
        client.store = AsyncMock(return_value=store)
        yield create_app(client)


def texts_of(schema: Any, document: Any) -> bool:
    """Whether a value of the schema may be a text."""
    if "$ref" in schema:
        return texts_of(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    return schema.get("type") == "string" or any(texts_of(one, document) for one in schema.get("anyOf", ()))


def places(document: Any) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, name and place of each text that a request may have."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for one in operation.get("parameters", ()):
                if one["in"] in {"query", "path"} and texts_of(one["schema"], document):
                    yield method, path, one["name"], one["in"]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for ref in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(content)):
                for name, field in document["components"]["schemas"][ref].get("properties", {}).items():
                    if texts_of(field, document):
                        yield method, path, name, "body"


class Ids(dict[str, str]):
    """The ids in a path."""

    def __missing__(self, _: str) -> str:
        return "s"


async def test_each_text_of_each_request_is_refused_in_the_same_sentence(app: FastAPI) -> None:
    """S-14: with the field of the body, or the parameter of the path or the query."""
    document, tried = app.openapi(), 0
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        for method, path, name, where in places(document):
            for kind, (text, said) in SAID_OVER_HTTP.items():
                if where == "body" and kind != "half" and name in CONTENT:
                    continue
                if where != "body" and kind == "half":  # what is not in UTF-8 has a sentence of its own
                    continue
                at = path.format_map(Ids({"webhook": f"wh_{0:016x}", name: quote(text, errors="replace")}))
                answer = await http.request(
                    method.upper(),
                    at,
                    params={name: text} if where == "query" else None,
                    content=json.dumps({name: text}) if where == "body" else None,
                    headers={"Content-Type": "application/json"},
                )
                told = f"{name}: {said}" + ("" if where == "body" else f" ({where})")
                assert (answer.status_code, answer.json()["detail"]) == (422, told), (method, at[:100], kind)
                tried += 1
    assert tried > 150
