"""Over all sessions of a tenant: the agents that workers have registered, and what waits for people."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from perdure.contracts.input_requests import OpenRequest
from perdure.gateway.access import GatewayOf, Reader
from perdure.gateway.bodies import Router
from perdure.gateway.views import OfTenant, Page

router = Router(prefix="/v1", tags=["agents"])


class AgentView(BaseModel):
    """An agent that some worker has loaded."""

    name: str
    model: str
    description: str
    tools: tuple[str, ...]
    definition: str = Field(description="The hash of its definition")
    label: str = ""
    tags: tuple[str, ...] = ()
    seen_at: datetime = Field(description="When a worker last registered it")


@router.get("/agents", operation_id="list_agents")
async def list_agents(gateway: GatewayOf, _: Reader) -> Page[AgentView]:
    """The agents that workers have registered; those of all tenants."""
    store = await gateway.client.store()
    items: list[AgentView] = []
    for agent in await store.agents():
        definition = await store.definition(agent.definition)
        called = {"label": definition.label or "", "tags": definition.tags}
        items.append(AgentView.model_validate({**agent.model_dump(), **called}))
    return Page(items=items)


@router.get("/inbox", operation_id="list_inbox")
async def list_inbox(
    gateway: GatewayOf,
    caller: Reader,
    agent: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    tenant: OfTenant = None,
) -> Page[OpenRequest]:
    """List the open requests to people of the tenant's sessions, the oldest first; without tokens, of all tenants."""
    return Page(items=await gateway.client.inbox(agent=agent, tenant=caller.choose(tenant)))
