"""NUL and a megabyte in any name that a verb takes: PostgreSQL keeps no NUL in a column, Temporal no such id.

Seen in an attack on a running gateway: NUL in a filter was an error of the database, in its own words.
"""

import inspect
from typing import Any
from unittest.mock import Mock

import pytest

from perdure.client import Client, RequestRefusedError
from perdure.client.texts import LONGEST_NAME, NAMES
from tests.wild.test_half_characters import call, verbs

ODD = {
    "NUL": ("a\0b", "has the character NUL; leave it out"),
    "a megabyte": ("x" * 1_000_000, f"has 1,000,000 characters, at most {LONGEST_NAME:,} are taken"),
}

OPTIONS = [(Client, "start", name) for name in ("by", "model", "recording", "request_id", "tenant", "traceparent")]
FILTERS = [(Client, "sessions", name) for name in ("agent", "caller", "reason_code", "tenant")]
NAMED = [(made, name, argument) for made, name, argument in verbs() if argument in NAMES]


@pytest.mark.parametrize(
    ("made", "name", "argument"), [*NAMED, *OPTIONS, *FILTERS], ids=lambda part: getattr(part, "__name__", part)
)
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("many", [False, True], ids=["one", "among others"])
async def test_each_name_of_each_verb_is_refused_in_the_same_sentence(
    made: type, name: str, argument: str, odd: str, many: bool
) -> None:
    """S-14: before anything is sent or stored."""
    value, why = ODD[odd]
    verb = getattr(made, name)
    given: list[Any] = [Mock()]
    named: dict[str, Any] = {argument: ["x", value] if many else value}
    for parameter in list(inspect.signature(verb).parameters.values())[1:]:
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            named.setdefault(parameter.name, "x")
    with pytest.raises(RequestRefusedError, match=f"^{argument}: {why}$"):
        await call(verb, given, named)
