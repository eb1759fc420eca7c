"""Approvals that stand for further calls, in memory: what they let through, and what outranks or ends them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, Delegate, HookContext, RetryWithFeedback, hook, todo, tool
from perdure.contracts.events import Event, UserInputReceived
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.standing_approvals import StandingApproval
from perdure.store import session_lock
from perdure.testing import Reply, Said, Script, approve, call, deny, say
from perdure.testing.memory_runtime import RunningTurn
from tests.memory import Run

DONE = say("done")
PAID: list[tuple[int, str]] = []


@tool(requires_approval=True)
def pay(amount: int, password: str = "") -> str:
    """Pay an amount."""
    PAID.append((amount, password))
    return f"paid {amount}"


@tool(requires_approval=True)
def sell(amount: int) -> str:
    """Sell an amount."""
    return f"sold {amount}"


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": [pay, sell], **settings})


def pays(*amounts: int, **more: Any) -> Reply:
    return call(*(("pay", {"amount": amount, **more}) for amount in amounts))


class Ann:
    """A person who replies so, one request after the other, and notes what was asked."""

    def __init__(self, *said: Said) -> None:
        self.asked: list[str] = []
        self._said = iter(said)

    def __call__(self, request: InputRequest) -> Said:
        self.asked.append(f"{request.tool} {request.arguments}")
        return next(self._said, deny("asked too often", by="ann"))


class Job:
    """Turns of one session; the model's script goes on from one to the next."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._replies: list[Reply] = []

    async def __call__(self, agent: Agent, *replies: Reply, **options: Any) -> None:
        self._replies += replies
        await self._run(agent, script=Script(replies=tuple(self._replies)), **options)


@pytest.fixture
def turn(run: Run) -> Job:
    return Job(run)


async def in_force(run: Run, *, ended: bool = False) -> tuple[StandingApproval, ...]:
    return await run.store.standing_approvals(run.session, ended=ended)


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_an_approval_that_stands_lets_later_calls_of_the_tool_through(run: Run, turn: Job) -> None:
    """S-84: in this turn and in later ones, with who gave it and when in the log; other tools still ask."""
    ann = Ann(approve(by="ann", always="tool"), approve(by="ann"))
    await turn(agent(), pays(1), pays(2), call(("sell", {"amount": 3})), DONE, people=ann)
    await turn(agent(), pays(4), DONE, people=ann)
    assert (ann.asked, PAID) == (['pay {"amount": 1}', 'sell {"amount": 3}'], [(1, ""), (2, ""), (4, "")])
    (given,) = await in_force(run)
    about = (given.scope, given.tool, given.agent, given.by, given.reason, given.until, given.arguments)
    assert about == ("tool", "pay", "tester", "ann", "", None, "")
    log = [envelope.event for envelope in await run.last.events()]
    first, second, sold, last = [event for event in log if isinstance(event, UserInputReceived)]
    assert (first.always is not None, first.standing, first.request_id) == (True, "", given.id)
    assert (sold.always, sold.standing) == (None, "")
    for through in (second, last):
        said = (through.decision, through.standing, through.by, through.at, through.always)
        assert said == ("approved", given.id, "ann", given.given_at, None)
    decided = [message.decided for message in await run.transcript() if message.role == "tool"]
    assert [each is not None and each.standing for each in decided] == ["", given.id, "", given.id]


async def test_one_for_the_arguments_lets_only_the_same_arguments_through(run: Run, turn: Job) -> None:
    ann = Ann(approve(by="ann", always="arguments"), deny(by="ann"))
    await turn(agent(), pays(1), pays(1), pays(2), pays(1), DONE, people=ann)
    assert (ann.asked, PAID) == (['pay {"amount": 1}', 'pay {"amount": 2}'], [(1, "")] * 3)
    (given,) = await in_force(run)
    assert (given.scope, given.arguments, len(given.digest)) == ("arguments", '{"amount": 1}', 32)


async def test_masked_arguments_are_not_compared(run: Run, turn: Job) -> None:
    """As with a digest: what nobody may see cannot be what somebody approved."""
    ann = Ann(approve(by="ann", always="arguments"))
    await turn(agent(), pays(1, password="hunter22"), pays(1, password="letmein1"), DONE, people=ann)
    assert (len(ann.asked), PAID) == (1, [(1, "hunter22"), (1, "letmein1")])


async def test_calls_that_wait_beside_it_and_are_covered_ask_no_more(run: Run, turn: Job) -> None:
    """Also with a reply for one of them: that one counts."""
    calls = call(("pay", {"amount": 1}), ("pay", {"amount": 2}), ("sell", {"amount": 3}))

    def says(request: InputRequest) -> Said | None:
        if request.tool == "sell":
            return deny(by="bob", seconds=9)
        return approve(by="ann", always="tool", seconds=1) if '"amount": 1' in request.arguments else None

    await turn(agent(), calls, DONE, people=says)
    assert sorted(PAID) == [(1, ""), (2, "")]
    received = {event["tool"] + event["standing"]: event["by"] for event in await run.events("user_input_received")}
    (given,) = await in_force(run)
    assert received == {"pay": "ann", f"pay{given.id}": "ann", "sell": "bob"}


async def test_a_rule_that_denies_outranks_it(run: Run, turn: Job) -> None:
    """S-84: also one of a later version of the agent."""
    rule = ApprovalRule(tool="pay", arguments={"properties": {"amount": {"minimum": 100}}}, decision="deny")
    careful = agent(approvals=ApprovalPolicy(rules=(rule,)))
    ann = Ann(approve(by="ann", always="tool"))
    await turn(agent(), pays(100), DONE, people=ann)
    await turn(careful, pays(100), pays(99), DONE, people=ann)
    assert (len(ann.asked), PAID) == (1, [(100, ""), (99, "")])
    assert "a rule denies this call of pay" in run.read()[-3][1]


async def test_an_agent_without_people_refuses_in_spite_of_it(run: Run, turn: Job) -> None:
    await turn(agent(), pays(1), DONE, people=[approve(always="tool")])
    await turn(agent(interactive="refuse"), pays(2), DONE)
    assert PAID == [(1, "")]


async def test_a_hook_that_takes_the_answer_back_outranks_it(run: Run, turn: Job) -> None:
    """The call was let through and did not run, so the log says nothing of it."""

    @hook("generation_end")
    def strict(event: Any, context: HookContext) -> RetryWithFeedback | None:
        return RetryWithFeedback("not that") if context.step == 2 else None

    ann = Ann(approve(by="ann", always="tool"))
    await turn(agent(hooks=[strict]), pays(1), pays(2), pays(3), DONE, people=ann)
    assert (len(ann.asked), PAID) == (1, [(1, ""), (3, "")])
    assert len(await run.events("user_input_received")) == 2


async def test_another_agents_tool_of_that_name_asks(run: Run, turn: Job) -> None:
    ann = Ann(approve(by="ann", always="tool"), deny(by="ann"))
    await turn(agent(), pays(1), DONE, people=ann)
    await turn(agent(name="other"), pays(2), DONE, people=ann)
    assert (len(ann.asked), PAID) == (2, [(1, "")])


async def test_a_revoked_one_asks_again_and_says_who_revoked_it(run: Run, turn: Job) -> None:
    """S-84: revoking twice is once."""
    ann = Ann(approve(by="ann", always="tool"), deny(by="ann"))
    await turn(agent(), pays(1), DONE, people=ann)
    (given,) = await in_force(run)
    first = await run.store.revoke_standing(run.session, given.id, by="bob")
    assert await run.store.revoke_standing(run.session, given.id, by="eve") == first
    assert (first.revoked_by, first.revoked_at is not None) == ("bob", True)
    assert (await in_force(run), await in_force(run, ended=True)) == ((), (first,))
    await turn(agent(), pays(2), DONE, people=ann)
    assert (len(ann.asked), PAID) == (2, [(1, "")])


async def test_after_its_time_it_asks_again(run: Run, turn: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.now(UTC) + timedelta(days=1)
    ann = Ann(approve(by="ann", always="tool", until=until), deny(by="ann"))
    await turn(agent(), pays(1), pays(2), DONE, people=ann)
    assert ((await in_force(run))[0].until, len(ann.asked)) == (until, 1)

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return until

    monkeypatch.setattr(session_lock, "datetime", Tomorrow)
    await turn(agent(), pays(3), DONE, people=ann)
    assert (len(ann.asked), PAID) == (2, [(1, ""), (2, "")])


async def test_one_that_an_agent_was_given_by_a_reply_to_its_stopped_turn_stands_too(run: Run, turn: Job) -> None:
    stops = agent(interactive="stop")
    await turn(stops, pays(1))
    await turn(stops, pays(2), DONE, prompt="", reply=approve(by="ann", always="tool"))
    assert (PAID, len(await in_force(run))) == ([(1, ""), (2, "")], 1)


async def test_one_for_a_delegate_lets_its_later_calls_through(run: Run, turn: Job) -> None:
    """The delegate's own session has none."""
    helper = Agent(name="helper", model="openai/helper", description="Helps.", tools=[pay])
    lead = agent(tools=[], delegates=[Delegate(helper, requires_approval=True, interactive=True)])
    asks = call(("helper", {"query": "pay"}))
    ann = Ann(approve(by="ann", always="tool"), *(deny(by="ann") for _ in range(2)))
    await turn(lead, asks, asks, DONE, people=ann, models={"helper": Script(replies=(pays(1), DONE))})
    assert [asked.split()[0] for asked in ann.asked] == ["helper", "pay", "pay"]
    assert [given.tool for given in await in_force(run)] == ["helper"]
    standing = [event["standing"] for event in await run.events("user_input_received")]
    assert standing == ["", (await in_force(run))[0].id]


async def test_one_for_a_call_that_the_workflow_carries_out_is_kept_too(run: Run, turn: Job) -> None:
    """Its decision is written with the next answer's beginning, not before the call."""
    approvals = ApprovalPolicy(rules=(ApprovalRule(tool="todo", decision="ask"),))
    plans = agent(tools=[todo], approvals=approvals)
    ann = Ann(approve(by="ann", always="tool"))
    titles = [call(("todo", {"new_titles": [title]})) for title in "ab"]
    await turn(plans, *titles, DONE, people=ann)
    (given,) = await in_force(run)
    assert (len(ann.asked), given.tool) == (1, "todo")
    assert [event["standing"] for event in await run.events("user_input_received")] == ["", given.id]


async def test_one_that_was_given_as_the_turn_ended_is_kept(run: Run, turn: Job) -> None:
    """S-84: the call does not run any more; whoever approved was told that it was approved."""

    def cancel(event: Event, at: RunningTurn) -> None:
        if isinstance(event, UserInputReceived):
            at.cancel("enough")

    await turn(agent(), pays(1), DONE, people=[approve(by="ann", always="tool")], on_event=cancel)
    assert (run.last.result.stop_reason, PAID) == ("cancelled", [])
    assert [given.by for given in await in_force(run)] == ["ann"]
