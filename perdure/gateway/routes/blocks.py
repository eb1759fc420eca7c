"""The kill switch within a tenant: refuse its new turns by agent and model, stop those that run, and lift that."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.requests import Request

from perdure.client import Block, BlockOutcome
from perdure.contracts.blocks import BLOCK_ID_PATTERN
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import Label
from perdure.gateway.access import Admin, GatewayOf
from perdure.gateway.problems import ProblemError
from perdure.gateway.views import Body, Page

router = APIRouter(prefix="/v1", tags=["control"])

BlockId = Annotated[str, Path(pattern=BLOCK_ID_PATTERN, description="The block's id")]


class BlockBody(Body):
    """Which turns of the tenant to refuse and stop; a turn must match all given filters."""

    agent: Label | None = Field(default=None, min_length=1, description="Only turns of this agent")
    model: Label | None = Field(
        default=None, min_length=1, description="Only turns that may call this model, as in openai/gpt-4o"
    )
    everything: bool = Field(default=False, description="All turns of the tenant, instead of filters")
    reason: Label = Field(default="", description="Why; shown to everyone whose turn is refused")
    dry_run: bool = Field(default=False, description="Change nothing, and return what would be cancelled and refused")
    keep_running: bool = Field(default=False, description="Only refuse new turns; let open ones go on")


class LiftView(BaseModel):
    """Whether a block is lifted now."""

    block: str
    lifted: bool
    changed: bool = Field(description="False if the block was lifted before")


@router.post("/blocks", operation_id="block_turns")
async def block_turns(request: Request, caller: Admin, body: BlockBody, gateway: GatewayOf) -> BlockOutcome:
    """Refuse the tenant's matching new turns until the block is lifted, and cancel matching open ones."""
    if body.everything == (body.agent is not None or body.model is not None):
        msg = "name an agent or a model, or set everything; not both"
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg)
    outcome = await gateway.client.block(
        body.reason,
        by=caller.name,
        dry_run=body.dry_run,
        keep_running=body.keep_running,
        agent=body.agent,
        model=body.model,
        tenant=caller.tenant,
    )
    request.state.block = outcome.block.id  # for the audit log
    return outcome


@router.get("/blocks", operation_id="list_blocks")
async def list_blocks(caller: Admin, gateway: GatewayOf, *, lifted: bool = False) -> Page[Block]:
    """List the tenant's blocks in force, the oldest first; with ``lifted`` also lifted ones."""
    return Page(items=await gateway.client.blocks(lifted=lifted, tenant=caller.tenant))


@router.post("/blocks/{block}/lift", operation_id="lift_block")
async def lift_block(request: Request, caller: Admin, block: BlockId, gateway: GatewayOf) -> LiftView:
    """Lift a block of the tenant: new turns are accepted again."""
    request.state.block = block
    changed = await gateway.client.unblock(block, by=caller.name, tenant=caller.tenant)
    return LiftView(block=block, lifted=True, changed=changed)
