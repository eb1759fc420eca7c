"""How workflow code runs: as it is in production, inside Temporal's sandbox in tests.

The sandbox costs a third of a worker's CPU time. All it could find in production are faults of ours, for users write no
workflow code; those are found before, by import contracts, banned calls, replayed histories, and the strict runner.
"""

from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

SHARED = (
    "perdure.contracts",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions",
    "typing_inspection",
    "attr",
    "attrs",
    "jsonschema",
    "jsonschema_specifications",
    "referencing",
    "rpds",
    "perdure.agents",
    "griffe",
)
"""Modules that the strict runner shares with the host process: contracts are values, a schema's check is pure, and what
an author writes comes with the package and is not used by a turn."""


def production_runner() -> WorkflowRunner:
    """The runner of a worker."""
    return UnsandboxedWorkflowRunner()


class _StrictRunner(SandboxedWorkflowRunner):
    """Tries each workflow once, and not again for every worker of a process."""

    def prepare_workflow(self, defn: workflow._Definition) -> None:  # pyright: ignore[reportPrivateUsage] # its type
        """Load the workflow in a sandbox, to see that it can be."""
        if defn.cls not in _PREPARED:
            super().prepare_workflow(defn)
            _PREPARED.add(defn.cls)


_PREPARED: set[type] = set()


def strict_runner() -> WorkflowRunner:
    """The runner of tests: it loads engine and workflow anew for each run, and refuses a clock or a random number."""
    return _StrictRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*SHARED))
