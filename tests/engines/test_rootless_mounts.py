"""The law: for an ordinary user every path means what it means to the caller, also on a mount that podman cannot see.

Podman's namespaces live as long as its pause process. Where / is not a shared mount, as here, they lack every mount
that is newer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest import ID, IMAGE, Guest


@pytest.fixture
def mounted(guest: Guest) -> Iterator[Path]:
    """A directory of the user's with a mount on it that is newer than podman's namespaces, and a file below it."""
    guest.says("ls")  # podman's pause process runs from now on
    path = guest.home / "mnt"
    path.mkdir()
    (path / "below").write_text("below the mount\n")
    guest.give(path)
    as_root = ["nsenter", "-t", str(guest.first), "-m", "-p"]
    options = f"size=64m,uid={ID},gid={ID},mode=755"
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=True)
    seen = guest.run("sh", "-c", f"echo above > {path}/above && ls {path}")
    assert seen.stdout == "above\n"
    hidden = guest.run("podman", "unshare", "ls", str(path))
    assert hidden.stdout == "below\n", "podman sees the mount: nothing is tested here"
    yield path
    subprocess.run([*as_root, "umount", "-l", str(path)], check=True)
    (path / "below").unlink(missing_ok=True)
    path.rmdir()


@pytest.mark.parametrize("named", ["by path", "as the working directory"])
def test_a_source_is_read_and_written_as_the_caller_sees_it(guest: Guest, mounted: Path, named: str) -> None:
    source = str(mounted) if named == "by path" else "."
    made = guest.ws("create", source, "--name", "mounted", "--image", IMAGE, cwd=mounted)
    assert made.returncode == 0, made.stderr
    try:
        assert guest.says("exec", "mounted", "--", "sh", "-c", "echo *") == "above\n"
        guest.says("exec", "mounted", "--", "sh", "-c", "echo changed > above; echo new > added")
        guest.says("apply", "mounted")
        assert guest.run("sh", "-c", f"cd {mounted}; cat above added; rm added; echo above > above").stdout == (
            "changed\nnew\n"
        )
    finally:
        guest.ws("rm", "mounted")
    assert sorted(os.listdir(mounted)) == ["below"]  # root, outside of the namespace, sees what lies below
    assert (mounted / "below").read_text() == "below the mount\n"


def test_exports_and_copies_land_where_the_caller_sees_them(guest: Guest, mounted: Path) -> None:
    guest.says("create", "--name", "exported", "--image", IMAGE)
    try:
        guest.says("exec", "exported", "--", "sh", "-c", "echo made > made")
        guest.says("export", "exported", "--dir", str(mounted / "dir"))
        guest.says("export", "exported", "--bundle", str(mounted / "bundle"))
        guest.says("cp", "exported:made", str(mounted / "copied"))
        assert guest.run("ls", str(mounted)).stdout.split() == ["above", "bundle", "copied", "dir"]
    finally:
        guest.ws("rm", "exported")
    assert os.listdir(mounted) == ["below"]


def test_a_ws_home_that_podman_cannot_see_is_refused(guest: Guest, mounted: Path) -> None:
    """The container would be given what lies below the mount."""
    env = {"WS_HOME": str(mounted / "state")}
    made = guest.ws("create", "--name", "x", "--image", IMAGE, env=env)
    assert made.returncode == 6, made.stderr
    assert "podman does not see" in made.stderr
    assert "podman system migrate" in made.stderr
    assert guest.ws("ls", env=env).stdout.count("\n") == 1
    assert guest.run("podman", "ps", "-aq").stdout == ""
    assert os.listdir(mounted) == ["below"]
