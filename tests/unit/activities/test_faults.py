"""A fault of perdure's own code, or of a library's, is told as that: once, with its module, and logged."""

import json
import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import litellm
import pydantic
import pytest

from perdure import Agent, ModelError, tool
from perdure.activities import generate, tools
from perdure.activities.agents import Definitions
from perdure.activities.faults import find_fault, litellm_release, mark_answered
from perdure.activities.models import (
    attempt,
    model_call,
    provider_door,
    provider_http,
    provider_reading,
    provider_requests,
)
from perdure.activities.models.conversations import Conversations
from perdure.activities.models.failures import facts_of
from perdure.activities.models.provider_messages import Contents
from perdure.activities.models.provider_replies import StreamCutError
from perdure.activities.models.wires import chat
from perdure.activities.recordings import Recordings
from perdure.activities.toolbox.claims import Claims
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.llm.failures import classify, is_ambiguous
from perdure.store import Store
from perdure.testing import Script, ScriptedProvider, call, say
from tests.memory import Run
from tests.unit.activities.calls import NOW, NOWHERE, Way, failure, take

R = ReasonCode


class PlantedError(TypeError):
    """A fault that a test plants."""


def fail(*_: object, **__: object) -> Any:
    msg = "planted() got an unexpected keyword argument 'http2'"
    raise PlantedError(msg)


async def fail_later(*_: object, **__: object) -> Any:
    fail()


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


UNDER_GENERATE: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "definitions": (Definitions, "get", fail_later),
    "conversations": (Conversations, "read", fail_later),
    "store": (Store, "begin_generation", fail_later),
    "prompt": (generate, "system_prompt", fail),
    "gate": (attempt.ModelCall, "_wait_for_turn", fail_later),
    "pictures": (Contents, "with_bytes", fail_later),
    "recordings": (model_call, "mode_of", fail),
    "key": (model_call, "require_key", fail),
    "arguments": (model_call, "_arguments", fail),
    "call": (attempt, "complete", fail_later),
    "request": (model_call, "_ask", fail_later),
    "reader": (chat, "read", fail),
    "answer": (model_call, "_answer", fail),
    "checks": (attempt, "_check_calls", fail),
    "record": (generate, "step_of", fail),
    "return": (generate, "generation_of", fail),
}
"""Where a fault is planted: before, within and behind the call of the model."""


@pytest.mark.parametrize("layer", UNDER_GENERATE)
async def test_a_fault_in_any_layer_under_generate_ends_the_turn_once(
    run: Run, layer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S-68 S-69: never retried and never paid twice; the module stands in the sentence, the traceback in the log."""
    place, name, instead = UNDER_GENERATE[layer]
    monkeypatch.setattr(place, name, instead)
    caplog.set_level(logging.ERROR)
    result = await run(Agent(name="tester", model="openai/scripted"), say("never"), say("never"))
    assert (result["stop_reason"], result["reason_code"], result["exception"]) == (
        "error",
        "runtime.internal",
        "exception.PlantedError",
    )
    assert len(run.requests) <= 1
    assert await run.events("generation_retry") == []
    for part in (
        f"PlantedError in {__name__} ({litellm_release()}): ",
        "'http2'",
        "the worker's log has the traceback",
    ):
        assert part in result["error"]
    (record,) = [record for record in caplog.records if "PlantedError" in str(vars(record).get("exception"))]
    assert "raise PlantedError(msg)" in str(vars(record)["exception"])


UNDER_TOOLS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "definitions": (tools, "Attempt", fail),
    "recordings": (Recordings, "tool_call", fail_later),
    "claim": (Claims, "claim", fail_later),
    "hidden": (tools, "hidden_of", fail_later),
    "approval": (tools, "is_approved", fail),
    "arguments": (tools, "check_arguments", fail),
    "body": (tools, "wait_within", fail_later),
    "artifacts": (tools, "artifacts_of", fail_later),
    "message": (tools, "show_images", fail),
    "record": (tools, "events_of_end", fail),
}


@pytest.mark.parametrize("layer", UNDER_TOOLS)
async def test_a_fault_in_any_layer_under_a_tool_is_no_exception_of_the_tools(
    run: Run, layer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S-68 S-69."""
    caplog.set_level(logging.WARNING)
    place, name, instead = UNDER_TOOLS[layer]
    monkeypatch.setattr(place, name, instead)
    agent = Agent(name="tester", model="openai/scripted", tools=[look], on_tool_error="abort")
    result = await run(agent, call(("look", {"place": "here"})), say("never"))
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.internal")
    assert result["exception"] == "exception.PlantedError"
    assert len(run.requests) == 1
    assert any("raise PlantedError(msg)" in str(vars(record).get("exception")) for record in caplog.records)


async def test_an_exception_of_a_body_stays_the_tools(run: Run) -> None:
    """S-68: also a TypeError."""

    @tool
    def broken() -> str:
        """Break."""
        raise TypeError("mine")

    agent = Agent(name="tester", model="openai/scripted", tools=[broken], on_tool_error="abort")
    result = await run(agent, call(("broken", {})), say("never"))
    assert (result["reason_code"], result["exception"]) == ("tool.execution_error", "exception.TypeError")


ON_THE_WAY: dict[str, tuple[Way, Any, str, Any]] = {
    "the request": (Way.OPENAI, provider_requests, "prepare", fail),
    "the door": (Way.OPENAI, provider_door, "send", fail_later),
    "the session": (Way.ANTHROPIC, provider_door, "_session", fail),
    "the exchange": (Way.OPENAI, provider_door, "exchange", fail_later),
    "the reading": (Way.ANTHROPIC, provider_http, "receive", fail_later),
    "the answer": (Way.OPENAI, provider_reading, "_answer_in", fail),
}


@pytest.mark.parametrize("layer", ON_THE_WAY)
async def test_a_fault_on_the_way_to_the_provider_is_no_network_error(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-68."""
    way, place, name, instead = ON_THE_WAY[layer]
    take(way, monkeypatch)
    monkeypatch.setattr(place, name, instead)
    async with ScriptedProvider(Script(replies=(say("unused"),))) as provider:
        facts = await failure(way, provider)
    assert (classify(facts), facts.status, facts.class_name) == (R.RUNTIME_INTERNAL, None, "PlantedError")
    assert not is_ambiguous(facts, classify(facts))
    assert facts.fault_place == f"{__name__} ({litellm_release()})"
    assert facts.text == "planted() got an unexpected keyword argument 'http2'"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("choices"), R.LLM_NETWORK_ERROR),
        (json.JSONDecodeError("no", "x", 0), R.LLM_NETWORK_ERROR),
        (TypeError("takes no http2"), R.RUNTIME_INTERNAL),
    ],
    ids=["a missing field", "no JSON", "a renamed argument"],
)
async def test_an_odd_reply_to_litellm_is_no_fault_of_code(
    error: Exception, code: ReasonCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-68: as far as its exception tells them apart; nobody else reads such a reply."""

    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(litellm.OpenAIGPTConfig, "transform_request", broken)
    with pytest.raises(Exception, match=r".") as raised:
        await litellm.acompletion(model="friendliai/x", messages=[{"role": "user"}], api_key="k", api_base=NOWHERE)
    assert classify(facts_of(raised.value, NOW)) == code


async def test_a_fault_in_the_reading_of_a_stream_is_no_cut_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-68: another stream would end in the same way."""
    take(Way.OPENAI, monkeypatch)
    monkeypatch.setattr(chat.ChatPieces, "add", fail)
    async with ScriptedProvider(Script(replies=(say("unused"),))) as provider:
        with pytest.raises(PlantedError) as raised:
            await model_call.complete(
                AgentDefinition(name="t", model="openai/x", generate_params={"api_base": provider.url}),
                [{"role": "user", "content": "go"}],
                shown=Mock(),
            )
    assert classify(facts_of(raised.value, NOW)) == R.RUNTIME_INTERNAL


class Wrapped(pydantic.BaseModel):
    """A model whose validation fails."""

    number: int


def raised(make: Callable[[], object]) -> Exception:
    try:
        make()
    except Exception as error:  # noqa: BLE001 - whatever is planted
        return error
    pytest.fail("nothing was raised")


def wrap(cause: Exception) -> Exception:
    """As litellm wraps what it meets."""
    wrapped: Exception = litellm.exceptions.APIConnectionError(message=str(cause), llm_provider="openai", model="x")
    wrapped.__cause__ = cause
    return wrapped


FAULTS: list[Callable[[], object]] = [
    fail,
    lambda: None.no_such_name,  # type: ignore[attr-defined]
    lambda: no_such_name,  # type: ignore[name-defined]  # noqa: F821
    lambda: __import__("no_such_module"),
    lambda: {"key": 0}["no such key"],
    [].pop,
    lambda: int("x"),
    lambda: 1 / 0,
    lambda: Wrapped.model_validate({"number": "x"}),
    Mock(side_effect=AssertionError("no")),
    Mock(side_effect=RecursionError("too deep")),
    Mock(side_effect=NotImplementedError),
    Mock(side_effect=UnicodeDecodeError("utf-8", b"x", 0, 1, "no")),
    lambda: open("/no/such/certificate.pem"),  # noqa: SIM115, PTH123
]


@pytest.mark.parametrize("make", FAULTS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_class_of_a_mistake_is_a_fault_wrapped_or_not(make: Callable[[], object], wrapped: bool) -> None:
    """S-68."""
    error = raised(make)
    facts = facts_of(wrap(error) if wrapped else error, NOW)
    assert (classify(facts), facts.class_name) == (R.RUNTIME_INTERNAL, type(error).__name__)
    assert not REASONS[R.RUNTIME_INTERNAL].transient


def test_a_missing_module_is_told_with_what_to_install() -> None:
    """S-68: an optional dependency of litellm's or perdure's."""
    for module, package in (("google.auth", "litellm[google]"), ("boto3", "perdure[s3]"), ("petals", "petals")):
        error = ModuleNotFoundError(f"No module named {module!r}", name=module)
        bare = Exception("Importing petals failed")  # as litellm raises it
        bare.__context__ = error
        for shown in (error, wrap(error), wrap(bare)):
            assert f"pip install '{package}'" in facts_of(shown, NOW).text


NO_FAULTS: dict[str, Exception] = {
    "reset": wrap(ConnectionResetError("reset")),
    "time-out": wrap(TimeoutError()),
    "too many files": wrap(OSError(24, "Too many open files")),
    "closed": wrap(RuntimeError("Session is closed")),
    "author's": wrap(ModelError("llm.moderated", "no")),
    "nobody's": wrap(Exception("who knows")),
}


@pytest.mark.parametrize("name", NO_FAULTS)
def test_a_failure_of_a_connection_or_of_a_provider_is_no_fault(name: str) -> None:
    """S-68: it is retried, or has its author's code, as before."""
    assert classify(facts_of(NO_FAULTS[name], NOW)) != R.RUNTIME_INTERNAL


def test_what_was_raised_while_a_lost_connection_was_handled_is_the_connections() -> None:
    error = TypeError("in the handling")
    error.__context__ = ConnectionResetError("reset")
    assert classify(facts_of(wrap(error), NOW)) is R.LLM_NETWORK_ERROR


def test_a_fault_of_ours_in_a_stream_is_no_cut_stream() -> None:
    """S-68: another stream would end in the same way; one of the library's that reads a stream is a cut."""
    for cause, code in ((_within_perdure(), R.RUNTIME_INTERNAL), (KeyError("x"), R.LLM_STREAM_CUT)):
        cut = StreamCutError("the stream broke off")
        cut.__cause__ = cause
        assert classify(facts_of(cut, NOW)) == code


def _within_perdure() -> Exception:
    nothing: Any = None
    return raised(lambda: provider_reading.show_answer(nothing, Mock()))


def test_a_fault_behind_a_reply_is_the_replys_unless_it_is_ours() -> None:
    for error, is_ours in ((_within_perdure(), True), (KeyError("usage"), False)):
        mark_answered(error)
        assert (find_fault([error]) is not None) is is_ours


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnreadableError(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no status")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", [UnprintableError, UnreadableError])
def test_an_exception_of_a_custom_provider_that_cannot_be_read_is_a_failure_like_any_other(
    kind: type[Exception], *, wrapped: bool
) -> None:
    """Or the activity failed by itself, and its provider was asked again each second."""
    error: Exception = kind("planted")
    if wrapped:
        error = ValueError("outer")
        error.__cause__ = kind("planted")
    facts = facts_of(error, NOW)
    assert facts.class_name == type(error).__name__
    assert facts.text
    assert classify(facts) in R
