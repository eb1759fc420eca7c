"""One scripted turn for each way in which delegates can end."""

from perdure import stop
from perdure.testing import Reply, call, faults, say
from tests.house import House, eventually
from tests.workflow.boundaries import Scenario
from tests.workflow.boundaries_table import DONE, HANGS, WORK, cancel, end_its_time
from tests.workflow.delegating import asks

REFUSED = say("no").after(faults.bad_key())
SPAWN = call(("spawn_agent", {"task": "spawned/one"}))
CLONED = '= {"name": "spawn_agent", "task": "spawned/one", "steps": 1, "tokens": 10100, "result": "found"}'
AWAIT, ASK = call(("await_delegate", {})), call(("ask_user", {"question": "Well?"}))
BEGUN = ("helper()", "= works in the background")
WORKED_OUT = 'deep({"query": "delegates of delegates/one/two"}):\ndeep\n\n[stopped by tool_use(tool=\'deep\')]'
STOPPED_BY_IT = {"stop_conditions": [stop.tool_use("middle").named("middle").model_dump(mode="json")]}


async def cancel_the_delegate(house: House, session: str) -> None:
    ((delegate, _),) = await house.store.sessions(caller=session)
    await cancel(house, delegate.session)


async def terminate_the_delegate(house: House, session: str) -> None:
    ((delegate, _),) = await house.store.sessions(caller=session)
    await house.temporal.get_workflow_handle(delegate.session).terminate()


async def answer_its_question(house: House, session: str) -> None:
    handle = house.temporal.get_workflow_handle(session)

    async def asks() -> bool:
        return bool((await handle.query("status"))["requests"])

    await eventually(asks)
    (request,) = (await handle.query("status"))["requests"]
    await handle.execute_update("answer", {"request": request["request_id"], "value": "go on"})


def begins(query: str) -> Reply:
    """An answer that has the helper work on the query in the background."""
    return call(("helper", {"query": query, "run_in_background": True}))


DELEGATES = {
    "delegate finished": Scenario(
        (asks("delegate finished/one"), DONE),
        *("finished", ("helper()", "= helped", "done")),
        helpers={"one": (WORK, say("helped"))},
        delegated=2,
        children=("finished",),
    ),
    "delegate failed": Scenario(
        (asks("delegate failed/one"), DONE),
        *("finished", ("helper()", "! tool.delegate_failed", "done")),
        helpers={"one": (WORK, REFUSED)},
        delegated=1,
        children=("error",),
    ),
    "delegate failed and propagated": Scenario(
        (asks("delegate failed and propagated/one"),),
        *("error: tool.delegate_failed", ("helper()", "! tool.delegate_failed")),
        agent="propagating",
        helpers={"one": (WORK, REFUSED)},
        delegated=1,
        children=("error",),
    ),
    "delegate with max_steps": Scenario(
        (asks("delegate with max_steps/one", tool="one-step"), DONE),
        *("finished", ("one-step()", "! tool.delegate_failed", "done")),
        helpers={"one": (WORK,)},
        delegated=1,
        children=("max_steps_reached",),
    ),
    "delegate with a budget": Scenario(
        (asks("delegate with a budget/one", tool="one-call"), DONE),
        *("finished", ("one-call()", "! tool.delegate_failed", "done")),
        helpers={"one": (WORK,)},
        delegated=1,
        children=("budget_exhausted",),
    ),
    "delegate with a share": Scenario(
        (asks("delegate with a share/one"),),
        *("budget_exhausted: budget.llm_calls_exhausted", ("helper()", "! tool.delegate_failed")),
        request={"budgets": {"llm_calls": 3}},
        helpers={"one": (WORK, WORK)},
        delegated=2,
        children=("budget_exhausted",),
    ),
    "delegate cancelled": Scenario(
        (asks("delegate cancelled/one"), DONE),
        *("finished", ("helper()", "! tool.cancelled", "done")),
        helpers={"one": (WORK, HANGS)},
        acts=cancel_the_delegate,
        delegated=1,
        children=("cancelled",),
    ),
    "delegate cancelled with its caller": Scenario(
        (asks("delegate cancelled with its caller/one"),),
        *("cancelled: runtime.aborted", ("helper()", "! tool.cancelled")),
        helpers={"one": (WORK, HANGS)},
        acts=cancel,
        delegated=1,
        children=("cancelled",),
    ),
    "delegate terminated": Scenario(
        (asks("delegate terminated/one"), DONE),
        *("finished", ("helper()", "! tool.delegate_failed", "done")),
        helpers={"one": (WORK, HANGS)},
        acts=terminate_the_delegate,
        delegated=1,
        children=("error",),
    ),
    "delegate out of time": Scenario(
        (asks("delegate out of time/one"),),
        *("budget_exhausted: budget.seconds_exhausted", ("helper()", "! tool.cancelled")),
        request={"budgets": {"seconds": 86_400}},
        helpers={"one": (WORK, HANGS)},
        acts=end_its_time,
        delegated=1,
        children=("cancelled",),
    ),
    "delegates at the same time": Scenario(
        (asks("delegates at the same time/one", "delegates at the same time/two"), DONE),
        *("finished", ("helper() helper()", "= first", "= second", "done")),
        helpers={"one": (say("first"),), "two": (say("second"),)},
        together=(1, 2, 2),
        delegated=2,
        children=("finished", "finished"),
    ),
    "delegates of delegates": Scenario(
        (asks("delegates of delegates/one", tool="middle"),),
        *("finished by middle", ("middle()", "= " + WORKED_OUT)),
        request=STOPPED_BY_IT,
        helpers={"one": (asks("delegates of delegates/one/two", tool="deep"),), "one/two": (say("deep"),)},
        delegated=2,
        children=("finished",),
    ),
    "delegates of delegates and propagated": Scenario(
        (asks("delegates of delegates and propagated/one", tool="failing"),),
        *("error: tool.delegate_failed", ("failing()", "! tool.delegate_failed")),
        agent="propagating",
        helpers={"one": (asks("delegates of delegates and propagated/one/two", tool="deep"),), "one/two": (REFUSED,)},
        delegated=1,
        children=("error",),
    ),
    "background awaited": Scenario(
        (begins("background awaited/one"), AWAIT, DONE),
        *("finished", (*BEGUN, "await_delegate()", "= helped", "done")),
        agent="beside",
        helpers={"one": (WORK, say("helped"))},
        together=(1, 2),
        delegated=2,
        children=("finished",),
    ),
    "background failed": Scenario(
        (begins("background failed/one"), AWAIT, DONE),
        *("finished", (*BEGUN, "await_delegate()", "! tool.delegate_failed", "done")),
        agent="beside",
        helpers={"one": (WORK, REFUSED)},
        together=(1, 2),
        delegated=1,
        children=("error",),
    ),
    "background with nobody waiting": Scenario(
        (begins("background with nobody waiting/one"), ASK, DONE),
        *("finished", (*BEGUN, "ask_user()", "= go on", "done")),
        agent="beside",
        helpers={"one": (HANGS,)},
        acts=answer_its_question,
        together=(1, 2),
        delegated=0,
        children=("cancelled",),
    ),
    "spawned": Scenario(
        (SPAWN, DONE),
        *("finished", ("spawn_agent()", CLONED, "done")),
        agent="spawning",
        helpers={"one": (say("found"),)},
        delegated=1,
        children=("finished",),
    ),
}
