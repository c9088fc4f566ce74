"""Which directory bounds the tools where there is no container to bound them (`open_local`, `--engine none`).

In this order: the path that the caller names; the git repository around the working directory; the working directory.
Never `/`. Never the home directory, unless the caller names it.

`fs_mode` says how far tools reach beyond that root, in the words of the lincona contract.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from ws.errors import InvalidRequest, SourceRefused

FsMode = Literal["restricted", "unrestricted"]
FS_MODES: tuple[FsMode, ...] = ("restricted", "unrestricted")


def find_root(explicit: str | None = None, *, cwd: str | None = None, git: bool = True) -> str:
    """The absolute path of the project's root, links resolved.

    With `git=False` the working directory counts for itself, as the lincona contract has it for its
    `restricted` mode. Raises SourceRefused.
    """
    if explicit is not None:
        return _check_directory(os.path.realpath(os.path.expanduser(explicit)))
    here = os.path.realpath(cwd or os.getcwd())
    repository = git_root(here) if git else None
    root = _check_directory(here if repository is None else repository)
    if root == _home():
        raise SourceRefused(
            f"{root} is the home directory, which is not taken for a project unasked",
            hint="change to the project's directory, or name the root",
        )
    return root


def git_root(directory: str) -> str | None:
    """The nearest directory upwards that has a `.git`; None where there is none, or it is `/` or the home directory."""
    while True:
        if os.path.exists(os.path.join(directory, ".git")):
            return None if directory in ("/", _home()) else directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent


def reachable_paths(fs_mode: FsMode | None, allowed_paths: Sequence[str]) -> tuple[str, ...]:
    """What a mode allows beside the root: in `unrestricted` every absolute path. None is `restricted`.

    Paths that the caller restricts stay so in every mode. Raises InvalidRequest for an unknown mode.
    """
    if fs_mode is not None and fs_mode not in FS_MODES:
        raise InvalidRequest(f"unknown fs_mode {fs_mode!r}", hint=f"use one of {', '.join(FS_MODES)}")
    return (*allowed_paths, "/") if fs_mode == "unrestricted" else tuple(allowed_paths)


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def _check_directory(path: str) -> str:
    if path == "/":
        raise SourceRefused("/ is the whole machine, not a project", hint="name the project's directory")
    if not os.path.isdir(path):
        raise SourceRefused(f"{path} is not a directory", hint="name the project's directory")
    return path
