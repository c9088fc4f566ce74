"""Git directories in what a workspace changed: what may come to the host unasked, and what is withheld.

Git trusts a git directory as it trusts its user: hooks and configured programs run, redirections are followed, a
rebase goes on with its `exec` lines, an index names the files that are written. So of a git directory only the allow
list of `git_contents` comes, each file checked. Everything else is withheld: additions, changes and deletions.

A git directory is

    a `.git`        in any spelling that some filesystem takes for it
    any directory   that has HEAD, objects and refs (or HEAD and commondir), in the union of what the host has and what
                    the workspace has; so also one that earlier applies brought in parts. Those below `.git/modules`
                    are among them

and is withheld as a whole

    new             unless it is a `.git`, and the host has nothing in its place that the allow list does not have: the
                    rest of it might be a configuration
    destroyed       it is a git directory on the host and not in the workspace any more
    replaced        by a file or a link, or a file or a link by it

`.git/worktrees` and new submodules are not in the allow list. A directory that becomes something else stays if
anything that is withheld lies in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ws.fs.kernel import open_directory
from ws.store import git_contents, trees
from ws.store.diffs import Change
from ws.store.git_index import IndexRefused, parse_index
from ws.store.git_names import folded, is_dot_git
from ws.store.repository import Store
from ws.store.tree_files import TreeFiles

_PARTS = frozenset(("head", "objects", "refs", "commondir"))
_CONTROL = _PARTS | {"config", "config.worktree", "hooks", "info", "branches", "remotes", "modules", "worktrees",
                     "gitdir", "packed-refs", "index", "logs", "reftable"}  # fmt: skip
_INFOS = (b"", b"info", b"objects/info")  # where a git directory keeps what it obeys beside what it reads
_NOT_IN_LIST = "it is not among the files of a git directory that come unasked"
_NEW = "it would make a git directory of this one"
_DESTROYED = "it belongs to a git directory that is not one in the workspace"
_REPLACED = "a git directory, and something else on the other side"
_HOLDS = "what it replaces holds files of a git directory"


class Withheld(NamedTuple):
    """Why a changed path does not come, and the uppermost path for which that is so."""

    root: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory: the git directory it lies in, if any, and why everything in it is withheld, if it is."""

    git_directory: bytes | None = None
    within: bytes = b""
    withheld: Withheld | None = None


class ControlFiles:
    """What is withheld of changes that make the tree `after`, and come to where the tree `there` is.

    `top` is the host's directory, if it is a directory of the host: it may have files that no scan has, because they
    are excluded, or are mount points.
    """

    def __init__(self, store: Store, after: str, there: str | None, top: int = -1) -> None:
        self._store = store
        self._after = TreeFiles(store, after)
        self._there = TreeFiles(store, there)
        self._top = top
        self._host_names: dict[bytes, frozenset[bytes] | None] = {}
        self._formats: dict[bytes, int | None] = {}
        self._budget = git_contents.Budget()

    def withheld(self, changes: Mapping[bytes, Change]) -> dict[bytes, Withheld]:
        """The changed paths that do not come unasked. Raises StoreDamaged."""
        places: dict[bytes, _Place] = {}
        found: dict[bytes, Withheld] = {}
        for path, change in changes.items():
            if path and change.kind != "metadata":
                held = self._judge(path, change, places)
                if held:
                    found[path] = held
        self._keep_objects(changes, places, found)
        self._keep_what_lies_around(changes, found)
        return found

    # -- places --------------------------------------------------------------------------------------------------

    def _place(self, directory: bytes, places: dict[bytes, _Place]) -> _Place:
        pending = []
        while directory not in places:
            pending.append(directory)
            if not directory:
                break
            directory = directory.rpartition(b"/")[0]
        while pending:
            directory = pending.pop()
            above, _, name = directory.rpartition(b"/")
            places[directory] = self._below(places[above], directory, name) if directory else self._top_place()
        return places[directory]

    def _top_place(self) -> _Place:
        if not self._is_git(self._on_host(b"")):
            return _Place()
        destroyed = not self._is_git(self._after.names(b""))
        return _Place(withheld=Withheld(b"", _DESTROYED)) if destroyed else _Place(b"")

    def _below(self, above: _Place, directory: bytes, name: bytes) -> _Place:
        if above.withheld:
            return above
        if is_dot_git(name):
            return self._git_directory(directory, above, by_name=True)
        there, after = self._on_host(directory), self._after.names(directory)
        if self._is_git(there):
            return self._git_directory(directory, above, by_name=False)
        if self._is_git((there or frozenset()) | (after or frozenset())):
            return _Place(withheld=Withheld(directory, _NEW))
        if above.git_directory is None:
            return _Place(withheld=self._completes_top(directory))
        within = trees.join(above.within, name)
        if within == b"modules" or within.startswith(b"modules/") or git_contents.is_known_directory(within):
            return _Place(above.git_directory, within)
        return _Place(withheld=Withheld(directory, _NOT_IN_LIST))

    def _git_directory(self, directory: bytes, above: _Place, *, by_name: bool) -> _Place:
        there, after = self._on_host(directory), self._after.names(directory)
        if by_name and above.git_directory is not None:
            return _Place(withheld=Withheld(directory, _NOT_IN_LIST))
        if (there is None and self._exists(directory)) or (after is None and self._after.file(directory)):
            return _Place(withheld=Withheld(directory, _REPLACED))
        if self._is_git(there):
            if not self._is_git(after):
                return _Place(withheld=Withheld(directory, _DESTROYED))
        elif not all(map(self._is_expected, (directory, directory + b"/info", directory + b"/objects/info"), _INFOS)):
            return _Place(withheld=Withheld(directory, _NEW))
        return _Place(directory)

    def _is_expected(self, directory: bytes, within: bytes) -> bool:
        """Whether a directory of the host has only what the allow list has; `within`: where in its git directory."""
        paths = (trees.join(within, name) for name in self._on_host(directory) or ())
        return all(git_contents.is_known_directory(path) or git_contents.find_check(path) for path in paths)

    def _exists(self, path: bytes) -> bool:
        directory, _, name = path.rpartition(b"/")
        return name in (self._on_host(directory) or ())

    def _is_git(self, names: frozenset[bytes] | None) -> bool:
        """Whether git takes a directory with these names for one of its own."""
        parts = _PARTS & set(map(folded, names or ()))
        return "head" in parts and ("commondir" in parts or {"objects", "refs"} <= parts)

    def _on_host(self, directory: bytes) -> frozenset[bytes] | None:
        if directory not in self._host_names:
            seen = self._there.names(directory)
            listed = _listed(self._top, directory) if self._top >= 0 else None
            self._host_names[directory] = (
                None if seen is None and listed is None else (seen or frozenset()) | (listed or frozenset())
            )
        return self._host_names[directory]

    # -- changes -------------------------------------------------------------------------------------------------

    def _judge(self, path: bytes, change: Change, places: dict[bytes, _Place]) -> Withheld | None:
        directory, _, name = path.rpartition(b"/")
        above = self._place(directory, places)
        if above.withheld:
            return _named(above.withheld, path)
        if change.is_directory or is_dot_git(name):
            own = self._place(path, places)
            if own.withheld:
                return _named(own.withheld, path)
            kinds = {side.meta.kind for side in (change.old, change.new) if side}
            if is_dot_git(name) and kinds != {"d"}:
                return Withheld(path, _REPLACED)
            if above.git_directory is None:
                return self._completes_top(path)
            return Withheld(path, _NOT_IN_LIST) if kinds != {"d"} else None
        if above.git_directory is None:
            return self._completes_top(path)
        return self._judge_file(path, above, change)

    def _completes_top(self, path: bytes) -> Withheld | None:
        """In the top directory, which cannot be withheld whole, what would make it a git directory."""
        if b"/" in path or folded(path) not in _CONTROL:
            return None
        both = (self._on_host(b"") or frozenset()) | (self._after.names(b"") or frozenset())
        return Withheld(path, _NEW) if self._is_git(both) else None

    def _judge_file(self, path: bytes, above: _Place, change: Change) -> Withheld | None:
        within = trees.join(above.within, path.rpartition(b"/")[2])
        check = git_contents.find_check(within)
        if check is None:
            return Withheld(path, _NOT_IN_LIST)
        if change.new is None:
            return None
        if change.new.meta.kind not in "fc":
            return Withheld(path, "it is not a regular file")
        try:
            check(self._content(path, within, change.new))
        except git_contents.Refused as error:
            return Withheld(path, str(error))
        return None

    def _content(self, path: bytes, within: bytes, file: trees.File) -> git_contents.Content:
        directory = path[: len(path) - len(within)].rstrip(b"/")

        def hidden() -> frozenset[bytes]:
            data = self._there.read(path)
            try:
                return parse_index(data or b"", self._format(directory) or 0).hidden
            except IndexRefused:
                return frozenset()

        return git_contents.Content(
            path=within,
            chunks=lambda: trees.read_chunks(self._store, file, path),
            size_bytes=file.meta.size,
            neighbour_tail=lambda name, count: self._after.tail(trees.join(directory, name), count),
            hash_bytes=self._format(directory),
            budget=self._budget,
            hidden=hidden,
        )

    def _format(self, directory: bytes) -> int | None:
        """The length of ids in a git directory, by the host's own configuration."""
        if directory not in self._formats:
            config = self._there.read(trees.join(directory, b"config"))
            unseen = config is None and b"config" in (self._on_host(directory) or ())
            self._formats[directory] = None if unseen else git_contents.object_format(config)
        return self._formats[directory]

    # -- what follows from it ------------------------------------------------------------------------------------

    def _keep_objects(
        self, changes: Mapping[bytes, Change], places: dict[bytes, _Place], found: dict[bytes, Withheld]
    ) -> None:
        """Objects that do not pass may be those that others were packed into: then none is deleted."""
        objects = {
            each for each, place in places.items() if place.git_directory is not None and place.within == b"objects"
        }
        refused = {each for path in found for each in _above(path) if each in objects} if objects else set()
        for path, change in changes.items() if refused else ():
            if change.new is None and path not in found and any(each in refused for each in _above(path)):
                found[path] = Withheld(path, "objects beside it did not pass their check")

    def _keep_what_lies_around(self, changes: Mapping[bytes, Change], found: dict[bytes, Withheld]) -> None:
        """A directory stays a directory while something in it stays."""
        needed: set[bytes] = set()
        for path in found:
            for directory in _above(path) if changes[path].old else ():
                if directory in needed:
                    break
                needed.add(directory)
        roots = {
            path
            for path in needed & changes.keys()
            if path not in found and (new := changes[path].new) is not None and new.meta.kind != "d"
        }
        for path in changes if roots else ():
            root = next((each for each in (path, *_above(path)) if each in roots), None)
            if root is not None and path not in found:
                found[path] = Withheld(root, _HOLDS)


def _named(held: Withheld, path: bytes) -> Withheld:
    """A directory that is only not in the list is on the host too, perhaps: what changed is named, not all of it."""
    return Withheld(path, held.reason) if held.reason == _NOT_IN_LIST else held


def _listed(top: int, directory: bytes) -> frozenset[bytes] | None:
    try:
        fd = open_directory(top, directory.decode("utf-8", "surrogateescape"))
    except OSError:
        return None
    try:
        return frozenset(map(os.fsencode, os.listdir(fd)))
    finally:
        os.close(fd)


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def uppermost(withheld: Mapping[bytes, Withheld]) -> dict[str, str]:
    """The withheld paths to show, without those below another of them, and why each is withheld."""
    roots = {held.root: held.reason for _, held in sorted(withheld.items())}
    if b"" in roots:
        return {".": roots[b""]}
    shown = {}
    for path, reason in sorted(roots.items()):
        if not any(above in roots for above in _above(path)):
            shown[trees.os_path(path, b"")] = reason
    return shown
