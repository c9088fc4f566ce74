"""What git runs or obeys: the part of a workspace that must not come home unasked.

Git trusts a git directory as it trusts its user. The next `git status` runs the hooks and the programs that are
configured there, a redirection leads it to another directory of anybody's making, and a rebase that was begun goes on
with its `exec` lines. So of what a workspace changed, this is obeyed:

    in a .git              config, config.worktree, hooks, info/attributes, objects/info/alternates, remotes, branches,
                           commondir, gitdir, rebase-merge, and every link
    in modules, worktrees  the same at any depth: names of submodules have slashes
    a .git                 that is no directory
    anywhere else          the same, in a directory that git takes for a git directory by what it holds (HEAD, objects
                           and refs); and the HEAD that would make it one

What git only reads (objects, references, the index, HEAD in a `.git`) is not obeyed. Names are compared as a
filesystem compares them that ignores case, composition and characters nobody sees.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from ws.store import trees
from ws.store.diffs import Change
from ws.store.repository import Store

_DOT_GIT = re.compile(r"(?:\.git|git~\d)[ .]*(?::.*)?", re.DOTALL)
_NESTED = re.compile(r"(?:modules|worktrees)(?:/.*)?", re.DOTALL)
_OBEYED = re.compile(
    r"(?:(?:modules|worktrees)/(?:.*/)?)?"
    r"(?:config(?:\.worktree)?|hooks|info/attributes|objects/info/(?:http-)?alternates|remotes|branches|commondir|gitdir"
    r"|rebase-merge)",
    re.DOTALL,
)
_BEGINNINGS = {"head", "modules", "worktrees", "info", "objects", "config", "config.worktree", "hooks", "remotes",
               "branches", "commondir", "gitdir", "rebase-merge"}  # fmt: skip


class _Place(NamedTuple):
    """A directory: where it is in the git directory around it, if any, and what above it is obeyed, if anything is."""

    within: str | None
    root: bytes


class Obeyed:
    """What git would obey of changes that make `after` and come to where `there` is; `None`: where nothing is."""

    def __init__(self, store: Store, after: str, there: str | None) -> None:
        self._store = store
        self._after = {b"": trees.read_root(store, bytes.fromhex(after)).node}
        self._there = {b"": trees.read_root(store, bytes.fromhex(there)).node} if there else {}
        self._names: dict[tuple[bytes, bool], set[str]] = {}

    def roots(self, changes: Mapping[bytes, Change]) -> dict[bytes, bytes]:
        """The changed paths that are obeyed, each with the uppermost path that makes it so. Raises StoreDamaged."""
        places = {b"": _Place(None, b"")}
        found = {path: self._place(path, places, changes).root for path in changes if path}
        return {path: root for path, root in found.items() if root}

    def _place(self, path: bytes, places: dict[bytes, _Place], changes: Mapping[bytes, Change]) -> _Place:
        pending = []
        while path not in places:
            pending.append(path)
            path = path.rpartition(b"/")[0]
        place = places[path]
        while pending:
            path = pending.pop()
            place = places[path] = self._below(place, path, changes.get(path))
        return place

    def _below(self, above: _Place, path: bytes, change: Change | None) -> _Place:
        directory, _, own = path.rpartition(b"/")
        name = folded(own)
        new = change.new.meta.kind if change and change.new else ""
        if above.root:
            return above
        if _DOT_GIT.fullmatch(name):
            nested = above.within is not None and _NESTED.fullmatch(above.within)
            return _Place("modules" if nested else "", path if new not in ("", "d") else b"")
        name = name.partition(":")[0].rstrip(" .")
        within = None
        if above.within is not None:
            within = f"{above.within}/{name}" if above.within else name
        obeyed = within is not None and (new == "l" or _OBEYED.fullmatch(within) is not None)
        if not obeyed and name in _BEGINNINGS and not _is_known(above.within) and self._is_git(directory):
            obeyed = _OBEYED.fullmatch(name) is not None or (name == "head" and not self._is_git(directory, there=True))
            within = name
        return _Place(within, path if obeyed else b"")

    def _is_git(self, directory: bytes, *, there: bool = False) -> bool:
        """Whether git takes a directory for one of its own, once the changes have come or as it is `there`."""
        names = self._listed(directory, self._there)
        if not there:
            names = names | self._listed(directory, self._after)
        return "head" in names and ("commondir" in names or {"objects", "refs"} <= names)

    def _listed(self, directory: bytes, nodes: dict[bytes, trees.Node]) -> set[str]:
        key = directory, nodes is self._after
        if key not in self._names:
            node = self._node(directory, nodes)
            listing = trees.read_listing(self._store, node, directory) if node else None
            self._names[key] = {folded(name) for name in (*listing.files, *listing.directories)} if listing else set()
        return self._names[key]

    def _node(self, directory: bytes, nodes: dict[bytes, trees.Node]) -> trees.Node | None:
        pending = []
        while directory and directory not in nodes:
            directory, _, name = directory.rpartition(b"/")
            pending.append(name)
        node = nodes.get(directory)
        while node and pending:
            name = pending.pop()
            node = trees.read_listing(self._store, node, directory).directories.get(name)
            directory = trees.join(directory, name)
            if node:
                nodes[directory] = node
        return node


def _is_known(within: str | None) -> bool:
    """Whether a place is a git directory by its name alone: a `.git`, or one that may be a submodule's."""
    return within is not None and (not within or _NESTED.fullmatch(within) is not None)


def withheld(changes: Mapping[bytes, Change], roots: Mapping[bytes, bytes]) -> dict[bytes, Change]:
    """The obeyed changes that stay: all but the deletion of what goes with the directory around it."""

    def goes(root: bytes) -> bool:
        around = changes.get(root.rpartition(b"/")[0])
        return around is not None and around.new is None

    return {path: changes[path] for path, root in roots.items() if not goes(root)}


def uppermost(paths: set[bytes]) -> tuple[str, ...]:
    """Paths for people, without those below another of them."""
    shown = []
    for path in sorted(paths):
        above = path
        while above := above.rpartition(b"/")[0]:
            if above in paths:
                break
        else:
            shown.append(trees.os_path(path, b""))
    return tuple(shown)


def folded(name: bytes) -> str:
    """A name as it is the same to a filesystem that ignores case."""
    if name.isascii():
        return name.decode("ascii").lower()
    text = unicodedata.normalize("NFKD", name.decode(errors="replace")).casefold()
    return "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn"))
