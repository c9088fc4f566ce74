"""What a file holds, uncut: `read_text` its lines, `read_bytes` its bytes in base64; for the forge contract.

A call returns at most what the caps let a read hold; the next one goes on where it stopped.
"""

from __future__ import annotations

from binascii import b2a_base64
from dataclasses import replace

from ws.fs.protocol import CHUNK_BYTES
from ws.tools.context import ToolContext, ToolResult
from ws.tools.reading import read_file

_MAX_LINE_CHARS = CHUNK_BYTES // 4  # so much of a line `read_file` holds for certain, whatever its characters


def read_text(context: ToolContext, *, path: str, offset: int = 0, limit: int | None = None) -> ToolResult:
    """As `read_file`, with lines that are cut only where they are longer than any that a person wrote."""
    wide = replace(context, caps=replace(context.caps, max_line_chars=_MAX_LINE_CHARS))
    return read_file(wide, path=path, view_range=[offset + 1, -1 if limit is None else offset + limit])


def read_bytes(context: ToolContext, *, path: str, offset: int = 0, limit: int | None = None) -> ToolResult:
    """Up to `limit` bytes from `offset` on; what the cap of results leaves out is said.

    Raises what `Filesystem.read_bytes` raises.
    """
    place = context.locate(path)
    size = context.filesystem.stat(place).size_bytes
    most = context.caps.max_read_bytes
    data = context.filesystem.read_bytes(place, offset, most if limit is None else min(limit, most))
    left = max(0, size - offset - len(data))
    return ToolResult(
        message=f"{len(data)} of {size} bytes" + (f"; {left} are left" if left else ""),
        truncated=left > 0,
        output=b2a_base64(data, newline=False).decode("ascii"),
        data={"path": path, "encoding": "base64", "offset": offset, "size": size, "bytes": len(data)},
    )
