"""The result of a call of an MCP server: its text is for the model; images and files become artifacts."""

import base64

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    ImageContent,
    ResourceLink,
    TextContent,
    Tool,
)
from pydantic_core import to_json

from perdure.activities.mcp.failures import McpError
from perdure.agents.context import InvalidOutputError
from perdure.agents.files import UNKNOWN_TYPE
from perdure.agents.schemas import GivenUpError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import replace_surrogates
from perdure.llm.tool_output import Attachments, CallResult, attachments_of
from perdure.schema_checks import find_first_error, run_off_the_loop

PROBLEM_CHARACTERS = 1_000
"""Longest description of what is wrong with a result."""


async def check_output(tool: Tool | None, result: CallToolResult) -> None:
    """Check a result against its tool's output schema, within a time limit.

    Raises:
        RuntimeError: The result does not fit the schema; the SDK's own check raises this class too.
    """
    if tool is None or (schema := tool.output_schema) is None or result.is_error:
        return
    if result.structured_content is None:
        raise RuntimeError(f"Tool {tool.name} has an output schema but did not return structured content")
    try:
        error = await run_off_the_loop(lambda: find_first_error(schema, result.structured_content))
    except GivenUpError:
        return
    if error is not None:
        msg = f"Invalid structured content returned by tool {tool.name}: {error.message[:PROBLEM_CHARACTERS]}"
        raise RuntimeError(msg)


def read_result(result: CallToolResult, call_id: str) -> CallResult:
    """The result as text and attachments.

    Raises:
        McpError: The server says that the call failed, or an image or a file is not valid.
    """
    attachments = attachments_of(call_id)
    parts = [_read_block(block, attachments) for block in result.content]
    if not any(isinstance(block, TextContent) for block in result.content) and result.structured_content is not None:
        parts.append(to_json(result.structured_content, inf_nan_mode="constants").decode())
    text = replace_surrogates("\n".join(parts))
    if result.is_error:
        raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, text or "the tool failed and did not say why")
    try:
        return CallResult(text, attachments.check())
    except InvalidOutputError as error:
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, str(error)) from None


def _read_block(block: ContentBlock, attachments: Attachments) -> str:
    """The text of a block; the bytes of an image or a file are attached, and their text says so."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return _attach(block.type, block.mime_type, block.data, attachments)
    if isinstance(block, ResourceLink):
        return f"[resource {block.name}: {block.uri}]"
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        return _attach(f"resource {resource.uri}", resource.mime_type or UNKNOWN_TYPE, resource.blob, attachments)
    return f"[resource {resource.uri}]\n{resource.text}"


def _attach(what: str, media_type: str, data: str, attachments: Attachments) -> str:
    try:
        return attachments.add(what, media_type, base64.b64decode(data))
    except ValueError:
        msg = f"the server sent {what} in no base64"
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, msg) from None
