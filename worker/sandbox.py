"""What workflow code shares with the host process.

Production shares the library: reloading it for each run costs a hundred times more, and its determinism is held up by
import contracts and banned calls. Tests run the strict runner as well, which loads engine and agents inside.
"""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

SHARED = ("perdure", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
"""Modules that are passed through in production."""

SHARED_STRICTLY = ("perdure.contracts", *SHARED[1:])
"""Modules that are passed through in the strict runner: contracts are values without behaviour."""


def production_runner() -> SandboxedWorkflowRunner:
    """The runner of a worker."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*SHARED))


def strict_runner() -> SandboxedWorkflowRunner:
    """The runner of tests: a clock or a random number in the engine is refused."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*SHARED_STRICTLY))
