"""``make newest``: build the wheel, install it without the lock into an empty environment, and see that it works there.

The demo's job runs there too, from a copy of ``examples/``. Nothing of the checkout is importable. Then names that
perdure needs of its libraries are renamed one by one, and a worker has to refuse each. Then litellm is taken away, and
what perdure calls itself works without it. At last a resolver has to find releases for perdure and its neighbours.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.newest.neighbours import find_refusals

ROOT = Path(__file__).parents[2]

INSTALL_SECONDS = 900
CHECK_SECONDS = 600


def main() -> int:
    """Install and check; the exit code."""
    with tempfile.TemporaryDirectory(prefix="perdure-newest-") as name:
        folder = Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PERDURE_", "PYTHON"))}
        built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(built, cwd=ROOT, check=True, timeout=INSTALL_SECONDS, stdout=subprocess.DEVNULL)
        (wheel,) = folder.glob("*.whl")
        python = folder / "venv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=INSTALL_SECONDS)
        wanted = f"perdure[worker,gateway,testing] @ {wheel.as_uri()}"
        print("installing the newest release of every requirement", flush=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted]
        subprocess.run(install, cwd=folder, env=environment, check=True, timeout=INSTALL_SECONDS)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        for script in ("checks.py", "renames.py"):
            shutil.copy(Path(__file__).with_name(script), folder)
        # What the demo's agent looks at. Without its __init__.py, the folder does not hide the installed package.
        shutil.copytree(ROOT / "perdure" / "engine", folder / "perdure" / "engine")
        shutil.copy(ROOT / "README.md", folder)
        gone = ["-m", "pip", "uninstall", "--quiet", "--yes", "litellm", "openai"]
        for command in (["checks.py"], ["examples/demo/run.py"], ["renames.py"], gone, ["checks.py"]):
            path = {**environment, "PYTHONPATH": str(folder)} if command[0].startswith("examples") else environment
            done = subprocess.run([str(python), *command], cwd=folder, env=path, timeout=CHECK_SECONDS, check=False)
            if done.returncode:
                print(f"FAILED  {' '.join(command)}: exit code {done.returncode}", flush=True)
                return 1
        refusals = list(find_refusals(python, wheel))
        for refusal in refusals:
            print(f"FAILED  {refusal}", flush=True)
        if refusals:
            return 1
        print("an installation without the lock works", flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(main())
