"""An event type goes by several names, and whoever gets one wrong is told the right ones."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from click.testing import CliRunner, Result

from perdure.cli.main import cli
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import (
    EVENT_TYPES,
    AgentEnd,
    AgentError,
    AnyEvent,
    Envelope,
    Event,
    Heartbeat,
    Names,
    UnknownEvent,
    event_type,
    is_called,
    name_of,
)
from perdure.contracts.turns import StopReason

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


def failed() -> AgentError:
    return AgentError(error=ErrorDetail(code="llm.auth_error", title="generation", message="no"))


def ended(reason: StopReason) -> AgentEnd:
    return AgentEnd(
        stop_reason=reason, reason_code=None, error=None, output="", steps=1, usage=Usage(), cost_usd=Decimal(0)
    )


@pytest.mark.parametrize(
    ("event", "dreadnode", "perstack"),
    [
        (failed(), "AgentError", "errorRun"),
        (ended(StopReason.FINISHED), "AgentEnd", "completeRun"),
        (ended(StopReason.ERROR), "AgentEnd", "agent_end"),
        (ended(StopReason.MAX_STEPS_REACHED), "AgentEnd", "stopRunByExceededMaxSteps"),
        (ended(StopReason.WAITING_FOR_INPUT), "AgentEnd", "stopRunByInteractiveTool"),
        (ended(StopReason.STALLED), "AgentEnd", "agent_end"),
        (Heartbeat(), "Heartbeat", "heartbeat"),
        (UnknownEvent(name="of_tomorrow", body={"type": "of_tomorrow", "a": 1}), "of_tomorrow", "of_tomorrow"),
    ],
)
def test_a_line_has_the_names_that_were_asked_for(event: AnyEvent, dreadnode: str, perstack: str) -> None:
    """S-50: the type of the line alone is another one."""
    envelope = Envelope(seq=1, session="s", turn=1, step=1, at=datetime.now(UTC), event=event)
    ours = envelope.line()
    assert ours["type"] == (event.name if isinstance(event, UnknownEvent) else event.type)
    assert envelope.line("dreadnode") == {**ours, "type": dreadnode}
    assert envelope.line("perstack") == {**ours, "type": perstack}


@pytest.mark.parametrize("names", ["dreadnode", "perstack"])
def test_every_name_that_is_printed_chooses_the_events_that_have_it(names: Names) -> None:
    """S-50: what a reader sees as a type is what --type takes, and nothing else comes with it."""
    events: list[AnyEvent] = [failed(), *(ended(reason) for reason in StopReason)]
    events += [kind.model_construct() for kind in EVENT_TYPES.values() if kind not in {AgentEnd, AgentError}]
    for event in events:
        name = name_of(event, names)
        event_type(name)  # is known
        found = [other for other in events if is_called(other, {name})]
        also = [other for other in events if name_of(other, names) == name]
        beside = {"agent_end"} if name == "agent_end" else set[str]()
        assert event in found
        assert [mention for mention in found if mention not in also and mention.type not in beside] == []


@pytest.mark.parametrize("args", VERBS[:3])
def test_names_are_refused_where_no_types_are_printed(args: list[str]) -> None:
    """S-50: before anything is started."""
    result = perdure(*args, "--names", "perstack")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "perdure: --names names the types of JSON lines; add --json, or leave it out\n"
