"""What of a call's masked arguments is taken out of its result and its exception."""

import json

import pytest

from perdure.activities.toolbox.claims import masked_values_of
from perdure.activities.toolbox.output import error_detail
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue
from perdure.security.redaction import Hidden, without_hidden

TOOL = ToolDeclaration(name="t", description="T.", parameters={"type": "object"}, reference="a:t", masked=("pin",))


def hidden(**arguments: JsonValue) -> Hidden:
    return masked_values_of(TOOL, json.dumps(arguments))


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"commit_hash": "9fceb02d0ae598e9"}, "commit 9fceb02d0ae598e9"),
        ({"sql": "SELECT pk_orders_2024 FROM t"}, "column pk_orders_2024"),
        ({"query": "bearer certificates"}, "all certificates"),
        ({"code": "TOKEN=LexerToken"}, "class LexerToken"),
        ({"code": "TOKEN=Lexer2Token"}, "class Lexer2Token"),
        ({"page_token": "eyJwYWdlIjoyfQ"}, "after eyJwYWdlIjoyfQ"),
        ({"key": "sk-proj-abc12345678"}, "the key sk-proj-abc12345678"),
        ({"password": "short"}, "a short story"),
    ],
)
def test_a_result_keeps_what_only_looked_like_a_credential(arguments: dict[str, JsonValue], result: str) -> None:
    """The model has to read what the tool found; a result is content."""
    assert without_hidden(result, hidden(**arguments)) == result


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": "tr0ub4dor-and-3"},
        {"pin": "tr0ub4dor-and-3"},
        {"argv": ["--token", "tr0ub4dor-and-3"]},
        {"headers": [{"name": "Authorization", "value": "tr0ub4dor-and-3"}]},
    ],
)
def test_a_result_loses_what_is_secret_by_its_name(arguments: dict[str, JsonValue]) -> None:
    """S-52."""
    assert without_hidden("set to tr0ub4dor-and-3 now", hidden(**arguments)) == "set to *** now"


@pytest.mark.parametrize(
    ("arguments", "said", "told"),
    [
        ({"pin": 4711}, "refused 4711", "refused ***"),
        ({"password": 12345678}, "refused 12345678", "refused ***"),
        ({"password": {"codes": [90210]}}, "90210 is refused", "*** is refused"),
        ({"command": "SERVICE_TOKEN=e11nvironment make"}, "what is e11nvironment", "what is ***"),
        ({"code": "TOKEN=LexerToken"}, "LexerToken is not defined", "LexerToken is not defined"),
        ({"sql": "SELECT pk_orders_2024"}, "no column pk_orders_2024", "no column pk_orders_2024"),
        ({"pin": 47}, "47 tries", "47 tries"),
    ],
)
def test_an_exception_loses_every_masked_argument_that_it_repeats(
    arguments: dict[str, JsonValue], said: str, told: str
) -> None:
    """S-52: numbers, and parts of texts, too; but no word that only stood behind a name."""
    found = hidden(**arguments)
    assert error_detail(TOOL, ValueError(said), found.named | found.guessed).message == told


def test_broken_arguments_hide_nothing() -> None:
    """They are shown redacted, and no body runs on them."""
    assert masked_values_of(TOOL, '{"pin": ') == Hidden()
