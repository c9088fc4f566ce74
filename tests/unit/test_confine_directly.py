"""What confines paths, called directly: by the kernel's own resolution, and by the walk where that cannot tell."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ws.fs import confine
from ws.fs.confine import Confinement
from ws.fs.kernel import READ, open_directory
from ws.fs.paths import PathRules
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.removing import _open_to_empty


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("root", "root-sibling", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "below").mkdir()
        (tmp_path / name / "secret").write_text(name)
    (tmp_path / "root" / "d").mkdir()
    (tmp_path / "root" / "up").symlink_to("../outside")
    (tmp_path / "root" / "d" / "up").symlink_to("../../outside")
    (tmp_path / "root" / "absolute").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "magic").symlink_to("/proc/self/cwd")
    return tmp_path / "root"


def confined(root: Path, **rules: tuple[str, ...]) -> Confinement:
    return Confinement(PathRules.of(str(root), limits=WORKSPACE_LIMITS, **rules))  # type: ignore[arg-type]


OUT = ["up/secret", "d/up/secret", "absolute/secret", "magic/x", "d/../../outside/secret"]


@pytest.mark.parametrize("path", OUT)
def test_neither_reading_nor_pinning_follows_a_link_out(root: Path, path: str) -> None:
    box = confined(root)
    assert box._direct, "the kernel resolves here"
    with pytest.raises(PermissionError):
        os.close(box.open(path, READ))
    with pytest.raises(PermissionError), box.parent(path) as pinned:
        pytest.fail(f"{path} was pinned in {os.readlink(f'/proc/self/fd/{pinned.parent}')}")


@pytest.mark.parametrize("path", OUT)
def test_the_walk_does_not_go_above_the_root(root: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "has_openat2", lambda: False)
    box = confined(root)
    with pytest.raises(PermissionError):
        os.close(box.open(path, READ))
    with pytest.raises(PermissionError), box.parent(path) as pinned:
        pytest.fail(f"{path} was pinned in {os.readlink(f'/proc/self/fd/{pinned.parent}')}")


def test_a_restricted_path_is_closed_through_a_link_too(root: Path) -> None:
    (root / "closed").mkdir()
    (root / "closed" / "secret").touch()
    (root / "to-closed").symlink_to("closed")
    box = confined(root, restricted_paths=("closed",))
    for path in ("closed/secret", "to-closed/secret"):
        with pytest.raises(PermissionError):
            os.close(box.open(path, READ))


def test_a_sibling_is_not_inside(root: Path) -> None:
    with pytest.raises(PermissionError):
        os.close(confined(root).open(f"{root}-sibling/secret", READ))


@pytest.mark.parametrize("path", ["up", "absolute", "d/up", "up/below"])
def test_a_directory_is_not_opened_through_a_link(root: Path, path: str) -> None:
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match=path) as raised:
            os.close(open_directory(top, path))
        assert raised.value.errno in (errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
    finally:
        os.close(top)


def test_a_directory_that_became_a_link_is_not_emptied(root: Path) -> None:
    """Between the look that took it for a directory and the open, another process may put a link there."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(NotADirectoryError):
            os.close(_open_to_empty(top, "up"))
    finally:
        os.close(top)
