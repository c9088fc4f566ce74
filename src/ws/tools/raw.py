"""`read_bytes`: what a file holds, bit for bit, in base64; for the forge contract, which reads binaries."""

from __future__ import annotations

from binascii import b2a_base64

from ws.tools.context import ToolContext, ToolResult


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
