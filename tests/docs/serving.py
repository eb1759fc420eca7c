"""Applications of the pages behind real HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from perdure.local_ports import find_free_port
from tests.house import eventually


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The address of an ASGI application that runs."""
    port = find_free_port()
    options = {"log_level": "error", "lifespan": "off", "ws": "none", "timeout_graceful_shutdown": 5}
    server = uvicorn.Server(uvicorn.Config(app, port=port, **options))  # type: ignore[arg-type]
    running = asyncio.create_task(server.serve())

    async def started() -> bool:
        return server.started

    await eventually(started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
