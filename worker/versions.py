"""The version of a worker: which deployment and build it polls for, how turns are bound to it, which patches it holds.

Only the worker of the turns has a version. Queues of single processes, such as those of MCP sessions, have none: an
activity that is meant for one process must reach it from whichever version the turn has moved to.
"""

import logging
from collections.abc import Callable, Collection

import temporalio.client
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PatchActivationInput, WorkerDeploymentConfig

from perdure.settings import Settings

_BEHAVIORS = {
    "auto_upgrade": VersioningBehavior.AUTO_UPGRADE,
    "rotate": VersioningBehavior.PINNED,
    "pinned": VersioningBehavior.PINNED,
}

logger = logging.getLogger("perdure.worker")


def deployment_config(settings: Settings) -> WorkerDeploymentConfig | None:
    """The version that the worker of the turns polls for; None without a deployment."""
    if not settings.deployment:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=settings.deployment, build_id=settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=_BEHAVIORS[settings.versioning],
    )


def build_of(settings: Settings) -> str:
    """Name of the worker's build for people: ``DEPLOYMENT.BUILD``, or the build id alone; may be empty."""
    return f"{settings.deployment}.{settings.build_id}" if settings.deployment else settings.build_id


def patch_activation(held: Collection[str]) -> Callable[[PatchActivationInput], bool]:
    """Decides whether a turn takes a patch that it meets for the first time: not one that is held back.

    A turn that has a patch keeps it, and so does one that has gone past it without.
    """
    return lambda asked: asked.patch_id not in held


async def tell_version(client: temporalio.client.Client, settings: Settings) -> None:
    """Log which turns this worker will get; one of a version that is not current may get none."""
    if not settings.deployment:
        return
    command = (
        "temporal worker deployment set-current-version "
        f"--deployment-name {settings.deployment} --build-id {settings.build_id}"
    )
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=settings.deployment)
    try:
        found = await client.workflow_service.describe_worker_deployment(request, retry=True)
        routing = found.worker_deployment_info.routing_config
        current, ramping = (
            routing.current_deployment_version.build_id,
            routing.ramping_deployment_version.build_id,
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            logger.warning("the server does not tell of worker deployments: %s", error.message)
            return
        current = ramping = ""
    if settings.build_id not in {current, ramping}:
        logger.warning(
            "new turns do not come to this worker until its version is ramping or current: %s",
            command,
            extra={"deployment": settings.deployment, "build_id": settings.build_id, "current": current or "none"},
        )
