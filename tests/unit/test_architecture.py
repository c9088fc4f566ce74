"""The law of the house: imports point one way, and every outside thing has one owner."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "ws"

RANKS = [
    {"errors"},
    {"spec", "strict_json"},
    {
        "aside",
        "durable",
        "filesystem_kinds",
        "home_format",
        "id_slots",
        "last_look",
        "layout",
        "process_identity",
        "record_fields",
        "record_files",
        "record_types",
        "records",
        "removing",
        "reserve",
        "stacks",
        "subordinate_ids",
        "together",
        "workspace_record",
    },
    {"claiming", "engine", "freezer", "halting", "idmaps", "layers", "overlay", "staged", "store", "userns", "vitals"},
    {"remote", "toolbox", "base_directories", "bases"},
    {
        "apply_records",
        "applying",
        "bundle_import",
        "bundle_manifest",
        "bundles",
        "capturing",
        "collecting",
        "comparing",
        "containers",
        "creation",
        "directories",
        "discard",
        "exporting",
        "forks",
        "history",
        "host_facts",
        "inside",
        "landing",
        "landing_stage",
        "listing",
        "many",
        "merging",
        "pool",
        "pruning",
        "rebooted",
        "recovery",
        "removal",
        "restores",
        "sealing",
        "snapshots",
        "syncing",
        "three_way",
        "timeline",
        "undo_apply",
        "unused_bases",
        "users",
        "verifying",
        "warming",
    },
    {"files", "workspace"},
    {"manager"},
    {"cli", "serve", "integrations", "testing", "__init__", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
INNER = {
    "shim": {"shim", "tools", "fs", "errors"},
    "tools": {"tools", "fs", "errors"},
    "fs": {"fs", "errors"},
}
OWNERS = {
    "click": {"cli"},
    "rich": {"cli"},
    "isal": {"store"},
    "pygit2": {"store"},
    "podman": {"engine"},
    "docker": {"engine"},
    "mcp": {"serve"},
}
ANYWHERE = {"pydantic"}  # plus the standard library

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import absolutely"
            module = node.module or ""
            if module == "ws":
                found += [(f"ws.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_points_the_agreed_way(path: Path) -> None:
    part = part_of(path)
    for module, line in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        top, *rest = module.split(".")
        if top != "ws":
            if top in sys.stdlib_module_names:
                continue
            assert part not in INNER, f"{where}: {part} has the standard library only, not {module}"
            assert part in OWNERS.get(top, set()) or top in ANYWHERE, f"{where}: {module} has another owner"
            continue
        target = rest[0] if rest else "__init__"
        if part in INNER:
            assert target in INNER[part], f"{where}: {part} may not import {module}"
        elif target not in INNER:
            assert part in RANK, f"{where}: say in RANKS where {part} stands"
            assert RANK[target] <= RANK[part], f"{where}: {part} may not import {module}"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {path: set[Path]() for path in FILES}
    names = {".".join(("ws", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:  # at the top level: what runs on import
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    for name in (f"{node.module}.{alias.name}", node.module):
                        if name in names:
                            graph[path].add(names[name])
                            break
    done: set[Path] = set()

    def visit(path: Path, trail: tuple[Path, ...]) -> None:
        assert path not in trail, " → ".join(str(step.relative_to(ROOT)) for step in (*trail, path))
        if path not in done:
            for target in graph[path]:
                visit(target, (*trail, path))
            done.add(path)

    for path in FILES:
        visit(path, ())


def test_no_file_grows_past_what_one_can_hold_in_the_head() -> None:
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 500}
    assert not long


def test_every_module_opens_with_its_design_note() -> None:
    bare = [str(path.relative_to(ROOT)) for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not bare


def test_only_the_command_line_prints_and_exits() -> None:
    for path in FILES:
        if part_of(path) in {"cli", "shim", "__main__"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in {"print", "sys.exit", "exit", "os._exit"}, f"{path}:{node.lineno}: {name}"
