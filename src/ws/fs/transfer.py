"""Carrying a file or a whole tree from one filesystem to another.

Between two directories of one machine it is a rename where the kernel can do one and a copy by descriptors
where it cannot; between any other two it goes through the protocol, in chunks.
"""

from __future__ import annotations

import errno

from ws.fs.host import HostFilesystem
from ws.fs.kernel import rename_new
from ws.fs.protocol import Filesystem
from ws.fs.trees import copy_tree, remove_any


def move_between(source: Filesystem, path: str, target: Filesystem, target_path: str) -> None:
    """Move a file, a link or a directory to a name that is free; the parent of `target_path` must exist.

    Raises as `Filesystem.move`. Commit point: the arrival is complete before anything of the source goes.
    """
    if isinstance(source, HostFilesystem) and isinstance(target, HostFilesystem):
        with source.pin_for_change(path) as old, target.pin_for_change(target_path) as new:
            try:
                rename_new(old.name, old.parent, new.name, new.parent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    error.filename, error.filename2 = path, target_path
                    raise
                copy_tree(old.parent, old.name, new.parent, new.name)
                remove_any(old.parent, old.name)
        return
    copy_between(source, path, target, target_path)
    source.delete(path, recursive=True)


def copy_between(source: Filesystem, path: str, target: Filesystem, target_path: str) -> None:
    """Copy a file, a link or a directory through the protocol: bytes, modes, times and links."""
    directories: list[tuple[str, str, int, int]] = []
    pending = [(path, target_path)]
    while pending:
        old, new = pending.pop()
        status = source.stat(old, follow_symlinks=False)
        modified_ns = round(status.modified_at.timestamp() * 1e6) * 1000
        if status.is_symlink:
            target.make_link(new, status.target or "")
        elif status.is_directory:
            target.mkdir(new, parents=False, exist_ok=False)
            directories.append((old, new, status.mode, modified_ns))
            pending += [(entry.path, f"{new}/{entry.name}") for entry in source.list(old)]
            continue
        else:
            with source.open_read(old) as reader, target.open_write(new, "create", False) as writer:
                writer.write_all(reader)
            target.set_mode(new, status.mode)
        target.set_modified(new, modified_ns)
    for _, new, mode, modified_ns in reversed(directories):
        target.set_mode(new, mode)
        target.set_modified(new, modified_ns)
