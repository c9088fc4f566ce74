"""The tools of Lincona's tooling core (epic 4), which are most of the standard set under other names."""

from __future__ import annotations

from typing import Any

from ws.toolbox.catalog import TOOLS, Tool, directory_parameter
from ws.toolbox.dialects import NO_ENCODING, Dialect, DialectTool, Session, as_is
from ws.toolbox.parameters import Parameter
from ws.tools.context import ToolResult, cap_lines

_PATCH = TOOLS["apply_patch"]


def _grep_files(session: Session, arguments: dict[str, Any]) -> ToolResult:
    """One search for each of the globs, put together in the order of files and lines."""
    include = arguments["include"] or [None]
    limit = arguments["limit"]
    results = [
        session.run("grep", pattern=arguments["pattern"], path=arguments["path"], glob=glob, max_matches=limit)
        for glob in include
    ]
    if len(results) == 1:
        return results[0]
    found = {(match["path"], match["line"]): match for result in results for match in result.data["matches"]}
    matches = [found[place] for place in sorted(found)][:limit]
    output, shown = cap_lines([f"{each['path']}:{each['line']}:{each['text']}" for each in matches], session.caps)
    stopped = len(found) > limit or any(r.truncated and len(r.data["matches"]) == limit for r in results)
    files = len({match["path"] for match in matches})
    return ToolResult(
        message=f"{len(matches)} matches in {files} files" + (f"; stopped at `limit={limit}`" if stopped else ""),
        truncated=stopped or shown < len(matches),
        output=output,
        data={"matches": matches, "binary_files": sorted({p for r in results for p in r.data["binary_files"]})},
    )


def _apply_patch(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("apply_patch", **arguments)


DIALECT = Dialect.of(
    "lincona",
    as_is(TOOLS["list_dir"]),
    as_is(
        Tool(
            "read_file",
            TOOLS["read_file"].description,
            tuple(p for p in TOOLS["read_file"].parameters if p.name in {"path", "offset", "limit", "mode"}),
            "safe",
        )
    ),
    DialectTool(
        Tool(
            "grep_files",
            "Search the contents of files with a regular expression. Returns `file:line:match` lines.",
            (
                Parameter("pattern", "string", "Regular expression."),
                directory_parameter("File or directory to search"),
                Parameter("include", "strings", "Globs; only files whose name matches one are searched.", None),
                Parameter("limit", "integer", "How many matches to return.", 200, minimum=1),
            ),
            "safe",
        ),
        _grep_files,
    ),
    DialectTool(
        Tool(
            "apply_patch_json",
            "Apply a unified diff to several files, all or none. It must fit exactly: no fuzz, no offset.",
            _PATCH.parameters,
            "dangerous",
        ),
        _apply_patch,
    ),
    DialectTool(
        Tool("apply_patch_freeform", _PATCH.description, _PATCH.parameters, "dangerous", freeform="patch"),
        _apply_patch,
    ),
    as_is(TOOLS["shell"]),
    as_is(TOOLS["exec_command"]),
    as_is(TOOLS["write_stdin"]),
    words=(
        *NO_ENCODING[1:],  # patches take one
        (r"`max_matches=(\d+)`", r"`limit=\1`"),
        (r"look for it with glob", "list its directory to see what is there"),
    ),
)
