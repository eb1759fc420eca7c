"""Placeholders in instructions: filled in once, with clear words for those that stand for nothing."""

import pytest

from perdure.contracts.turn_context import TurnContext
from perdure.llm.instructions import PlaceholderError, fill_in

CONTEXT = TurnContext(
    data={"customer": {"name": "Zoë", "ids": [1, 2]}, "n": 3, "free": True, "said": "{context.n}", "a-b": None},
    tenant="acme",
    by="ada",
)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("Hello {context.customer.name}.", "Hello Zoë."),
        ("{context.customer}", '{"name": "Zoë", "ids": [1, 2]}'),
        ("{context.customer.ids} {context.n} {context.free} {context.a-b}", "[1, 2] 3 true null"),
        ("{turn.tenant}/{turn.by}", "acme/ada"),
        ("{context.said} {context.said}", "{context.n} {context.n}"),
        ("{{context.n}} is how to write {context.n}", "{context.n} is how to write 3"),
        ('{"a": {context.n}}', '{"a": 3}'),
        ("{context} {context.} {other.n} { context.n } {n} {} {context.n!r} f'{x}'",) * 2,
    ],
)
def test_placeholders_are_filled_in_and_all_else_is_text(text: str, filled: str) -> None:
    assert fill_in(text, CONTEXT) == filled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "{context.custmer}",
            "need context.custmer, which the turn's context lacks; it has customer, n, free",
        ),
        ("{context.n.more}", "need context.n.more, which the turn's context lacks"),
        ("{context.customer.ids.0}", "need context.customer.ids.0, which the turn's context lacks"),
        ("{turn.number}", "need turn.number, which does not exist; there are turn.tenant and turn.by"),
    ],
)
def test_what_stands_for_nothing_is_named(text: str, said: str) -> None:
    with pytest.raises(PlaceholderError) as refused:
        fill_in(text, CONTEXT)
    assert str(refused.value).startswith(said)
    with pytest.raises(PlaceholderError, match="it has nothing, so start the turn with it"):
        fill_in("{context.a}", TurnContext())


def test_a_secret_is_in_no_text() -> None:
    context = TurnContext(data={"key": "${PERDURE_CONTEXT_KEY}", "note": "see ${OTHER}"})
    assert fill_in("{context.note}", context) == "see ${OTHER}"
    with pytest.raises(PlaceholderError, match=r"need context\.key, which stands for a secret"):
        fill_in("{context.key}", context)
