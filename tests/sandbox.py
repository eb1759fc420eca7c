"""The strict runner of workflows, which loads the workflow and the engine once for a process and not for each turn.

To load them takes a twelfth of a second of CPU time, for each of a thousand turns. Every clock and random number is
refused as by :func:`fresh_runner`, whose fresh modules the replay of every history has. A worker runs workflows without
a sandbox.
"""

from temporalio import workflow
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictionContext
from temporalio.worker.workflow_sandbox._runner import _Instance

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

RESTRICTIONS = SandboxRestrictions.default.with_passthrough_modules(*SHARED)


class _Context(RestrictionContext):
    """Restrictions that hold from the end of the first load on: turns end, and others of the process go on."""

    loaded = False

    @property
    def is_runtime(self) -> bool:
        return self.loaded or self._is_runtime

    @is_runtime.setter
    def is_runtime(self, value: bool) -> None:
        self._is_runtime = value


_importers: dict[str, Importer] = {}
"""The modules of each workflow, by the name of its module."""


class _Turn(_Instance):
    """A turn in the modules that were loaded for the first one."""

    def __init__(self, details: WorkflowInstanceDetails, runner: type[WorkflowRunner]) -> None:
        self.instance_details = details
        self.runner_class = runner
        name = self._workflow_module_name()
        known = _importers.get(name)
        context = _Context()
        self.importer = known or Importer(RESTRICTIONS, context, workflow_module_name=name)
        self._current_thread_id = None
        self.globals_and_locals = {"__file__": "workflow_sandbox.py"}
        self._create_instance()
        if known is None:
            context.loaded = True
            _importers[name] = self.importer


class _StrictRunner(SandboxedWorkflowRunner):
    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _Turn(det, self.runner_class)


def strict_runner() -> WorkflowRunner:
    """The runner of a test's worker."""
    return _StrictRunner(restrictions=RESTRICTIONS)


class _FreshRunner(SandboxedWorkflowRunner):
    """Tries each workflow once, and not again for every worker of a process."""

    def prepare_workflow(self, defn: workflow._Definition) -> None:  # pyright: ignore[reportPrivateUsage] # its type
        """Load the workflow in a sandbox, to see that it can be."""
        if defn.cls not in _PREPARED:
            super().prepare_workflow(defn)
            _PREPARED.add(defn.cls)


_PREPARED: set[type] = set()


def fresh_runner() -> WorkflowRunner:
    """The runner of the replays: it loads the workflow and the engine anew for each run."""
    return _FreshRunner(restrictions=RESTRICTIONS)
