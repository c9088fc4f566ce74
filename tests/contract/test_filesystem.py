"""The law: every backend keeps the Filesystem protocol, in every respect, in the same way."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from workspaces import SharedWorkspaces
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import Filesystem, Limits
from ws.testing.filesystem import FILESYSTEM_CHECKS, Check, MakeFilesystem, check_filesystem


@pytest.fixture(params=["memory", "host", "host with ripgrep", "podman", "docker"])
def make_filesystem(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> MakeFilesystem:
    number = itertools.count()
    if request.param == "memory":
        return MemoryFilesystem
    if request.param in ("podman", "docker"):
        return shared(request.param).make_filesystem
    rg = (shutil.which("rg") or pytest.fail("ripgrep is not installed"),) if "ripgrep" in request.param else None

    def make(*, limits: Limits | None = None, read_only: bool = False) -> Filesystem:
        root = tmp_path / str(next(number))
        root.mkdir()
        return HostFilesystem(str(root), limits=limits, read_only=read_only, durable=False, rg=rg)

    return make


@pytest.mark.parametrize("check", FILESYSTEM_CHECKS, ids=lambda check: check.__name__)
def test_every_backend(check: Check, make_filesystem: MakeFilesystem) -> None:
    check(make_filesystem)


def test_the_public_suite_runs_all_checks_and_names_the_one_that_fails() -> None:
    check_filesystem(MemoryFilesystem)

    def broken(*, limits: Limits | None = None, read_only: bool = False) -> Filesystem:
        return MemoryFilesystem(limits=limits, read_only=True)

    with pytest.raises(PermissionError) as caught:
        check_filesystem(broken)
    assert caught.value.__notes__[0].startswith("in ")
