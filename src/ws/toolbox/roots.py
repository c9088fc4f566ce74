"""Which directory bounds the tools where there is no container to bound them (`--engine none`).

In this order: what was said; the git repository around the working directory; the working directory. Never
`/`. Never the home directory, unless that was said: a tool that takes all of it for a project is a mistake
waiting to happen.
"""

from __future__ import annotations

import os

from ws.errors import SourceRefused


def find_root(explicit: str | None = None, *, cwd: str | None = None, git: bool = True) -> str:
    """The absolute path of the project's root, links resolved.

    With `git=False` the working directory counts for itself, as the lincona contract has it for its
    `restricted` mode. Raises SourceRefused.
    """
    if explicit is not None:
        return _check_directory(os.path.realpath(os.path.expanduser(explicit)))
    here = os.path.realpath(cwd or os.getcwd())
    repository = _git_root(here) if git else None
    root = _check_directory(here if repository is None else repository)
    if root == _home():
        raise SourceRefused(
            f"{root} is the home directory, which is not taken for a project unasked",
            hint="change to the project's directory, or name the root",
        )
    return root


def _git_root(directory: str) -> str | None:
    """The nearest directory upwards that has a `.git`; one that is no project's root does not count."""
    while True:
        if os.path.exists(os.path.join(directory, ".git")):
            return None if directory in ("/", _home()) else directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def _check_directory(path: str) -> str:
    if path == "/":
        raise SourceRefused("/ is the whole machine, not a project", hint="name the project's directory")
    if not os.path.isdir(path):
        raise SourceRefused(f"{path} is not a directory", hint="name the project's directory")
    return path
