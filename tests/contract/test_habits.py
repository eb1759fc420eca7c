"""The files that a stranger's tools look for say what ours do."""

import pytest
import yaml

from tests.contract.repository import ROOT


@pytest.mark.parametrize(("name", "command"), [("ci", ".ci/run"), ("deep", ".ci/run deep")])
def test_a_workflow_runs_what_any_machine_runs(name: str, command: str) -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [command]
    assert workflow["permissions"] == {"contents": "read"}


def test_the_deep_lane_runs_each_week_and_at_each_tag() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "deep.yml").read_text(encoding="utf-8"))
    begins = workflow[True]  # YAML 1.1 reads the key `on` so
    assert begins["schedule"]
    assert begins["push"] == {"tags": ["v*"]}


def test_the_hooks_before_a_commit_are_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    tools = {hook["entry"].removesuffix(" --force-exclude").removeprefix(".venv/bin/") for hook in hooks}
    assert tools == {"ruff format", "ruff check", "mypy"}
    for tool in tools:
        assert f"$(VENV)/bin/{tool}" in makefile
