"""The tree of the memory backend: immutable nodes that states share.

A change makes new directories from the changed one up to the root and shares everything else with the tree
before it (path copying), so keeping an old state is keeping its root: a snapshot costs a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class Node:
    """What every node has. Times are nanoseconds since the epoch."""

    mode: int
    created_ns: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class FileNode(Node):
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class LinkNode(Node):
    target: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryNode(Node):
    entries: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))


def empty_directory(now_ns: int) -> DirectoryNode:
    return DirectoryNode(DIRECTORY_MODE, now_ns, now_ns)


def lookup(root: DirectoryNode, segments: tuple[str, ...]) -> Node | None:
    """The node at a path without links, or None."""
    node: Node = root
    for segment in segments:
        if not isinstance(node, DirectoryNode):
            return None
        found = node.entries.get(segment)
        if found is None:
            return None
        node = found
    return node


def with_node(root: DirectoryNode, segments: tuple[str, ...], node: Node | None, now_ns: int) -> DirectoryNode:
    """The tree with a node put at a path whose parent is a directory, or with None taken away."""
    if not segments:
        assert isinstance(node, DirectoryNode)
        return node
    trail = [root]
    for segment in segments[:-1]:
        inner = trail[-1].entries[segment]
        assert isinstance(inner, DirectoryNode)
        trail.append(inner)
    changed: Node | None = node
    for directory, segment in zip(reversed(trail), reversed(segments), strict=True):
        entries = dict(directory.entries)
        # Only the directory whose names change gets a new time; its ancestors hold a new child under an old
        # name.
        renamed = changed is None or segment not in entries
        if changed is None:
            del entries[segment]
        else:
            entries[segment] = changed
        modified_ns = now_ns if renamed else directory.modified_ns
        changed = replace(directory, entries=MappingProxyType(entries), modified_ns=modified_ns)
    assert isinstance(changed, DirectoryNode)
    return changed


def walk(directory: DirectoryNode, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every node below a directory and its path, in the order of the paths as strings."""
    pending: list[tuple[str, Node]] = [(prefix, directory)]
    while pending:
        path, node = pending.pop()
        if node is not directory:
            yield path.removesuffix("/"), node
        if isinstance(node, DirectoryNode):
            below = [
                (path + name + ("/" if isinstance(inner, DirectoryNode) else ""), inner)
                for name, inner in node.entries.items()
            ]
            pending += sorted(below, key=lambda item: item[0], reverse=True)
