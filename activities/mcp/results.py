"""The result of an MCP call as the model reads it: texts in the message, images and files as artifacts."""

import base64

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    Tool,
)
from pydantic_core import to_json

from perdure.activities.mcp.failures import McpError
from perdure.activities.outputs import Attachments, CallResult
from perdure.activities.schema_checks import first_error, off_the_loop
from perdure.agents.errors import InvalidOutputError
from perdure.agents.files import UNKNOWN_TYPE
from perdure.contracts.errors import ReasonCode
from perdure.engine.outputs import whole_characters
from perdure.engine.validators import GivenUpError

PROBLEM_CHARACTERS = 1_000
"""Longest description of what is wrong with a result."""


async def check_output(tool: Tool | None, result: CallToolResult) -> None:
    """Hold a result to its tool's own output schema, as far as that can be done in a short time.

    Raises:
        RuntimeError: It does not fit, as the SDK would say it.
    """
    if tool is None or (schema := tool.output_schema) is None or result.is_error:
        return
    if result.structured_content is None:
        msg = f"Tool {tool.name} has an output schema but did not return structured content"
        raise RuntimeError(msg)
    try:
        error = await off_the_loop(lambda: first_error(schema, result.structured_content))
    except GivenUpError:
        return
    if error is not None:
        msg = f"Invalid structured content returned by tool {tool.name}: {error.message[:PROBLEM_CHARACTERS]}"
        raise RuntimeError(msg)


def read(result: CallToolResult, call_id: str) -> CallResult:
    """The result as text and attachments.

    Raises:
        McpError: The server says that the call failed, or an image or a file cannot be taken.
    """
    attachments = Attachments(call_id)
    parts = [_part(block, attachments) for block in result.content]
    if not any(isinstance(block, TextContent) for block in result.content) and result.structured_content is not None:
        parts.append(to_json(result.structured_content, inf_nan_mode="constants").decode())
    text = whole_characters("\n".join(parts))
    if result.is_error:
        raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, text or "the tool failed and did not say why")
    try:
        return CallResult(text, attachments.checked())
    except InvalidOutputError as error:
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, str(error)) from None


def _part(block: ContentBlock, attachments: Attachments) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return _attached(block.type, block.mime_type, block.data, attachments)
    if isinstance(block, ResourceLink):
        return f"[resource {block.name}: {block.uri}]"
    return _resource(block, attachments)


def _resource(block: EmbeddedResource, attachments: Attachments) -> str:
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        kind = f"resource {resource.uri}"
        return _attached(kind, resource.mime_type or UNKNOWN_TYPE, resource.blob, attachments)
    return f"[resource {resource.uri}]\n{resource.text}"


def _attached(what: str, media_type: str, data: str, attachments: Attachments) -> str:
    try:
        return attachments.add(what, media_type, base64.b64decode(data))
    except ValueError:
        msg = f"the server sent {what} in no base64"
        raise McpError(ReasonCode.TOOL_INVALID_OUTPUT, msg) from None
