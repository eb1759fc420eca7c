"""``make demo`` as a newcomer sees it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_shows_all_it_promises_and_stays_scripted_with_a_key_set() -> None:
    """The demo checks itself: retry, recovered tool error, parallel calls, killed worker, no body run twice."""
    elsewhere = {
        "OPENAI_API_KEY": "sk-of-the-user-0123456789",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "TEMPORAL_ADDRESS": "127.0.0.1:9",
        "PERDURE_STORE_URL": "sqlite:////nowhere/at/all.db",
        "NO_COLOR": "1",
    }
    ended = subprocess.run(
        [sys.executable, "examples/demo/run.py"],
        cwd=ROOT,
        env={**os.environ, **elsewhere},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert any(line.startswith("The model is SCRIPTED") for line in lines)
    assert any(line.startswith("↻ RateLimitError · waiting 2.") for line in lines)
    assert any(line.startswith("✗ read_file") for line in lines)
    assert any("kill -9" in line for line in lines)
    assert any(line.startswith("finished · 5 steps") for line in lines)
    assert any(line.startswith("5 tool calls and 5 bodies run, none twice") for line in lines)
    assert any("/namespaces/default/workflows/demo-" in line for line in lines)
