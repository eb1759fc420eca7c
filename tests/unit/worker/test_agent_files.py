"""Agents from YAML and JSON files: all that Python can say, and the line of what is wrong."""

import json
import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import HttpServerConfig, StdioServerConfig
from perdure.contracts.budgets import Budgets
from perdure.worker.agents import AgentLoadError, load, load_agents

TOOLS = """
from perdure import Agent, Toolset, hook, tool, tool_method

@tool
def look(place: str) -> str:
    "Look at a place."
    return place

def plain(text: str) -> str:
    "A function."
    return text

class Notes(Toolset):
    name: str = "notes"

    @tool_method
    def add(self, text: str) -> str:
        "Add a note."
        return text

@hook("tool_end")
def seen(event):
    return None

notes = Notes()
x = 1
"""

WHOLE = """
agents:
  - name: scout
    description: Looks around
    model: openai/gpt-5-mini
    instructions:
      - You look around.
      - Be quick.
    tools: [look, MODULE:plain, MODULE:notes]
    mcp_servers:
      - name: time
        command: uvx
        args: [mcp-server-time]
        call_timeout: 20
      - name: far
        url: https://example.com/mcp
        headers: {Authorization: "Bearer ${FAR_TOKEN}"}
        oauth: {client_id: "${FAR_ID}", client_secret: "${FAR_SECRET}"}
    max_steps: 12
    generation_timeout: 90
    generate_params: {temperature: 0.2}
    retry: {max_retries: 2, max_time: null}
    on_tool_error: feed_back
    on_unknown_tool: abort
    budgets: {cost_usd: 0.50, seconds: 3600}
    stop_conditions:
      - {type: step_count, count: 5}
    fallback_models:
      - anthropic/claude-x
      - {model: openai/other, retry: {max_retries: 1}}
    approvals:
      rules:
        - {tool: look, decision: ask}
    cache: off
    hooks:
      - {name: enough, on: tool_error, reaction: {type: finish, reason: enough}}
      - MODULE:seen
    delegates:
      - helper
      - {agent: other, description: Knows more}
  - name: helper
    model: openai/gpt-5-mini
  - name: other
    model: openai/gpt-5-mini
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """The name of a module with tools, beside the file."""
    name = f"module_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(TOOLS)
    return name


def written(folder: Path, text: str, name: str = "agents.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_describes_agents_with_all_that_python_can_say(tmp_path: Path, module: str) -> None:
    file = written(tmp_path, WHOLE.replace("MODULE", module))
    agents = load_agents([file, str(tmp_path / f"{module}.py")])
    scout = agents["scout"]
    assert sorted(agents) == ["helper", "other", "scout"]
    assert [delegate.name for delegate in scout.delegates] == ["helper", "other"]
    assert [type(hook).__name__ for hook in scout.hooks] == ["HookRule", "Hook"]
    assert scout.instructions == "You look around.\n\nBe quick."
    assert [tool.name for tool in scout.tools] == ["look", "plain", "notes__add"]
    assert [type(server) for server in scout.mcp_servers] == [StdioServerConfig, HttpServerConfig]
    far = scout.mcp_servers[1]
    assert isinstance(far, HttpServerConfig)
    assert far.oauth is not None
    assert far.oauth.client_secret == "${FAR_SECRET}"
    assert scout.generation_timeout == timedelta(seconds=90)
    assert (scout.retry.max_retries, scout.retry.max_time) == (2, None)
    assert scout.budgets == Budgets.model_validate({"cost_usd": "0.5", "seconds": 3600})
    assert [fallback.model for fallback in scout.fallback_models] == ["anthropic/claude-x", "openai/other"]
    assert scout.cache == "off"
    assert (scout.on_tool_error, scout.on_unknown_tool) == ("feed_back", "abort")
    assert scout.definition.policy().on_unknown_tool == "abort"


def test_json_is_read_like_yaml(tmp_path: Path) -> None:
    """Also with tabs, and with a character that JSON writes in two halves."""
    text = json.dumps({"name": "one", "model": "openai/x", "instructions": "Say 😀"}, indent="\t")
    file = written(tmp_path, text, "agents.json")
    assert load_agents([file])["one"].instructions == "Say 😀"


def test_skills_are_folders_beside_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "knots"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: knots\ndescription: Tie knots\n---\nLeft over right.\n")
    file = written(tmp_path, "name: one\nmodel: openai/x\nskills: [skills]\n")
    assert [skill.name for skill in load_agents([file])["one"].skills] == ["knots"]


HEAD = "name: one\nmodel: openai/x\n"
OAUTH = HEAD + "mcp_servers:\n  - name: a\n    url: https://host/mcp\n    oauth:\n      client_id: us\n"
RULE = HEAD + "hooks:\n  - name: x\n    on: tool_end\n"
WHEN = "    reaction: {{type: finish}}\n    when:\n      type: all_of\n      conditions:\n        - {}\n"


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("", 0, "it is empty"),
        ("name: one\n", 1, "agent 'one': model: Field required"),
        ("name: one\nmodel: gpt\n", 2, "model: write it as provider/model"),
        (HEAD + "max_steps: 0\n", 3, "max_steps: Input should be greater than or equal to 1 (got 0)"),
        (HEAD + "retry:\n  max_time: 3\n  max_retries: -1\n", 5, "retry.max_retries: Input should be greater"),
        (HEAD + "retry:\n  max_retry: 1\n", 3, "RetryPolicy has no field max_retry"),
        (HEAD + "model_name: x\n", 3, "model_name: there is no such setting; the settings are name, model"),
        (HEAD + "compaction: {keep: 3}\ncompaction: {}\n", 4, "compaction stands there twice"),
        (HEAD + "tools: look\n", 3, "tools: write a list"),
        (HEAD + "tools:\n  - look\n", 4, "tools.0: this worker has no tool 'look'; it has: none"),
        (HEAD + "tools:\n  - json:no_such\n", 4, "tools.0: module 'json' has no 'no_such'"),
        (HEAD + "tools:\n  - no_such_module:x\n", 4, "tools.0: module 'no_such_module' cannot be found"),
        (HEAD + "tools:\n  - {}\n", 4, "tools.0: write 'module:name'"),
        (HEAD + "mcp_servers:\n  - name: a\n    comand: x\n", 4, "an object with 'name' and 'command' or 'url'"),
        (HEAD + "mcp_servers:\n  - name: a\n    command: x\n    arg: [y]\n", 6, "arg: there is no such field"),
        (HEAD + "mcp_servers:\n  - name: a\n    url: nowhere\n", 4, "url 'nowhere' is none"),
        (OAUTH + "      client_secret: plain text\n", 8, "client_secret may not be written out"),
        (OAUTH + "      client_key: x\n", 8, "client_key: Extra inputs are not permitted"),
        (HEAD + "mcp_servers: [time]\n", 3, "this worker has no MCP server 'time'"),
        (HEAD + "skills: [no_such]\n", 3, "skills.0: the folder"),
        (HEAD + "stop_conditions:\n  - {type: step_count, count: 3, cout: 4}\n", 4, "cout"),
        (HEAD + "hooks: [nothing]\n", 3, "hooks.0: write 'module:name' of a hook"),
        (HEAD + "hooks:\n  - {name: x, on: tool_end}\n", 4, "hooks.0: reaction: Field required"),
        (
            HEAD + "hooks:\n  - name: x\n    on: tool_end\n    reaction: {type: continue}\n    time: 1\n",
            7,
            "no field 'time'",
        ),
        (HEAD + "hooks:\n  - x\n  - json:dumps\n", 4, "hooks.0: write 'module:name' of a hook"),
        (HEAD + "hooks:\n  - json:dumps\n", 4, "hooks.0: json:dumps is no hook; decorate the function"),
        (RULE + "    reaction: finish\n", 6, "hooks.0: reaction: write an object with its 'type'"),
        (RULE + "    reaction:\n      reason: x\n", 6, "hooks.0: reaction: write its 'type'"),
        (
            RULE + "    reaction:\n      type: finnish\n",
            6,
            "reaction: there is no type 'finnish'; the types are 'finish'",
        ),
        (RULE + "    reaction:\n      type: finish\n      x: 1\n", 8, "reaction.x: there is no such field"),
        (RULE + "    reaction:\n      type: retry_with_feedback\n", 6, "reaction.feedback: Field required"),
        (RULE + WHEN.format("{type: tool_use, count: 0}"), 10, "when.conditions.0.tool: Field required"),
        (RULE + WHEN.format("{type: step_count, count: 0}"), 10, "when.conditions.0.count: Input should be greater"),
        (RULE.replace("tool_end", "agent_end"), 5, "hooks.0: on: Input should be 'agent_start'"),
        (
            HEAD + "stop_conditions:\n  - type: not\n    condition:\n      type: step_count\n      count: 0\n",
            7,
            "count",
        ),
        (HEAD + "delegates:\n  - {agent: x, descripton: y}\n", 4, "there is no field 'descripton'"),
        (HEAD + "delegates: [[]]\n", 3, "delegates.0: write the name of an agent"),
        (HEAD + "delegates: [nobody]\n", -1, "agent 'one' has the delegate 'nobody'"),
        (HEAD + "  bad: x\n", 3, "mapping values are not allowed here"),
        ("- 1\n", 1, "an agent is an object"),
        ("agents: {}\n", 1, "agents: write a list of agents"),
        ("agents:\n  - 1\n", 2, "an agent is an object"),
        ("agents:\n  - name: one\n    model: openai/x\nname: two\n", 4, "name: beside 'agents' nothing may stand"),
        ("agents:\n  - name: one\n    model: openai/x\n  - name: two\n    model: x\n", 5, "agent 'two': model: write"),
    ],
)
def test_a_mistake_names_file_line_and_field(tmp_path: Path, text: str, line: int, cause: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(AgentLoadError) as refusal:
        load_agents([file])
    place = {0: f"{file}: ", -1: ""}.get(line, f"{file}:{line}: ")
    assert str(refusal.value).startswith(place)
    assert cause in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_mistake_in_json_has_its_line_too(tmp_path: Path) -> None:
    file = written(tmp_path, '{\n  "name": "one",\n  "model": "openai/x",\n  "max_steps": "many"\n}', "a.json")
    with pytest.raises(AgentLoadError, match=r"a\.json:4: agent 'one': max_steps"):
        load_agents([file])
    with pytest.raises(AgentLoadError, match=r"b\.json:2: it is no JSON"):
        load_agents([written(tmp_path, "{\n name: 1}", "b.json")])
    with pytest.raises(AgentLoadError, match=r"none\.json: it cannot be read: No such file"):
        load_agents([str(tmp_path / "none.json")])


def test_a_secret_in_a_server_that_cannot_be_used_is_not_shown(tmp_path: Path) -> None:
    text = HEAD + "mcp_servers:\n  - name: a\n    url: https://me:s3cretpass@host/\n"
    with pytest.raises(AgentLoadError) as refusal:
        load_agents([written(tmp_path, text)])
    assert "s3cretpass" not in str(refusal.value)


def test_a_module_that_has_only_tools_may_stand_beside_a_file(tmp_path: Path, module: str) -> None:
    """Its tools are registered; without a file there is still no agent."""
    with pytest.raises(AgentLoadError, match="no agents"):
        load_agents([str(tmp_path / f"{module}.py")])
    file = written(tmp_path, HEAD + "tools: [notes__add]\n")
    loaded = load([str(tmp_path / f"{module}.py"), file])
    assert [tool.name for tool in loaded.agents["one"].tools] == ["notes__add"]
    assert loaded.registered.tool("look").name == "look"


def test_two_agents_of_one_name_in_files_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path, HEAD, name) for name in ("a.yaml", "b.yml")]
    with pytest.raises(AgentLoadError, match="two agents are named 'one'"):
        load_agents(files)


def test_only_what_looks_like_json_is_no_text(tmp_path: Path) -> None:
    """``off``, a date and a time are texts, as their author meant them."""
    file = written(tmp_path, "name: one\nmodel: openai/x\ndescription: 2020-01-01\ninstructions: off\n")
    agent = load_agents([file])["one"]
    assert (agent.description, agent.instructions) == ("2020-01-01", "off")


LAUGHS = "a: &a [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("last", ["generate_params: {stop: *i}", "generate_params: {<<: [*m, *m]}"])
def test_aliases_that_repeat_one_another_end_with_a_line(tmp_path: Path, last: str) -> None:
    """A billion laughs in half a kilobyte: no value is made of them."""
    text = f"{LAUGHS}m: &m {{x: *h}}\n{HEAD}{last}\n"
    with pytest.raises(AgentLoadError) as refusal:
        load_agents([written(tmp_path, text)])
    assert str(refusal.value).endswith(
        ":6: its aliases, such as *name, repeat more than 1,000,000 characters; write fewer of them"
    )


def test_aliases_that_repeat_a_little_are_what_they_are_for(tmp_path: Path) -> None:
    text = "agents:\n  - &one {name: one, model: openai/x, instructions: &text '" + "x" * 40_000 + "'}\n"
    text += "".join(f"  - {{<<: *one, name: two{number}, instructions: [*text, y]}}\n" for number in range(10))
    assert len(load_agents([written(tmp_path, text)])) == 11
