"""Patches of workflow code: each is listed with the release that may drop it, and none is listed that is not there."""

import ast
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import temporalio.client
from temporalio import workflow
from temporalio.worker import Replayer, Worker

from perdure.worker.versions import patch_activation
from perdure.workflows.versions import PATCHES

ROOT = Path(__file__).parents[3]
WORKFLOW_CODE = (
    *(ROOT / "workflows").glob("*.py"),
    *(ROOT / "perdure/engine").glob("*.py"),
    ROOT / "perdure/workflow.py",  # which runs in authors' workflows
)
_RELEASE = re.compile(r"\d+\.\d+\.\d+")


def patch_calls(text: str) -> Iterator[object]:
    """The id of each call of ``patched`` or ``deprecate_patch``; None for one that is no literal."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in {"patched", "deprecate_patch"}:
                yield node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None


def test_a_call_is_found_however_it_is_written() -> None:
    """Proves that the test below can fail."""
    text = "if workflow.patched('a'):\n    pass\ndeprecate_patch('b')\npatched(NAME)\n"
    assert list(patch_calls(text)) == ["a", "b", None]


def test_the_list_of_patches_is_that_of_the_code() -> None:
    handed_on = ROOT / "workflows/temporal_runtime.py"
    found = {path: [*patch_calls(path.read_text(encoding="utf-8"))] for path in WORKFLOW_CODE}
    assert found.pop(handed_on) == [None]  # the one place that hands on an id of the others
    assert {patch for patches in found.values() for patch in patches} == set(PATCHES)


def test_each_patch_names_its_releases_and_its_reason() -> None:
    for name, patch in PATCHES.items():
        assert _RELEASE.fullmatch(patch.since), name
        assert _RELEASE.fullmatch(patch.droppable), name
        assert patch.why, name


@workflow.defn(name="Patched")
class Patched:
    """Says whether it has the patch, before and after an activity-less wait."""

    @workflow.run
    async def run(self) -> tuple[bool, bool]:
        first = workflow.patched("change")
        await workflow.sleep(0.01)
        return first, workflow.patched("change")


async def test_a_patch_that_is_held_back_is_not_taken_and_the_turn_replays_when_it_is_no_longer(
    temporal: temporalio.client.Client,
) -> None:
    """Experimental in the SDK, so what it does is held here: a run decides once, and keeps what it has decided."""
    for held, expected in ((["change"], False), (["other"], True)):
        queue = f"patches-{uuid.uuid4().hex}"
        async with Worker(
            temporal, task_queue=queue, workflows=[Patched], patch_activation_callback=patch_activation(held)
        ):
            handle = await temporal.start_workflow(Patched.run, id=queue, task_queue=queue)
            assert tuple(await handle.result()) == (expected, expected)
        await Replayer(workflows=[Patched], data_converter=temporal.data_converter).replay_workflow(
            await handle.fetch_history()
        )
