"""The routes, one module a resource. A new one: ``router = Router(prefix="/v1")`` in a module, and its place here.

Routers of :data:`ROUTERS` stand below ``/v1``, so the guard asks for a token; each route names the scope that it needs
by a parameter (``Reader``, ``Runner``, ``Approver``, ``Admin`` of :mod:`perdure.gateway.access`) and takes its session
as ``OwnSession``, behind the scope. Those of :data:`OPEN_ROUTERS` stand at the root and need none.
"""

from fastapi import APIRouter

from perdure.gateway.routes import (
    agents,
    codec,
    contents,
    control,
    events,
    people,
    probes,
    schedules,
    sessions,
    turns,
    ui,
    webhooks,
)

ROUTERS: tuple[APIRouter, ...] = (
    agents.router,
    events.router,
    sessions.router,
    turns.router,
    people.router,
    contents.router,
    control.router,
    schedules.router,
    webhooks.router,
    ui.who_router,
)
"""Routers that need a token, below ``/v1``."""

CODEC_ROUTER: APIRouter = codec.router
"""Router that needs a token with the scope ``decrypt``, below ``/codec``; Temporal's tools ask it, and no client of
ours.
"""

OPEN_ROUTERS: tuple[APIRouter, ...] = (probes.router, ui.router)
"""Routers that need no token."""
