"""Ids and names that callers choose: one line of plain text, whoever checks them."""

import pytest
from pydantic import ValidationError

from perdure.client import RequestRefusedError
from perdure.client.requests import turn_request
from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import TurnRequest

ODD = ("a\0b", "a\x1b[31mb", "a\nb", "a\x9bb", "a\u202eb")
PLAIN = ("", "r1", "delegate:call_1", "tenant é 漢 \N{GRINNING FACE}", "x" * 200)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["request_id", "tenant", "model"])
def test_what_steers_a_terminal_or_no_database_takes_is_refused_in_one_line(field: str, odd: str) -> None:
    with pytest.raises(ValidationError, match="has a control character, which databases refuse"):
        TurnRequest.model_validate({"prompt": "go", field: odd})
    with pytest.raises(RequestRefusedError) as refused:
        turn_request("s", {"prompt": "go", field: odd})
    assert str(refused.value).startswith(f"{field}: has a control character")


@pytest.mark.parametrize("odd", ODD)
def test_a_message_for_a_running_turn_is_held_to_the_same(odd: str) -> None:
    with pytest.raises(ValidationError, match="has a control character"):
        SendRequest.model_validate({"prompt": "go", "request_id": odd})


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_of_any_language_is_taken(text: str) -> None:
    request = TurnRequest.model_validate({"prompt": "go", "request_id": text, "tenant": text})
    assert (request.request_id, request.tenant) == (text, text)


def test_a_longer_one_is_refused() -> None:
    with pytest.raises(ValidationError, match="at most 200 characters"):
        TurnRequest.model_validate({"prompt": "go", "tenant": "x" * 201})
