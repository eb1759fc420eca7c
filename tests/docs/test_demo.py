"""``make demo`` as a newcomer sees it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.demo import agent
from perdure import ToolContext

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]

PROFILE = """
[profile.default]
address = "cloud.invalid:7233"
namespace = "of-the-user"
api_key = "key-of-the-user-0123456789"
"""


def start(changes: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "examples/demo/run.py"],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", **changes},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_shows_all_it_promises_and_stays_scripted_whatever_is_set(tmp_path: Path) -> None:
    """It checks itself: the 429, the recovered tool error, the parallel calls, the killed worker, no body run twice."""
    profile = tmp_path / "temporal.toml"
    profile.write_text(PROFILE, encoding="utf-8")
    demo = start(
        {
            "OPENAI_API_KEY": "sk-of-the-user-0123456789",
            "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
            "OPENAI_API_BASE": "http://127.0.0.1:9/v1",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
            "TEMPORAL_ADDRESS": "127.0.0.1:9",
            "TEMPORAL_CONFIG_FILE": str(profile),
            "PERDURE_STORE_URL": "sqlite:////nowhere/at/all.db",
        }
    )
    text, _ = demo.communicate(timeout=110)
    assert demo.returncode == 0, text
    assert "sk-of-the-user" not in text
    for line in (
        r"  model   SCRIPTED: no provider is called and no key is used\.",
        r"↻ RateLimitError · retry 1 of \d+ in 2\.\d+s",
        r"✗ read_file",
        r"  … kill -9 \d+: the worker is gone, in the middle of a model call",
        r"finished · 5 steps",
        r"✓ two tool calls of one answer ran as two activities, in parallel",
        r"✓ worker (\d+) was killed in a model call, (?!\1)\d+ went on",
        r"✓ no tool ran twice: 5 calls, 5 bodies",
        r"✓ finished: 5 steps, [\d,]+ tokens",
        r"The job in the UI: http://127\.0\.0\.1:\d+/namespaces/default/workflows/demo-",
    ):
        assert re.search(f"^{line}", text, re.MULTILINE), f"{line}\n{text}"
    reported = dict(re.findall(r"^  - (perdure/engine/\S+): (\d+) functions$", text, re.MULTILINE))
    engine = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (ROOT / "perdure/engine").rglob("*.py")}
    assert reported == {
        name: str(sum("def " in line for line in source.splitlines())) for name, source in engine.items()
    }


class Call(ToolContext):
    """A call's context, without any turn behind it."""

    session, turn, call_id, idempotency_key, cancelled = "of-a-test", 1, "call_1", "of-a-test/1/call_1", False

    def wait(self, seconds: float) -> bool:
        return False


@pytest.mark.parametrize("path", ["..", "/etc/hostname", "docs/../../elsewhere", ".git", "perdure/../.venv", "link"])
def test_a_tool_refuses_what_is_outside_or_hidden(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "link").symlink_to("/etc")
    monkeypatch.setattr(agent, "CHECKOUT", checkout)
    monkeypatch.setattr(agent, "SCRATCH", tmp_path)
    for read in (agent.read_file, agent.count_lines, agent.list_files):
        with pytest.raises(PermissionError):
            read(path, Call())
    with pytest.raises(PermissionError):
        agent.search_text("x", path, Call())


def test_the_lists_leave_out_what_is_hidden_and_say_what_they_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("KEY=1\n", encoding="utf-8")
    for number in range(agent.MOST + 2):
        (tmp_path / f"{number:03}.txt").write_text("KEY=1\n", encoding="utf-8")
    monkeypatch.setattr(agent, "CHECKOUT", tmp_path)
    monkeypatch.setattr(agent, "SCRATCH", tmp_path / ".scratch")
    listed, found = agent.list_files(".", Call()), agent.search_text("KEY", ".", Call())
    assert (listed[0], listed[-1], len(listed)) == ("000.txt", "… and 2 more", agent.MOST + 1)
    assert (found[0], found[-1]) == ("000.txt:1: KEY=1", "… and 2 more")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_half_way_says_so_and_leaves_no_process(number: signal.Signals) -> None:
    said: list[str] = []
    with start({}) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            said.append(line)
            if "kill -9" in line:
                demo.send_signal(number)
                break
        rest = demo.stdout.read()
    text = "".join(said) + rest
    assert demo.returncode == 130, text
    assert "stopped before the demo was over" in rest
    server = re.search(r"server  127\.0\.0\.1:(\d+)", text)
    assert server is not None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(server[1]))) != 0
    for pid in re.findall(r"(?:process|worker) (\d+) is ready", text):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
