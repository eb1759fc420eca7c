"""The result of an MCP call as the model reads it: texts in the message, images and files as artifacts."""

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic_core import to_json

from activities.mcp.failures import McpError
from activities.tool_results import Attachment, CallResult, attachment_id
from perdure.contracts.errors import ReasonCode
from perdure.engine.outputs import whole_characters

UNKNOWN_TYPE = "application/octet-stream"


def read(result: CallToolResult, call_id: str) -> CallResult:
    """The result as text and attachments.

    Raises:
        McpError: The server says that the call failed.
    """
    attachments: list[Attachment] = []
    parts = [_part(block, call_id, attachments) for block in result.content]
    if not any(isinstance(block, TextContent) for block in result.content) and result.structured_content is not None:
        parts.append(to_json(result.structured_content, inf_nan_mode="constants").decode())
    text = whole_characters("\n".join(parts))
    if result.is_error:
        raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, text or "the tool failed and did not say why")
    return CallResult(text, tuple(attachments))


def _part(block: ContentBlock, call_id: str, attachments: list[Attachment]) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return _attached(block.type, block.mime_type, block.data, call_id, attachments)
    if isinstance(block, ResourceLink):
        return f"[resource {block.name}: {block.uri}]"
    return _resource(block, call_id, attachments)


def _resource(block: EmbeddedResource, call_id: str, attachments: list[Attachment]) -> str:
    resource = block.resource
    if isinstance(resource, BlobResourceContents):
        kind = f"resource {resource.uri}"
        return _attached(kind, resource.mime_type or UNKNOWN_TYPE, resource.blob, call_id, attachments)
    return f"[resource {resource.uri}]\n{resource.text}"


def _attached(kind: str, media_type: str, data: str, call_id: str, attachments: list[Attachment]) -> str:
    attachments.append(Attachment(f"{media_type};base64", data))
    size = len(data) * 3 // 4
    return f"[{kind}, {media_type}, {size:,} bytes: artifact {attachment_id(call_id, len(attachments))}]"
