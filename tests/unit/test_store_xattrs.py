"""What a file brings along as `user.overlay.*` never tells the kernel anything, and comes back as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ws.errors import SnapshotFailed
from ws.store.xattrs import Namespace, read_layer_xattrs, write_xattrs

BROUGHT = ((b"user.k", b"v"), (b"user.overlay.opaque", b"y"), (b"user.overlay.overlay.x", b"1"))


@pytest.fixture
def fd(tmp_path: Path) -> int:
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened  # type: ignore[misc]
    os.close(opened)


@pytest.mark.parametrize("namespace", ["trusted", "user"])
def test_what_is_written_into_a_layer_is_read_from_it_again(fd: int, namespace: Namespace) -> None:
    write_xattrs(fd, BROUGHT, namespace=namespace)
    assert read_layer_xattrs(fd, namespace) == (BROUGHT, False)


def test_the_kernel_s_own_names_are_not_used_where_it_would_read_them(fd: int) -> None:
    write_xattrs(fd, BROUGHT, namespace="user")
    assert sorted(os.listxattr(fd)) == [
        "user.k", "user.overlay.overlay.opaque", "user.overlay.overlay.overlay.x",
    ]  # fmt: skip


def test_outside_of_layers_nothing_has_a_special_meaning(fd: int) -> None:
    write_xattrs(fd, BROUGHT)
    assert read_layer_xattrs(fd, "") == (BROUGHT, False)
    assert read_layer_xattrs(fd, "trusted") == (BROUGHT, False)


def test_an_opaque_directory_of_an_ordinary_user_s_mount_is_known(fd: int) -> None:
    os.setxattr(fd, "user.overlay.opaque", b"y")
    os.setxattr(fd, "user.overlay.origin", b"whatever")
    assert read_layer_xattrs(fd, "user") == ((), True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("user.overlay.redirect", b"/etc"),
        ("user.overlay.metacopy", b""),
        ("user.overlay.whiteout", b""),
        ("user.overlay.opaque", b"x"),
    ],
)
def test_notes_that_we_never_ask_for_are_refused(fd: int, key: str, value: bytes) -> None:
    os.setxattr(fd, key, value)
    with pytest.raises(SnapshotFailed, match=key):
        read_layer_xattrs(fd, "user")
