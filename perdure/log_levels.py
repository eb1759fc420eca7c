"""Levels of the libraries' loggers: none of them may write a conversation into a log, whatever the level.

At ``debug`` HTTP clients log requests, the SDKs of Temporal and MCP log messages, and SQLAlchemy rows.
"""

import logging

QUIET = (
    *("LiteLLM", "aiohttp", "anyio", "asyncio", "boto3", "botocore", "hpack", "httpcore", "httpx", "httpx2", "mcp"),
    *("openai", "opentelemetry", "psycopg", "s3transfer", "sqlalchemy", "sse_starlette", "urllib3", "uvicorn.error"),
    *("temporalio.bridge", "temporalio.client", "temporalio.converter", "temporalio.service", "temporalio.worker"),
)
"""Loggers of libraries that see conversations. Those of ``temporalio.activity`` and of authors keep their level."""


def quiet_libraries() -> None:
    """Have them log warnings and errors alone."""
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
