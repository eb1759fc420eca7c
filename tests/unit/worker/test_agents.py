"""Loading agents: a module that cannot be used says so in one line, before anything polls."""

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from perdure.worker.agents import AgentLoadError, load_agents

GOOD = "from perdure import Agent\nagent = Agent(name='{name}', model='openai/x')\n"


def written(folder: Path, text: str) -> str:
    """A module of its own name, by path."""
    path = folder / f"module_{uuid.uuid4().hex}.py"
    path.write_text(text)
    return str(path)


def test_agents_at_top_level_are_loaded_by_name(tmp_path: Path) -> None:
    first, two = written(tmp_path, GOOD.format(name="one")), written(tmp_path, GOOD.format(name="two"))
    assert sorted(load_agents([first, two])) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import no_such_library", "which needs 'no_such_library' cannot be found"),
        ("x = = 1", "does not import: SyntaxError"),
        ("1 / 0", "does not import: ZeroDivisionError: division by zero"),
        ("x = 1", "has no Agent at top level; write"),
        (
            "from perdure import tool\n@tool\ndef bare(text): ...",
            "ToolDefinitionError: tool 'bare': parameter 'text' has no annotation",
        ),
        ("from perdure import Agent\nAgent(name='x', model='openai/x', max_steps=-1)", "max_steps"),
    ],
)
def test_a_module_that_cannot_be_used_names_cause_and_fix_in_one_line(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(AgentLoadError) as refusal:
        load_agents([written(tmp_path, text)])
    assert cause in str(refusal.value)
    assert "\n" not in str(refusal.value)


LISTED = "from perdure import Agent\nagents = {0}Agent(name='a-1', model='openai/x'){1}\n"


@pytest.mark.parametrize("around", [("[", "]"), ("(", ",)"), ("{'a': ", "}")])
@pytest.mark.parametrize("before", ["", GOOD.format(name="one")])
def test_an_agent_that_stands_in_a_list_only_is_refused(tmp_path: Path, around: tuple[str, str], before: str) -> None:
    with pytest.raises(AgentLoadError, match=r"has agent 'a-1' only inside of 'agents', .*such as 'a_1 = Agent\(…\)'$"):
        load_agents([written(tmp_path, before + LISTED.format(*around))])


def test_lists_of_agents_that_are_loaded_are_the_authors(tmp_path: Path) -> None:
    """Of top level, of delegates, and of another module."""
    team = "from perdure import Agent\nhelpers = [Agent(name='help', model='openai/x')]\n"
    team += "lead = Agent(name='lead', model='openai/x', delegates=helpers)\nteam = [lead, *helpers]\n"
    first = written(tmp_path, team)
    second = written(tmp_path, f"from {Path(first).stem} import team as ours\n{GOOD.format(name='own')}")
    assert sorted(load_agents([first, second])) == ["help", "lead", "own"]


@pytest.mark.parametrize(
    ("text", "line"),
    [("import json\n\njson.loads('{')", 3), ("x = 1\ny = = 2", 2), ("\nimport no_such_library", 2)],
)
def test_the_last_line_of_the_users_own_code_is_named(tmp_path: Path, text: str, line: int) -> None:
    source = written(tmp_path, text)
    with pytest.raises(AgentLoadError) as refusal:
        load_agents([source])
    assert f", at {source}:{line}" in str(refusal.value)


@pytest.mark.deep
def test_what_a_module_raised_stands_in_the_log_before_the_one_line(tmp_path: Path) -> None:
    source = written(tmp_path, "def deep():\n    return 1 / 0\ndeep()")
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.worker", "--agents", source],
        env={"PATH": "/usr/bin:/bin", "PERDURE_METRICS_ADDRESS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log, line = ended.stderr.splitlines()
    assert "in deep" in json.loads(log)["exception"]
    assert line.endswith(f"does not import: ZeroDivisionError: division by zero, at {source}:2")
    assert ended.returncode == 2


def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    same = [written(tmp_path, GOOD.format(name="same")) for _ in range(2)]
    with pytest.raises(AgentLoadError, match="two agents are named 'same'"):
        load_agents(same)


def test_no_module_at_all_says_what_to_give() -> None:
    with pytest.raises(AgentLoadError, match="--agents MODULE"):
        load_agents([])


@pytest.mark.deep
@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (["--agents", "no_such_module"], {}, 2, "perdure: module 'no_such_module' cannot be found"),
        ([], {}, 2, "perdure: no agents: name a module"),
        (["--agents", "GOOD"], {"PERDURE_TOOL_THREADS": "0"}, 2, "perdure: PERDURE_TOOL_THREADS='0'"),
        (["--agents", "GOOD", "--metrics-address", "nowhere"], {}, 2, "'nowhere' is no HOST:PORT"),
        (["--agents", "GOOD"], {"TEMPORAL_ADDRESS": "127.0.0.1:1"}, 8, "perdure: no Temporal server answers"),
    ],
)
def test_a_worker_that_cannot_start_ends_with_one_line_and_the_right_code(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    good = written(tmp_path, GOOD.format(name="good"))
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.worker", *(good if argument == "GOOD" else argument for argument in arguments)],
        env={"PATH": "/usr/bin:/bin", "PERDURE_METRICS_ADDRESS": "", **environment},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_agent_in_a_list_beside_tools_is_named_too(tmp_path: Path) -> None:
    looks = "from perdure import Agent, tool\n@tool\ndef look() -> str:\n    'Look.'\n"
    text = looks + "agents = [Agent(name='a-1', model='openai/x')]\n"
    with pytest.raises(AgentLoadError, match="has agent 'a-1' only inside of 'agents'"):
        load_agents([written(tmp_path, text)])
