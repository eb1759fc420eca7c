"""What a session came to, as one value; and conversations from elsewhere with which one begins."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from perdure import Agent, HookRule, Retry, Trajectory, tool
from perdure.cli.main import cli
from perdure.client import RequestRefusedError
from perdure.contracts.messages import MAX_HISTORY_BYTES
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.memory import Run


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing"


AGENT = Agent(name="tester", model="openai/scripted", instructions="Be brief.", tools=[look])

CALL = {"id": "old_1", "type": "function", "function": {"name": "look", "arguments": '{"place": "there"}'}}

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are somebody else."},
    {"role": "user", "content": "look there"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "old_1", "content": "there: a cat"},
    {"role": "assistant", "content": "a cat"},
]

AFTER_HISTORY = Script(replies=(say("?"), say("?"), call(("look", {"place": "here"})), say("nothing"), say("bye")))


async def test_a_trajectory_has_the_messages_in_order_and_counts_usage_once(house: House) -> None:
    """S-54: over two turns, the sum of what the provider reported is what both results say."""
    script = Script(replies=(call(("look", {"place": "a"}), ("look", {"place": "b"})), say("one"), say("two")))
    async with ScriptedProvider(script) as provider, house.worker(AGENT):
        house.use(provider)
        first = await house.run()
        second = await house.run(prompt="again")
    whole = await house.client.trajectory(house.session)
    assert [message.role for message in whole.messages] == [
        *("user", "assistant", "tool", "tool", "assistant", "user", "assistant")
    ]
    used = [result["usage"]["input_tokens"] + result["usage"]["output_tokens"] for result in (first, second)]
    assert whole.usage.total_tokens == sum(used)
    alone = await house.client.trajectory(house.session, turn=2)
    assert (alone.usage.total_tokens, [message.role for message in alone.messages]) == (used[1], ["user", "assistant"])
    assert [envelope.seq for envelope in whole.events] == list(range(1, len(whole.events) + 1))
    assert Trajectory.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert (whole.agent, whole.system_prompt, whole.metadata["stop_reason"]) == ("tester", "Be brief.", "finished")


async def test_a_turn_that_a_rewind_left_behind_still_has_all_that_it_said(house: House) -> None:
    """S-54 S-55 S-67: what came after stays stored, in a trajectory and in an export of each turn."""
    looking = call(("look", {"place": "a"}))
    async with (
        ScriptedProvider(Script(replies=(looking, say("one"), looking, say("two"), say("three")))) as provider,
        house.worker(AGENT),
    ):
        house.use(provider)
        results = [await house.run(), await house.run(prompt="again")]
        resumed = await house.client.resume(house.session, "other", turn=1, at=1)
        results.append((await resumed.result()).model_dump(mode="json"))
    turns = [await house.client.trajectory(house.session, turn=number) for number in (1, 2, 3)]
    whole = ["user", "assistant", "tool", "assistant"]
    assert [[message.role for message in turn.messages] for turn in turns] == [whole, whole, ["user", "assistant"]]
    for turn, result in zip(turns, results, strict=True):
        assert turn.usage.total_tokens == result["usage"]["input_tokens"] + result["usage"]["output_tokens"]
    out = await asyncio.to_thread(CliRunner().invoke, cli, ["export", house.session, "--format", "jsonl"])
    records = [json.loads(line)["messages"] for line in out.stdout.splitlines()]
    assert [[message["role"] for message in messages[1:]] for messages in records] == [
        whole,
        whole,
        ["user", "assistant"],
    ]


async def test_a_fork_counts_its_own_calls_whatever_the_session_before_it_has_said(house: House) -> None:
    """S-54: a step of the same number in the session that it is a fork of is another one."""
    once = HookRule(name="once", on="generation_end", times=1, reaction=Retry())
    taken_back = Agent(name="tester", model="openai/scripted", hooks=[once])
    async with ScriptedProvider(Script(replies=(say("one"),), repeat=True)) as provider, house.worker(taken_back):
        house.use(provider)
        await house.run()
        fork = await house.client.fork(house.session, "and now?", at=1, turn=1)
        result = await fork.result()
    whole, alone = [await house.client.trajectory(fork.session, turn=turn) for turn in (None, 1)]
    own = [step for step in whole.steps if not step.session]
    assert {step.session for step in whole.steps} == {"", house.session}
    assert alone.usage == result.usage
    of_origin = sum(step.usage.total_tokens for step in whole.steps if step.session)
    assert own
    assert whole.usage.total_tokens - of_origin == alone.usage.total_tokens


async def test_a_session_may_begin_with_a_conversation_from_elsewhere(house: House) -> None:
    """The model reads it, the agent's own instructions in front; the transcript has it, and its calls are answered."""
    async with ScriptedProvider(AFTER_HISTORY) as provider, house.worker(AGENT):
        house.use(provider)
        turn = await house.client.start("tester", "and here?", session=house.session, history=HISTORY)
        assert (await turn.result()).output == "nothing"
        read = provider.requests[0].request.messages
        assert [message.get("content") for message in read] == [
            *("Be brief.", "look there", None, "there: a cat", "a cat", "and here?")
        ]
        again = await house.client.send(house.session, "thanks")
        assert (await again.result()).output == "bye"
    exported = (await house.client.trajectory(house.session)).to_openai()
    assert exported[1:6] == [*HISTORY[1:], {"role": "user", "content": "and here?"}]


async def test_what_a_session_said_can_begin_another_one(house: House) -> None:
    """S-55: out of one session and into the next, and nothing is lost on the way."""
    async with ScriptedProvider(AFTER_HISTORY) as provider, house.worker(AGENT):
        house.use(provider)
        turn = await house.client.start("tester", "and here?", session=house.session, history=HISTORY)
        await turn.result()
        said = (await house.client.trajectory(house.session)).to_openai()
        other = await house.client.start("tester", "thanks", session=house.session + "-b", history=said)
        assert (await other.result()).output == "bye"
    assert (await house.client.trajectory(house.session + "-b")).to_openai()[: len(said)] == said


async def test_a_conversation_cannot_begin_a_session_that_has_begun(run: Run) -> None:
    await run(AGENT, script=Script(replies=(say("hi"),), repeat=True))
    result = await run(AGENT, script=Script(replies=(say("hi"),), repeat=True), history=HISTORY)
    assert result["reason_code"] == "request.invalid"
    assert result["error"].endswith("has begun already; a history begins a new one, so name no session")


@pytest.mark.parametrize(
    ("history", "cause"),
    [
        (HISTORY[:3], "history: the conversation ends before call 'old_1' has its result"),
        (HISTORY[3:], "history: message 1: it is the result of call 'old_1', which no message before it asks for"),
        ([{"role": "user", "content": "x" * MAX_HISTORY_BYTES}], "the limit is 1,048,576"),
    ],
)
async def test_a_conversation_that_cannot_go_on_is_refused_before_it_is_sent(
    house: House, history: list[dict[str, Any]], cause: str
) -> None:
    with pytest.raises(RequestRefusedError, match=cause):
        await house.client.start("tester", "go", history=history)


def test_the_command_line_refuses_a_file_that_holds_no_conversation(house: House) -> None:
    path = house.folder / "history.json"
    for text, cause in (
        ("{", "it is no JSON"),
        ("{}", "it holds no conversation; write a list of OpenAI chat messages"),
        (json.dumps(HISTORY[:3]), "the conversation ends before call 'old_1' has its result"),
        ('{"steps": 1}', "it is no trajectory: steps: "),
    ):
        path.write_text(text, encoding="utf-8")
        ended = CliRunner().invoke(cli, ["run", "tester", "go", "--history", str(path)])
        assert ended.exit_code == 2, ended.output
        assert cause in ended.stderr
        assert ended.stderr.count("\n") == 1


async def test_what_was_said_elsewhere_is_no_answer_of_the_turn(run: Run) -> None:
    """The turn's one answer is taken back, so that the conversation ends with its prompt."""
    hook = HookRule(name="no", on=("generation_end",), reaction=Retry())
    agent = Agent(name="tester", model="openai/scripted", hooks=[hook], max_steps=1)
    result = await run(agent, *(say("?"),) * 2, say("taken back"), history=HISTORY)
    assert (result["stop_reason"], result["output"]) == ("max_steps_reached", "")


async def test_label_and_tags_are_in_the_metadata_of_exports(house: House) -> None:
    """S-54: of an agent that has them; they change nothing else."""
    using = Agent(name="tester", model="openai/scripted", label="The Tester", tags=["agent", "tests"])
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(using):
        house.use(provider)
        assert (await house.run())["output"] == "done"
    about = (await house.client.trajectory(house.session)).metadata
    assert (about["label"], about["tags"]) == ("The Tester", ["agent", "tests"])
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["agents"])
    assert "tester (The Tester) · openai/scripted" in shown.output
    assert "tags: agent, tests" in shown.output
    (line,) = (await asyncio.to_thread(CliRunner().invoke, cli, ["agents", "--json"])).output.splitlines()
    assert (json.loads(line)["label"], json.loads(line)["tags"]) == ("The Tester", ["agent", "tests"])
