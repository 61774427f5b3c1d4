"""What a tool of an MCP server returned, as a text for the model."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from torana.tools.mcp.hidden import without_hidden

#: Characters that are kept of a result; the gateway's own bound for all tools is far below.
_LIMIT = 200_000


def text_of(result: CallToolResult) -> str:
    """Its texts, and a line for each thing that is none; its structure as JSON where it has no text."""
    pieces = [piece for block in result.content for piece in _pieces(block)]
    if not any(isinstance(block, TextContent) for block in result.content) and result.structured_content:
        pieces.append(json.dumps(result.structured_content, ensure_ascii=False, default=str))
    return without_hidden("\n".join(pieces)[:_LIMIT])


def _pieces(block: ContentBlock) -> Iterator[str]:
    match block:
        case TextContent(text=text):
            yield text
        case ImageContent(mime_type=kind, data=data) | AudioContent(mime_type=kind, data=data):
            yield f"[{kind[:100]}, {len(data) * 3 // 4} bytes, not shown]"
        case ResourceLink(uri=uri, name=name):
            yield f"[resource {name[:200]}: {str(uri)[:1000]}]"
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            yield f"[resource {str(uri)[:1000]}]\n{text}"
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, blob=blob)):
            yield f"[resource {str(uri)[:1000]}, {len(blob) * 3 // 4} bytes, not shown]"
        case _:
            yield "[something else, not shown]"
