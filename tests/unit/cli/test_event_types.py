"""An event type goes by several names, and whoever gets one wrong is told the right ones."""

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.contracts.event_types import event_type
from perdure.contracts.events import Event

VERBS = (["run", "writer", "go"], ["send", "job", "go"], ["follow", "job"], ["export", "job", "--format", "events"])


def perdure(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="perdure")


@pytest.mark.parametrize("name", ["agent_error", "AgentError", "errorRun", "stopRunByError"])
def test_the_error_event_goes_by_the_names_of_every_document(name: str) -> None:
    """S-50: ours, its class, and both spellings of Perstack."""
    assert event_type(name) == "agent_error"


@pytest.mark.parametrize("event", Event.__args__)
def test_every_type_goes_by_its_own_name_and_by_its_class(event: type[Event]) -> None:
    """S-50."""
    kind = event.model_fields["type"].default
    assert event_type(kind) == event_type(event.__name__) == kind


@pytest.mark.parametrize(
    ("name", "near"), [("agent_eror", "agent_error"), ("toolEnd", "ToolEnd"), ("errorrun", "errorRun")]
)
def test_a_name_that_is_nearly_right_is_told_the_right_one(name: str, near: str) -> None:
    with pytest.raises(
        ValueError, match=f"no event type {name!r}; did you mean {near!r}\\? The types are agent_start, "
    ):
        event_type(name)


def test_a_name_like_no_other_is_told_them_all() -> None:
    with pytest.raises(ValueError, match=r"no event type 'xyz'; the types are agent_start, .*agent_end$"):
        event_type("xyz")


@pytest.mark.parametrize("args", VERBS)
def test_an_unknown_type_is_one_line_and_exit_2(args: list[str]) -> None:
    result = perdure(*args, "--type", "agent_eror")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "no event type 'agent_eror'; did you mean 'agent_error'?" in line


@pytest.mark.parametrize("args", VERBS)
def test_the_help_names_the_other_names(args: list[str]) -> None:
    """S-50."""
    said = " ".join(perdure(args[0], "--help").output.split())
    assert "also called AgentError" in said
    assert "errorRun or stopRunByError" in said


@pytest.mark.parametrize("args", VERBS[:2])
def test_types_are_refused_where_no_events_are_printed(args: list[str]) -> None:
    result = perdure(*args, "--detach", "--type", "agent_end")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "perdure: --detach prints no events that --type could choose from; leave one of the two out\n"
    )
