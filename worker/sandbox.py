"""How workflow code runs: as it is in production, inside Temporal's sandbox in tests.

The sandbox costs a third of a worker's CPU time. All it could find in production are faults of ours, for users write no
workflow code; those are found before, by import contracts, banned calls, replayed histories, and the strict runner.
"""

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
)
"""Modules that the strict runner shares with the host process: contracts are values, and a schema's check is pure."""


def production_runner() -> WorkflowRunner:
    """The runner of a worker."""
    return UnsandboxedWorkflowRunner()


def strict_runner() -> WorkflowRunner:
    """The runner of tests: it loads engine and workflow anew for each run, and refuses a clock or a random number."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*SHARED))
