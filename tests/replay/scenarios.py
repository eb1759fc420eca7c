"""The turns whose histories are stored: one for each way through the workflow."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import (
    Agent,
    ApprovalPolicy,
    Compaction,
    Continue,
    Delegate,
    HookContext,
    HookRule,
    Retry,
    RetryPolicy,
    RetryWithFeedback,
    ask_user,
    hook,
    stop,
    todo,
    tool,
)
from perdure.client import SessionIdleError
from perdure.contracts.names import AGENT_TURN, KNOCK, NOTIFY
from perdure.contracts.schedules import Knock
from perdure.contracts.turns import RunState
from perdure.contracts.values import JsonValue
from perdure.contracts.webhooks import Notify, Webhook, WebhookEvent
from perdure.testing import ChatRequest, Fault, Reply, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Answers
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, PAY, pay, several, waiting
from tests.workflow.backgrounds import awaiting, starts
from tests.workflow.backgrounds import steps as in_turn
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import agent, asks, played

ROTATES_AFTER = 60
"""Events of a history after which the recording server suggests a fresh one."""


@tool(catch=[ValueError])
def count(number: int) -> str:
    """Say the number; there is no negative one, and zero is a bug."""
    if number == 0:
        msg = "zero was not foreseen"
        raise ArithmeticError(msg)
    if number < 0:
        msg = "there is no negative number"
        raise ValueError(msg)
    return f"number {number}"


@tool
def finish() -> str:
    """End the turn."""
    return "finished"


@hook("agent_start", "step_end", "agent_end")
def looks(event: Any, context: HookContext) -> RetryWithFeedback | None:
    """Look, and find the first step wanting."""
    return RetryWithFeedback("better") if event.type == "step_end" and context.step == 1 else None


@dataclass
class Stage:
    """What a scenario plays with: the house, the model, and a tool whose body is held."""

    house: House
    provider: ScriptedProvider
    body: Body
    receiver: str

    async def start(self, **request: Any) -> Any:
        """A running turn."""
        return await self.house.start(**request)

    async def send(self, prompt: str, **fields: Any) -> None:
        """A message to the running turn."""
        handle = self.house.temporal.get_workflow_handle(self.house.session)
        await handle.execute_update("send", {"prompt": prompt, "request_id": prompt, **fields}, id=prompt)

    async def in_the_tool(self, **request: Any) -> Any:
        """A turn that runs the held tool."""
        handle = await self.start(**request)
        await happened(self.body.started)
        return handle


async def runs(stage: Stage) -> None:
    await stage.start()


async def runs_into_limits(stage: Stage) -> None:
    await stage.start(max_steps=2)


async def runs_into_the_tool_budget(stage: Stage) -> None:
    await stage.start(budgets={"tool_calls": 1})


async def runs_out_of_time(stage: Stage) -> None:
    await stage.start(budgets={"seconds": 0.5})


async def is_cancelled_while_the_model_is_asked(stage: Stage) -> None:
    handle = await stage.start()
    await stage.provider.wait_for_requests(1)
    await handle.signal("cancel", {"reason": "no longer needed", "turn": 7})
    await handle.signal("cancel", {"reason": "no longer needed", "turn": 1})


async def is_cancelled_in_a_tool(stage: Stage) -> None:
    handle = await stage.in_the_tool()
    await handle.signal("cancel", "stop")


async def is_cancelled_by_temporal(stage: Stage) -> None:
    handle = await stage.in_the_tool()
    await stage.send("second")
    await stage.send("steered", steer=True)
    await handle.cancel()


async def gets_messages(stage: Stage) -> None:
    await stage.in_the_tool()
    await stage.send("second")
    await stage.send("third")
    stage.body.released.set()


async def has_its_queue_cancelled(stage: Stage) -> None:
    """A cancel of another turn is refused, one of a waiting turn ends that alone, and then the queue is dropped."""
    handle = await stage.in_the_tool()
    for prompt in ("second", "third", "fourth"):
        await stage.send(prompt)
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("cancel", {"turn": 7}, id="wrong")
    await handle.execute_update("cancel", {"turn": 3, "reason": "not the third"}, id="third")
    await handle.execute_update("cancel", {"reason": "no longer needed", "drop_queue": True}, id="all")


async def is_steered(stage: Stage) -> None:
    await stage.in_the_tool()
    await stage.send("be brief", steer=True)
    stage.body.released.set()


async def is_interrupted(stage: Stage) -> None:
    """A message overtakes one that waits, and takes the place of the turn that runs."""
    await stage.in_the_tool()
    await stage.send("second")
    await stage.send("no, this", when_busy="rollback")
    stage.body.released.set()


async def is_paused(stage: Stage) -> None:
    """The pause comes while a tool runs, and goes on through the cancel of the turn into the next one."""
    handle = await stage.in_the_tool(budgets={"seconds": 600})
    await handle.execute_update("pause", {"reason": "a move", "by": "ann"}, id="pause")
    stage.body.released.set()
    await stands_still(stage.house)
    await stage.send("second")
    await handle.execute_update("cancel", {"turn": 1}, id="cancel")
    await stands_still(stage.house, turn=2)
    await stage.house.temporal.get_workflow_handle(stage.house.session).execute_update("unpause", {}, id="unpause")


async def stands_still(house: House, turn: int = 1) -> None:
    async def paused() -> bool:
        try:
            status = await house.client.status(house.session)
        except SessionIdleError:  # between two turns
            return False
        return (status.state, status.turn) == (RunState.PAUSED, turn)

    await eventually(paused)


async def is_carried_along(stage: Stage) -> None:
    await stage.in_the_tool(budgets={"seconds": 600})
    await stage.send("second")
    stage.body.released.set()


async def is_refused(stage: Stage) -> None:
    await stage.start(agent="nobody")


async def notifies(stage: Stage, *, known: bool) -> None:
    """A delivery to a webhook that is there, or was removed."""
    house, webhook = stage.house, "wh_0123456789abcdef"
    if known:
        added = Webhook(id=webhook, url=stage.receiver, events=(WebhookEvent.ENDED,), created_at=datetime.now(UTC))
        await house.store.add_webhook(added, "whsec_c2NyaXB0ZWQgc2NyaXB0ZWQgc2NyaXB0ZWQ=")
    notify = Notify(webhook=webhook, message="s:1:ended", body="{}", store=house.store.id)
    await house.temporal.start_workflow(NOTIFY, notify, id=house.session, task_queue=house.settings.task_queue)


async def is_delivered(stage: Stage) -> None:
    await notifies(stage, known=True)


async def is_undeliverable(stage: Stage) -> None:
    await notifies(stage, known=False)


async def is_knocked_at(stage: Stage) -> None:
    """A schedule's message to another session; what is recorded is the knock."""
    house, knock = stage.house, stage.house.session
    house.session = "knocked-at"
    await house.run()
    house.session = knock
    said = Knock(session="knocked-at", prompt="And now?", store=house.store.id)
    await house.temporal.start_workflow(KNOCK, said, id=knock, task_queue=house.settings.task_queue)


async def is_knocked_in_vain(stage: Stage) -> None:
    house = stage.house
    said = Knock(session="nowhere", prompt="And now?", store=house.store.id)
    await house.temporal.start_workflow(KNOCK, said, id=house.session, task_queue=house.settings.task_queue)


async def is_no_request(stage: Stage) -> None:
    house = stage.house
    await house.temporal.start_workflow(
        AGENT_TURN, {"promt": "typo"}, id=house.session, task_queue=house.settings.task_queue
    )


async def is_asked_again(stage: Stage) -> None:
    await stage.house.run(request_id="a")
    await stage.start(request_id="a")


async def is_compacted(stage: Stage) -> None:
    house = stage.house
    await house.run()
    await house.start(prompt="the numbers", compact=True)


async def is_replied_to(stage: Stage) -> None:
    """A question is answered, an approval given, another one denied, with a rotation behind them."""
    await stage.start(budgets={"seconds": 600})
    question, allowed, refused = await waiting(stage.house, 3)
    await reply(stage, "approve", request=allowed["request_id"], by="ann")
    await waiting(stage.house, 2)
    await reply(stage, "answer", request=question["request_id"], value="red", by="ann")
    await reply(stage, "deny", request=refused["request_id"], by="ann", reason="no")


async def rotates_while_it_waits(stage: Stage) -> None:
    """The same denial under many ids makes its history long; the question that is left is answered behind that."""
    await stage.start(budgets={"seconds": 600})
    question, refused = await waiting(stage.house, 2)
    handle = stage.house.temporal.get_workflow_handle(stage.house.session)
    denial = {"request": refused["request_id"], "by": "ann", "reason": "no"}
    for number in range(ROTATES_AFTER // 5):
        await handle.execute_update("deny", denial, id=f"deny-{number}")
    await reply(stage, "answer", request=question["request_id"], value="red", by="ann")


async def is_cancelled_while_it_waits(stage: Stage) -> None:
    handle = await stage.start()
    question, _ = await waiting(stage.house, 2)
    await reply(stage, "answer", request=question["request_id"], value="red")
    await waiting(stage.house)
    await handle.signal("cancel", {"reason": "no longer needed"})


async def goes_on_with_a_reply(stage: Stage) -> None:
    """It stops twice: each reply starts a turn."""
    first, second = (await stage.house.run())["requests"]
    for decided in (first, second):
        said = {"request": decided["request_id"], "decision": "denied", "by": "ann"}
        await stage.house.run(prompt="denied", reply=said)


async def reply(stage: Stage, name: str, **fields: Any) -> None:
    """An update whose id is the same in every recording."""
    handle = stage.house.temporal.get_workflow_handle(stage.house.session)
    await handle.execute_update(name, fields, id=f"{name}-{fields['request']}")


@dataclass(frozen=True)
class Scenario:
    """A turn, or the turns of a chain, with a name that says what is special about them.

    Attributes:
        drive: Starts the turn and does what happens to it; its end is waited for afterwards.
        settings: Of the agent.
        fails: Whether its worker has ``PERDURE_FAIL_WORKFLOWS``.
    """

    name: str
    replies: tuple[Reply, ...] | Callable[[ChatRequest], Reply]
    drive: Callable[[Stage], Awaitable[None]] = runs
    settings: dict[str, Any] = field(default_factory=dict)
    always: Fault | None = None
    fails: bool = False
    helpers: tuple[Agent, ...] = ()

    def agent(self, body: Body) -> Agent:
        """The agent of this scenario."""
        retry = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))
        tools = [count, finish, body.held()]
        fields = {"name": "tester", "model": "openai/scripted", "tools": tools, "retry": retry, **self.settings}
        return Agent(**fields)

    def script(self) -> Answers:
        """What the model says."""
        return Script(replies=self.replies) if isinstance(self.replies, tuple) else self.replies


COUNT = call(("count", {"number": 1}))
THREE = call(("count", {"number": 1}), ("count", {"number": 2}), ("count", {"number": 3}))
HELD = call(("held", {}))
TOLD = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0), on_retry="tell_model")
DONE = say("done")
ONCE = RetryPolicy(max_retries=0)
TODO: tuple[str, JsonValue] = ("todo", {"new_titles": ["count"]})
ATTEMPT: tuple[str, JsonValue] = ("attempt_completion", {})
GREET = Continue("be brief")
LEAD: dict[str, Any] = {"instructions": "I am tester.", "delegates": [Delegate("helper", background=True)]}
ASKS: dict[str, Any] = {"tools": (count, ask_user, pay)}


def grows_too_long(request: ChatRequest) -> Reply:
    """Three calls, then a refusal until the conversation is shorter."""
    first = str(request.messages[0]["content"])
    if first.startswith("You summarise"):
        return say("<summary>counted</summary>")
    if first.startswith("[Summary"):
        return DONE
    return COUNT if request.index < 3 else DONE.after(faults.context_overflow())


SCENARIOS = (
    Scenario("parallel-tools", (THREE, COUNT, DONE)),
    Scenario("tool-error", (call(("count", {"number": -1}), ("count", {"number": "x"}), ("nothing", {})), DONE)),
    Scenario("tool-abort", (call(("count", {"number": 1}), ("count", {"number": 0})), DONE)),
    Scenario("finish-tool", (COUNT, call(("finish", {}))), settings={"finish_tool": "finish"}),
    Scenario("stalled", (COUNT, DONE), settings={"finish_tool": "finish"}),
    Scenario("retry", (COUNT.after(faults.status(503), faults.status(429)), DONE)),
    Scenario("model-error", (DONE,), always=faults.status(401)),
    Scenario("max-steps", (COUNT, COUNT, DONE), runs_into_limits),
    Scenario(
        "tool-budget",
        (COUNT, call(("count", {"number": 1}), ("count", {"number": 2})), DONE),
        runs_into_the_tool_budget,
    ),
    Scenario("seconds-budget", (DONE.after(faults.hang()),), runs_out_of_time),
    Scenario("cancelled-in-generation", (DONE.after(faults.hang()),), is_cancelled_while_the_model_is_asked),
    Scenario("cancelled-in-tool", (call(("count", {"number": 1}), ("held", {})), DONE), is_cancelled_in_a_tool),
    Scenario("cancelled-by-temporal", (HELD, DONE), is_cancelled_by_temporal),
    Scenario("queued", (HELD, DONE, DONE, DONE), gets_messages),
    Scenario("queue-dropped", (HELD, DONE), has_its_queue_cancelled),
    Scenario("steered", (HELD, DONE), is_steered),
    Scenario("interrupted", (HELD, DONE), is_interrupted),
    Scenario("paused", (HELD, DONE), is_paused),
    Scenario("rotated", (*[COUNT] * 4, HELD, *[COUNT] * 3, DONE, DONE), is_carried_along),
    Scenario("refused", (DONE,), is_refused),
    Scenario("malformed", (DONE,), is_no_request),
    Scenario("repeated-request", (DONE,), is_asked_again),
    Scenario("compacted", grows_too_long, settings={"compaction": Compaction(keep=2)}),
    Scenario("not-compacted", grows_too_long),
    Scenario("compacted-by-hand", grows_too_long, is_compacted, settings={"compaction": Compaction(keep=2)}),
    Scenario("corrected", (DONE, say("3")), settings={"output_schema": {"type": "number"}, "output_corrections": 1}),
    Scenario("asked", (several(COLOUR, PAY, PAY), *[COUNT] * 5, DONE), is_replied_to, settings=ASKS),
    Scenario("rotated-while-waiting", (several(COLOUR, PAY), DONE), rotates_while_it_waits, settings=ASKS),
    Scenario(
        "approval-expired", (PAY, DONE), settings=ASKS | {"approvals": ApprovalPolicy(expires=timedelta(seconds=0.2))}
    ),
    Scenario("cancelled-while-waiting", (several(COLOUR, PAY), DONE), is_cancelled_while_it_waits, settings=ASKS),
    Scenario(
        "stopped-for-people",
        (several(COLOUR, PAY), DONE),
        goes_on_with_a_reply,
        settings=ASKS | {"interactive": "stop"},
    ),
    Scenario("closed-as-failed", (DONE,), always=faults.status(401), fails=True),
    Scenario("closed-as-canceled", (HELD, DONE), is_cancelled_in_a_tool, fails=True),
    Scenario("closed-by-temporal", (HELD, DONE), is_cancelled_by_temporal, fails=True),
    Scenario("closed-as-refused", (DONE,), is_refused, fails=True),
    Scenario("stop-condition", (COUNT, COUNT, DONE), settings={"stop_conditions": [stop.tool_use("count", 2)]}),
    Scenario(
        "fallback", (DONE.after(faults.bad_key()), DONE), settings={"fallback_models": ["openai/other"], "retry": ONCE}
    ),
    Scenario(
        "hooks", (COUNT, DONE), settings={"hooks": [looks, HookRule(name="greet", on="agent_start", reaction=GREET)]}
    ),
    Scenario(
        "hook-takes-back",
        (COUNT, DONE),
        settings={"hooks": [HookRule(name="again", on="generation_end", reaction=Retry(), times=1)]},
    ),
    Scenario(
        "hook-after-failure",
        (DONE.after(faults.bad_key()),),
        settings={"hooks": [HookRule(name="again", on="generation_error", reaction=Retry(), times=1)]},
    ),
    Scenario(
        "todos",
        (call(TODO, ATTEMPT), call(("todo", {"completed": [0]}), ATTEMPT), DONE),
        settings={"tools": (todo,), "completion": "attempt_completion"},
    ),
    Scenario(
        "delegates",
        played(tester=in_turn(asks("first", "second"), DONE), helper=in_turn(DONE)),
        settings=LEAD,
        helpers=(agent("helper"),),
    ),
    Scenario(
        "background-delegates",
        played(tester=in_turn(starts("first", "second"), COUNT, awaiting(0, 1), DONE), helper=in_turn(DONE)),
        settings=LEAD,
        helpers=(agent("helper"),),
    ),
    Scenario("notify-delivered", (), is_delivered),
    Scenario("notify-failed", (), is_undeliverable),
    Scenario("knock", (DONE, DONE), is_knocked_at),
    Scenario("knock-failed", (), is_knocked_in_vain),
    Scenario("tell-model", (DONE.after(faults.status(503)),), settings={"retry": TOLD}),
)
