"""Versions: the patches in the workflow code, and the version of the workers on which a turn goes on.

A change of workflow code that a stored history cannot replay stands behind ``workflow.patched`` with an id of
:data:`PATCHES`. A test holds the list to the code, and the code to the list.
"""

from collections.abc import Mapping
from typing import NamedTuple

from temporalio import workflow
from temporalio.workflow import ContinueAsNewVersioningBehavior


class Patch(NamedTuple):
    """A change that turns begun before it do not have.

    Attributes:
        since: The first release with the change.
        droppable: The first release that may drop the old branch and call ``workflow.deprecate_patch``: no turn of a
            release before ``since`` may run any more when it is deployed. The release after that drops the call too.
        why: What the old branch is for, in a sentence.
    """

    since: str
    droppable: str
    why: str


PATCHES: Mapping[str, Patch] = {
    "stop-before-opening": Patch(
        since="0.1.0",
        droppable="0.2.0",
        why="a turn that is stopped before it is open waited until its opening was done, and no longer does",
    ),
    "strange-delegate": Patch(
        since="0.1.0",
        droppable="0.2.0",
        why="a delegate whose id was taken was waited for, whoever had taken it",
    ),
    "perdure-cancel-by-signal": Patch(
        since="0.1.0",
        droppable="0.2.0",
        why="an author's workflow that was cancelled had Temporal cancel its turn, which reached the first run only",
    ),
}
"""Each patch by its id, which is written into histories and is never used for another change."""


def own_version() -> str:
    """The version of the worker deployment that has this task, as Temporal writes it; empty without one."""
    version = workflow.info().get_current_deployment_version()
    return version.to_canonical_string() if version is not None and version.deployment_name else ""


def is_another_target(moved_from: str) -> bool:
    """Whether another version of the workers has become this run's target.

    Not if this run is on ``moved_from`` again, the version that the run before it left: then an operator holds it there
    (a versioning override), and another rotation would not move it either.
    """
    return workflow.info().is_target_worker_deployment_version_changed() and own_version() != moved_from


def newest() -> ContinueAsNewVersioningBehavior | None:
    """The option that starts the next run on the current version even if this run is pinned; None without versions."""
    return ContinueAsNewVersioningBehavior.AUTO_UPGRADE if own_version() else None
