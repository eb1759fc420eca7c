"""Agents as data: from a file, and whole in a start request where the worker allows it."""

from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, StdioServerConfig, tool
from perdure.client import RequestRefusedError
from perdure.contracts.turns import MAX_DEFINITION_BYTES
from perdure.testing import Script, ScriptedProvider, call, say
from perdure.worker.agents import load
from tests.house import House

pytestmark = pytest.mark.deep


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing"


@tool(requires_approval=True)
def burn(place: str) -> str:
    """Burn a place down."""
    return f"{place}: ashes"


OWN = Agent(name="tester", model="openai/scripted", tools=[look, burn])

SCOUT: dict[str, Any] = {"name": "scout", "model": "openai/scripted", "instructions": "Be quick.", "tools": ["look"]}

LOOKING = Script(replies=(call(("look", {"place": "here"})), say("nothing here"), say("still nothing")))

FILE = """
name: scout
model: openai/scripted
tools: [look_module:look]
max_steps: 3
"""


async def test_an_agent_from_a_file_runs_like_one_from_python(house: House, tmp_path: Path) -> None:
    (tmp_path / "look_module.py").write_text(
        "def look(place: str) -> str:\n    'Look.'\n    return place.upper()\n", encoding="utf-8"
    )
    file = tmp_path / "agents.yaml"
    file.write_text(FILE, encoding="utf-8")
    agents = load([str(file)]).agents
    async with ScriptedProvider(LOOKING) as provider, house.worker(*agents.values()):
        house.use(provider)
        result = await house.run("scout")
        assert provider.requests[-1].request.messages[-1]["content"] == "HERE"
    assert (result["stop_reason"], result["output"]) == ("finished", "nothing here")


async def test_a_worker_process_takes_a_file_with_a_module_beside_it(house: House) -> None:
    """The command line, whole: ``python -m perdure.worker --agents agents.yaml``, and an agent in a request."""
    (house.folder / "file_tools.py").write_text(
        "from perdure import tool\n@tool\ndef look(place: str) -> str:\n    'Look.'\n    return place.upper()\n",
        encoding="utf-8",
    )
    file = house.folder / "agents.yaml"
    file.write_text(FILE.replace("look_module", "file_tools"), encoding="utf-8")
    async with ScriptedProvider(LOOKING) as provider:
        house.use(provider)
        await house.spawn_worker(str(file), PERDURE_ALLOW_INLINE_AGENTS="1").polling()
        assert (await house.run("scout"))["output"] == "nothing here"
        house.session += "-inline"
        result = await house.run(agent=None, definition={**SCOUT, "name": "other"})
    assert (result["agent"], result["output"]) == ("other", "nothing here")


async def test_a_start_request_may_bring_its_agent_where_the_worker_allows_it(house: House) -> None:
    """The tool is the worker's; the agent's later turns keep it, and a reply of the client needs no definition."""
    async with ScriptedProvider(LOOKING) as provider, house.worker(OWN, inline=True):
        house.use(provider)
        result = await house.run(agent=None, definition=SCOUT)
        assert (result["agent"], result["stop_reason"], result["output"]) == ("scout", "finished", "nothing here")
        first, second = provider.requests
        assert first.request.system == "Be quick."
        assert second.request.messages[-1]["content"] == "here: nothing"
        turn = await house.client.send(house.session, "look again")
        again = await turn.result()
        assert (again.turn, again.agent, again.output) == (2, "scout", "still nothing")
        assert provider.requests[-1].request.system == "Be quick."
    frozen = await house.store.definition((await house.store.turn(house.session, 2)).definition)
    assert frozen.inline == SCOUT


async def test_an_agent_of_a_request_may_have_hook_rules(house: House) -> None:
    """S-36: they are data; a function, in a request, is refused with the field."""
    rule = {"name": "once", "on": "tool_end", "tool": "look", "reaction": {"type": "finish", "reason": "seen"}}
    async with ScriptedProvider(LOOKING) as provider, house.worker(OWN, inline=True):
        house.use(provider)
        result = await house.run(agent=None, definition={**SCOUT, "hooks": [rule]})
        house.session += "-function"
        refused = await house.run(agent=None, definition={**SCOUT, "hooks": ["os:system"]})
        house.session += "-reaction"
        wrong = await house.run(agent=None, definition={**SCOUT, "hooks": [{**rule, "reaction": {"type": "end"}}]})
    assert (result["stop_reason"], result["stopped_by"], result["steps"]) == ("finished", "once: seen", 1)
    assert refused["error"].startswith("definition: agent 'scout': hooks.0: a hook of a request is a rule")
    assert "hooks.0: reaction: there is no type 'end'; the types are 'finish'" in wrong["error"]


async def test_a_fork_of_a_turn_of_such_an_agent_has_that_agent(house: House) -> None:
    """S-67: also where another agent went on with the session."""
    async with ScriptedProvider(LOOKING) as provider, house.worker(OWN, inline=True):
        house.use(provider)
        await house.run(agent=None, definition=SCOUT)
        await house.run("tester")
        forked = await house.client.fork(house.session, "again", turn=1)
        assert (await forked.result()).agent == "scout"
        assert provider.requests[-1].request.system == "Be quick."


async def test_a_property_may_be_called_pattern(house: House) -> None:
    async with (
        ScriptedProvider(Script(replies=(say('{"pattern": "a*"}'),))) as provider,
        house.worker(OWN, inline=True),
    ):
        house.use(provider)
        schema = {"properties": {"pattern": {"type": "string"}}, "required": ["pattern"]}
        result = await house.run(agent=None, definition={**SCOUT, "output_schema": schema})
    assert result["value"] == {"pattern": "a*"}


async def test_the_client_takes_a_definition(house: House) -> None:
    async with ScriptedProvider(LOOKING) as provider, house.worker(OWN, inline=True):
        house.use(provider)
        bare = {name: value for name, value in SCOUT.items() if name != "name"}
        turn = await house.client.start("scout", "go", session=house.session, definition=bare)
        assert (await turn.result()).output == "nothing here"


async def test_a_worker_that_does_not_allow_it_says_so_in_one_line(house: House) -> None:
    async with house.worker(OWN):
        result = await house.run(agent=None, definition=SCOUT)
    assert (result["stop_reason"], result["reason_code"], result["turn"]) == ("error", "request.invalid", None)
    assert result["error"] == (
        "definition: this worker takes no agents from start requests; start one that it has by its name, "
        "or set PERDURE_ALLOW_INLINE_AGENTS=1 for the worker"
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown tool": ({"tools": ["dig"]}, "tools.0: this worker has no tool 'dig'; it has: burn, look"),
    "code": ({"tools": ["os:system"]}, "tools.0: this worker has no tool 'os:system'"),
    "a server": ({"mcp_servers": [{"name": "x", "command": "sh"}]}, "mcp_servers.0: write the name of an MCP server"),
    "an unknown server": ({"mcp_servers": ["x"]}, "this worker has no MCP server 'x'; it has: files"),
    "skills": ({"skills": ["/etc"]}, "skills.0: skills are read from folders of the worker"),
    "an address": ({"generate_params": {"api_base": "http://evil"}}, "generate_params: api_base may not come"),
    "an address of a fallback": (
        {"fallback_models": [{"model": "openai/x", "generate_params": {"base_url": "http://evil"}}]},
        "fallback_models: base_url may not come",
    ),
    "an expression of JavaScript's": (
        {"output_schema": {"type": "string", "pattern": "(?<name>a)"}},
        "output_schema: pattern '(?<name>a)' is no regular expression",
    ),
    "a long expression behind a reference": (
        {"output_schema": {"$ref": "#/enum/0", "enum": [{"patternProperties": {"a" * 1_001: False}}]}},
        "has 1,001 characters, the limit is 1,000",
    ),
    "an expression that cannot be read": (
        {"output_schema": {"pattern": "a{99999999999999}"}},
        "has repeats {…} that come to more than 2,000 parts",
    ),
    "an expression of a rule": (
        {"approvals": {"rules": [{"tool": "l*", "decision": "ask", "arguments": {"items": {"pattern": "("}}}]}},
        "approvals: pattern '(' is no regular expression",
    ),
    "an address as a model": ({"model": "huggingface/https://evil/x"}, "names an address"),
    "the worker's name": ({"name": "tester"}, "this worker has an agent of that name"),
    "a waiver": (
        {"tools": ["burn"], "approvals": {"rules": [{"tool": "b*", "decision": "allow"}]}},
        "approvals: burn asks for an approval by itself, which a request may not waive",
    ),
    "a misspelt field": ({"max_step": 3}, "max_step: there is no such setting"),
    "a misspelt part": ({"retry": {"max_retry": 3}}, "RetryPolicy has no field max_retry"),
    "a bad value": ({"max_steps": 0}, "max_steps: Input should be greater than or equal to 1"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_definition_that_cannot_be_used_is_refused_with_the_field(house: House, name: str) -> None:
    changes, cause = BAD[name]
    own = OWN.clone(mcp_servers=[StdioServerConfig(name="files", command="no-such-command")])
    async with house.worker(own, inline=True):
        result = await house.run(agent=None, definition={**SCOUT, **changes})
    assert result["reason_code"] == "request.invalid"
    assert result["error"].startswith("definition: agent ")
    assert cause in result["error"]


async def test_a_name_beside_the_definition_has_to_be_its_own(house: House) -> None:
    async with house.worker(OWN, inline=True):
        result = await house.run("tester", definition=SCOUT)
    assert result["error"] == "definition: it is of 'scout', and agent says 'tester'; leave agent out"


async def test_a_definition_that_is_too_large_is_refused_before_it_is_sent(house: House) -> None:
    large = {**SCOUT, "instructions": "x" * MAX_DEFINITION_BYTES}
    with pytest.raises(RequestRefusedError, match=r"definition: .*the limit is 131,072"):
        await house.client.start("scout", "go", definition=large)


async def test_tools_of_a_request_keep_asking_for_their_approval(house: House) -> None:
    script = Script(replies=(call(("burn", {"place": "here"})), say("done")))
    own = OWN.clone(approvals=ApprovalPolicy(rules=(ApprovalRule(tool="burn", decision="allow"),)))
    async with ScriptedProvider(script) as provider, house.worker(own, inline=True):
        house.use(provider)
        definition = {**SCOUT, "tools": ["burn"], "interactive": "stop"}
        result = await house.run(agent=None, definition=definition)
    assert (result["stop_reason"], result["requests"][0]["tool"]) == ("waiting_for_input", "burn")
