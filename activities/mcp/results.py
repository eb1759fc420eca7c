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
from perdure.activities.mcp.reading import UNSTRUCTURED
from perdure.agents.files import MAX_BYTES, UNKNOWN_TYPE
from perdure.agents.schemas import GivenUpError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import replace_surrogates
from perdure.llm.tool_output import MAX_ALL_BYTES, Attachments, CallResult, attachments_of
from perdure.schema_checks import find_first_error, run_off_the_loop

MARK = "perdure/unstructured"
"""Key in a result's ``_meta``: the line which says that it does not fit its tool's output schema."""

PROBLEM_CHARACTERS = 1_000
"""Longest description of what is wrong with a result."""


async def mark_unstructured(tool: Tool | None, result: CallToolResult) -> CallToolResult:
    """Check a result against its tool's output schema, within a time limit.

    A result that does not fit does not fail the call, which had its effect: the model reads it with a line that says
    so.
    """
    if tool is None or (schema := tool.output_schema) is None or result.is_error:
        return result
    if result.structured_content is None:
        return _with_line(result, "has an output schema, and the server sent no structured content")
    try:
        error = await run_off_the_loop(lambda: find_first_error(schema, result.structured_content))
    except GivenUpError:
        return result
    if error is None:
        return result
    return _with_line(result, f"has an output schema that this does not fit: {error.message[:PROBLEM_CHARACTERS]}")


def _with_line(result: CallToolResult, why: str) -> CallToolResult:
    meta = {**(result.meta or {}), MARK: f"[unstructured: the tool {why}]"}
    return result.model_copy(update={"meta": meta})


def read_result(result: CallToolResult, call_id: str) -> CallResult:
    """The result as text and attachments. Images and files that are too large are left out, and the text says so.

    Raises:
        McpError: The server says that the call failed.
    """
    attachments = attachments_of(call_id)
    meta = result.meta or {}
    blocks = [block for block in result.content if not (isinstance(block, TextContent) and not block.text.strip())]
    structured = result.structured_content if result.structured_content is not None else meta.get(UNSTRUCTURED)
    if structured is None or any(isinstance(block, TextContent) for block in blocks):
        parts = [_read_block(block, attachments) for block in result.content]
    else:
        parts = [_read_block(block, attachments) for block in blocks]
        parts.append(to_json(structured, inf_nan_mode="strings").decode())
    parts += [meta[MARK]] if MARK in meta else []
    text = replace_surrogates("\n".join(parts))
    if result.is_error:
        said = text if text.strip() else "the tool failed and did not say why"
        raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, said)
    return CallResult(text, attachments.check())


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
        content = _decode(data)
    except ValueError:
        return f"[{what}, {media_type}: the server sent no base64]"
    if len(content) > MAX_BYTES or attachments.size + len(content) > MAX_ALL_BYTES:
        kept = f"one may have {MAX_BYTES:,} bytes, and those of a call {MAX_ALL_BYTES:,} together"
        return f"[{what}, {media_type}, {len(content):,} bytes, too large and left out: {kept}]"
    return attachments.add(what, media_type, content)


def _decode(data: str) -> bytes:
    """The bytes of base64, also in its spelling for URLs, without its padding, or behind the head of a data URL.

    Raises:
        ValueError: The text is not base64.
    """
    text = "".join((data.partition(",")[2] if data.startswith("data:") else data).split())
    text = text.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
