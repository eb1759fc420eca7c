"""What a model reads of a parameter, and what it never sees of one."""

import json
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

from perdure import Secret, Setting, Tool, ToolContext, ToolDefinitionError, tool
from perdure.agents.context import InvalidInputError
from perdure.agents.environment import UnmetNeedError, from_environment, secrets_among
from perdure.agents.parameters import takes_the_same
from perdure.contracts.tools import ToolDeclaration


def google(
    query: str, limit: Annotated[int, "From the annotation"] = 3, deep: Annotated[int, Field(description="F")] = 0
) -> str:
    """Search the notes.

    All of them, and: this has a colon.

    Args:
        query: What to look for,
            in plain words.
        limit (int): From the docstring.
        deep: From the docstring.
        nobody: No parameter of ours.

    Returns:
        The lines.

    Raises:
        KeyError: Never.

    Note:
        It costs money.
    """
    return query


def google_with_more(query: str) -> str:
    """Search the notes.

    Args:
        query: What to look for.

    Use it sparingly.
    """
    return query


def sphinx(query: str, limit: int) -> str:
    """Search the notes.

    All of them.

    :param query: What to look for.
    :param int limit: How many.
    :returns: The lines.
    """
    return query


def sphinx_alone(query: str) -> str:
    """Search the notes.

    :param query: What to look for.
    """
    return query


def numpy(query: str, limit: int) -> str:
    """Search the notes.

    Parameters
    ----------
    query : str
        What to look for.
    limit : int, optional
        How many.

    Returns
    -------
    str
        The lines.
    """
    return query


def plain(query: str) -> str:
    """Do this: that.

    - one: two
    Steps:
      1. three
    """
    return query


def described(made: Tool[..., Any]) -> dict[str, str | None]:
    properties: Any = made.declaration.parameters["properties"]
    return {name: schema.get("description") for name, schema in properties.items()}


@pytest.mark.parametrize(
    ("function", "description", "texts"),
    [
        (
            google,
            "Search the notes.\n\nAll of them, and: this has a colon.\n\nNote:\n    It costs money.",
            {"query": "What to look for,\nin plain words.", "limit": "From the annotation", "deep": "F"},
        ),
        (google_with_more, "Search the notes.\n\nUse it sparingly.", {"query": "What to look for."}),
        (sphinx, "Search the notes.\n\nAll of them.", {"query": "What to look for.", "limit": "How many."}),
        (sphinx_alone, "Search the notes.", {"query": "What to look for."}),
        (numpy, "Search the notes.", {"query": "What to look for.", "limit": "How many."}),
        (plain, "Do this: that.\n\n- one: two\nSteps:\n  1. three", {"query": None}),
    ],
)
def test_texts_come_from_the_annotation_or_the_docstring(
    function: Any, description: str, texts: dict[str, str | None]
) -> None:
    """What is said of parameters, results and exceptions is no part of the description; the rest of it stays."""
    made = tool(function)
    assert made.declaration.description == description
    assert described(made) == texts


def test_a_description_of_its_own_leaves_the_texts_of_the_parameters() -> None:
    made = tool(description="Find.")(sphinx_alone)
    assert (made.declaration.description, described(made)) == ("Find.", {"query": "What to look for."})


NEEDS = {
    "token": Secret("VAULT_TOKEN"),
    "base_url": Setting("BASE_URL", default="https://api.test"),
    "tries": Setting("TRIES"),
    "wait": Setting("WAIT"),
}


@tool(needs=NEEDS)
def fetch(
    path: str, context: ToolContext, token: str, base_url: str, tries: int, wait: timedelta = timedelta(seconds=1)
) -> str:
    """Fetch."""
    return path


def test_what_a_tool_needs_is_not_in_its_schema_and_no_model_can_send_it() -> None:
    assert list(described(fetch)) == ["path"]
    with pytest.raises(Exception, match="argument"):
        fetch.check_arguments({"path": "/", "token": "mine"})


def test_needs_are_filled_in_as_the_parameters_types_with_the_defaults_of_setting_and_function() -> None:
    environment = {"VAULT_TOKEN": "s3cret", "TRIES": "8", "BASE_URL": ""}
    assert from_environment(fetch.needs, environment) == {"token": "s3cret", "base_url": "https://api.test", "tries": 8}
    full = from_environment(fetch.needs, {**environment, "BASE_URL": "https://other", "WAIT": "PT2S"})
    assert (full["base_url"], full["wait"]) == ("https://other", timedelta(seconds=2))
    assert secrets_among(fetch.needs, environment) == {"s3cret"}


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"TRIES": "8"}, "it needs the variable VAULT_TOKEN, which is not set; set it where the process is started"),
        (
            {"VAULT_TOKEN": "t", "TRIES": "many"},
            "the variable TRIES does not fit its parameter 'tries' (Input should be a valid integer, unable to parse "
            "string as an integer, got 'many'); correct it",
        ),
    ],
)
def test_an_environment_that_will_not_do_is_named_in_one_line(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(UnmetNeedError) as refusal:
        from_environment(fetch.needs, environment)
    assert str(refusal.value) == problem


def test_the_value_of_a_secret_is_in_no_error_and_no_representation() -> None:
    @tool(needs={"pin": Secret("PIN"), "key": Secret("KEY")})
    def unlock(pin: int, key: SecretStr) -> str:
        """Unlock."""
        return ""

    with pytest.raises(UnmetNeedError) as refusal:
        from_environment(unlock.needs, {"PIN": "no-number-42", "KEY": "k"})
    assert "no-number-42" not in f"{refusal.value!r} {refusal.value.__cause__!r} {unlock!r}"
    with pytest.raises(ValueError, match="takes the name of an environment variable") as refused:
        Secret("sk-live-42 value")
    assert "42" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"needs": {"tokn": Secret("T")}}, "needs names tokn, which is no parameter of the function"),
        ({"needs": {"query": "T"}}, "needs['query'] must be Secret('NAME') or Setting('NAME')"),
        ({"needs": {"query": Setting("T", default=3)}}, "the default 3 of Setting('T') does not fit parameter 'query'"),
        ({"needs": {"query": Secret("T")}, "masked": ["query"]}, "masked names query, which no model sends"),
        ({"masked": ["pin"]}, "masked names pin, which no model sends; it sends query"),
        ({"catch": "all"}, "catch must be True, False or classes of exceptions"),
        ({"catch": [KeyError()]}, "catch must be True, False or classes of exceptions"),
        ({"colour": "red"}, "there is no setting colour; the settings are name, description"),
        ({"truncate": 0}, "truncate: Input should be greater than or equal to 1 (got 0)"),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_a_setting_that_cannot_be_used_is_refused_when_it_is_made_and_when_it_is_changed(
    settings: Any, cause: str, *, changed: bool
) -> None:
    with pytest.raises(ToolDefinitionError) as refusal:
        _ = tool(sphinx_alone).with_(**settings) if changed else tool(**settings)(sphinx_alone)
    assert cause in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_copy_has_the_settings_of_the_first_but_for_what_is_changed() -> None:
    made = tool(catch=[KeyError], truncate=9, needs={"limit": Setting("LIMIT")})(sphinx)
    copy = made.clone(name="find", catch=True)
    assert (copy.declaration.truncate, copy.declaration.catch, copy.name) == (9, "all", "find")
    assert list(described(copy)) == ["query"]
    assert made.clone().declaration == made.declaration
    assert made.name == "sphinx"


def test_another_text_is_no_other_schema_and_another_type_is() -> None:
    """A worker with a corrected docstring goes on with the turns that began before."""
    before = parsed("""Read a page.\n\nArgs:\n    title: Whch one.\n""")
    after = parsed("""Read a page.\n\nArgs:\n    title: Which one.\n""")
    assert before.parameters != after.parameters
    assert takes_the_same(before, after)
    for other in ({**after.parameters, "required": []}, json.loads(json.dumps(after.parameters).replace("title", "n"))):
        assert not takes_the_same(before, after.model_copy(update={"parameters": other}))


def parsed(docstring: str) -> ToolDeclaration:
    def read(title: str, description: str = "none") -> str:
        return title + description

    read.__doc__ = docstring
    return tool(read).declaration


def test_data_in_a_schema_is_left_as_it_is() -> None:
    @tool
    def put(page: dict[str, str] = {"title": "none"}) -> str:  # noqa: B006 - never changed
        """Put a page."""
        return str(page)

    assert put.declaration.parameters["properties"] == {
        "page": {"additionalProperties": {"type": "string"}, "default": {"title": "none"}, "type": "object"}
    }


@pytest.mark.parametrize(("given", "read"), [("5", 5), (5.0, 5), (5, 5), (True, 1)])
def test_arguments_are_read_laxly_unless_a_parameter_is_strict(given: str | float, read: int) -> None:
    """As docs/tools.md says."""

    @tool
    def lax(count: int) -> str:
        return ""

    @tool
    def strict(count: Annotated[int, Field(strict=True)]) -> str:
        return ""

    assert lax.check_arguments({"count": given}) == {"count": read}
    if type(given) is int:
        assert strict.check_arguments({"count": given}) == {"count": 5}
    else:
        with pytest.raises(InvalidInputError, match="count: Input should be a valid integer"):
            strict.check_arguments({"count": given})
