"""A worker whose workflow tasks a test can hold, so that several events of a history come in one activation."""

import threading
from typing import Any

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner

from tests.house import WAIT_SECONDS
from tests.sandbox import fresh_runner


class HeldRunner(WorkflowRunner):
    """The strict runner, with a gate before each activation.

    A hold that lasts longer than the SDK's two seconds fails the workflow task; the next one replays the history, with
    the same events in the same activation.
    """

    def __init__(self) -> None:
        self._inner = fresh_runner()
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()

    def hold(self) -> None:
        """Stop at the next activation; ``held`` tells when one has come."""
        self._open.clear()

    def release(self) -> None:
        """Let the activations go on."""
        self._open.set()

    def prepare_workflow(self, defn: Any) -> None:
        """As the strict runner does it."""
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The strict runner's instance behind the gate."""
        instance = self._inner.create_instance(det)
        activate = instance.activate

        def gated(act: Any) -> Any:
            if not self._open.is_set():
                self.held.set()
                self._open.wait(WAIT_SECONDS)
            return activate(act)

        instance.activate = gated  # type: ignore[method-assign]
        return instance
