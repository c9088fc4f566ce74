"""The law: an ordinary user with rootless podman has the same workspaces: isolated, captured, restored, removed.

Where no such user can be lent the tests are skipped, and say why; WS_REQUIRE_ENGINES=rootless makes that a failure.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest import ID, IMAGE, Guest
from starving import ASK, HOG, parse
from ws.engine import RUNTIME
from ws.shim.place import python_command

PROJECT = {"main.c": "int main;\n", ".env": "TOKEN=1\n", ".git/HEAD": "ref: refs/heads/main\n"}


@pytest.fixture
def box(guest: Guest, request: pytest.FixtureRequest) -> Iterator[str]:
    """A workspace of a small project of the guest's."""
    name = f"box-{abs(hash(request.node.name)) % 10_000}"
    project = guest.home / name
    for path, text in PROJECT.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    guest.give(project)
    guest.says("create", str(project), "--name", name, "--image", IMAGE)
    yield name
    guest.ws("rm", name)


def shell(guest: Guest, box: str, script: str) -> str:
    return guest.says("exec", box, "--", "sh", "-c", f"export PATH=/bin; alias b=busybox; {script}")


def files(guest: Guest, box: str) -> list[str]:
    return shell(guest, box, "busybox find . -type f | busybox sort").split()


def kept(guest: Guest, name: str) -> str:
    """What stock git finds in the store."""
    shown = guest.run("git", "--git-dir", str(guest.home / ".local" / "state" / "ws" / "store"), "show", name)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.strip()


def test_home_belongs_to_the_workspaces_user(guest: Guest, box: str) -> None:
    """For each user that a workspace may have, in a new container and after a restore."""
    probe = "busybox stat -c %a:%u $HOME; echo kept > $HOME/x; busybox cat $HOME/x; busybox id -u"
    for user in ("1000", "0", "4321:77"):
        name = f"{box}-{user.partition(':')[0]}"
        guest.says("create", "--name", name, "--image", IMAGE, "--user", user)
        uid = user.partition(":")[0]
        assert shell(guest, name, probe).split() == [f"700:{uid}", "kept", uid]
        guest.says("rm", name)
    assert shell(guest, box, probe).split() == ["700:1000", "kept", "1000"]
    guest.says("snapshot", box)
    guest.says("restore", box, "base")
    assert shell(guest, box, probe).split() == ["700:1000", "kept", "1000"]


def test_a_workspace_has_the_project_and_nothing_of_the_host(guest: Guest, box: str) -> None:
    assert files(guest, box) == ["./.env", "./.git/HEAD", "./main.c"]
    status = dict(
        line.split(":\t", 1)
        for line in shell(guest, box, "busybox cat /proc/self/status").splitlines()
        if ":\t" in line
    )
    assert (status["CapEff"], status["CapBnd"]) == ("0" * 16, "0" * 16)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split()[0] != "0"
    shell(guest, box, "busybox rm -rf main.c .git; echo x > made")
    assert {path: (guest.home / box / path).read_text() for path in PROJECT} == PROJECT


def test_attributes_that_a_kernel_would_take_for_its_own_hide_nothing(guest: Guest, box: str) -> None:
    """Mounts of an ordinary user keep their notes as `user.overlay.*`, where any file may have some (HARDENING C9)."""
    project = guest.home / box
    (project / "below").mkdir()
    (project / "below" / "file").write_text("seen\n")
    for path in (project / "below", project / "below" / "file"):
        os.chown(path, ID, ID)
    for path in (project, project / "below"):  # a kernel looks for whiteouts that are attributes where the top says so
        os.setxattr(path, "user.overlay.opaque", b"x")
    os.setxattr(project / "main.c", "user.overlay.metacopy", b"")
    os.setxattr(project / "below" / "file", "user.overlay.whiteout", b"")
    os.setxattr(project / ".git", "user.overlay.redirect", b"/etc")
    guest.says("create", str(project), "--name", f"{box}-noted", "--image", IMAGE)
    listed = ["./.env", "./.git/HEAD", "./below/file", "./main.c"]
    assert files(guest, f"{box}-noted") == listed
    assert shell(guest, f"{box}-noted", "busybox cat main.c below/file .git/HEAD").count("\n") == 3
    shell(guest, f"{box}-noted", "busybox rm -rf .git below")
    guest.says("restore", f"{box}-noted", "base")
    assert files(guest, f"{box}-noted") == listed
    out = guest.home / f"{box}-out"
    guest.says("export", f"{box}-noted", "--dir", str(out))
    assert os.getxattr(out / "below", "user.overlay.opaque") == b"x"
    guest.says("rm", f"{box}-noted")


def test_damage_is_undone_and_the_rescue_too(guest: Guest, box: str) -> None:
    guest.says("snapshot", box, "--tag", "good")
    shell(guest, box, "busybox rm -rf main.c .git .env; busybox mkdir d; echo x > d/made")
    listed = guest.says("diff", box, "good", "--name-status").splitlines()
    assert {"D\tmain.c", "D\t.git/HEAD", "D\t.env", "A\td/made"} <= set(listed)
    guest.says("restore", box, "good")
    assert files(guest, box) == ["./.env", "./.git/HEAD", "./main.c"]
    guest.says("undo", box)
    assert files(guest, box) == ["./d/made"]
    guest.says("undo", box)
    assert files(guest, box) == ["./.env", "./.git/HEAD", "./main.c"]


def test_a_snapshot_beside_a_process_is_of_one_instant_and_leaves_it_running(guest: Guest, box: str) -> None:
    loop = "cd /workspace; n=0; while :; do n=$((n+1)); echo $n > one; echo $n > two; done"
    shell(guest, box, f"busybox setsid sh -c '{loop}' >/dev/null 2>&1 </dev/null & busybox sleep 0.3")
    identity = json.loads(guest.says("show", box, "--json"))["id"]
    for number in range(1, 5):
        guest.says("snapshot", box)
        one, two = (kept(guest, f"refs/workspaces/{identity}/{number}:data/{name}") for name in ("one", "two"))
        # The shell empties a file before it writes: then it has no number yet.
        assert not one or not two or int(one) - int(two) in (0, 1), "the files are of two instants"
    before = shell(guest, box, "busybox cat one two")
    assert shell(guest, box, "busybox sleep 0.2; busybox cat one two") != before
    guest.says("restore", box, "base")
    assert files(guest, box) == ["./.env", "./.git/HEAD", "./main.c"]
    assert "while" not in shell(guest, box, "busybox ps")


def test_a_fork_goes_its_own_way_and_its_changes_come_home_to_their_owner(guest: Guest, box: str) -> None:
    guest.says("fork", box, "--name", f"{box}-fork")
    shell(guest, f"{box}-fork", "echo new > added; echo changed > main.c")
    assert files(guest, box) == ["./.env", "./.git/HEAD", "./main.c"]
    guest.says("apply", f"{box}-fork")
    project = Path(guest.home / box)
    assert (project / "main.c").read_text() == "changed\n"
    assert (project / "added").stat().st_uid == ID
    guest.says("rm", f"{box}-fork")


def test_an_apply_is_undone_and_a_git_directory_keeps_its_configuration(guest: Guest, box: str) -> None:
    project = Path(guest.home / box)
    (project / "foreign").write_text("root's\n")  # an id that the user's namespace has no name for
    before = {path: (path.stat().st_uid, path.read_text()) for path in project.rglob("*") if path.is_file()}
    shell(
        guest,
        box,
        "echo changed > main.c; busybox rm .env; echo x > .git/config; busybox mkdir .git/hooks; echo x > .git/hooks/x;"
        " printf DIRC > .git/index; echo new > added",
    )
    done = json.loads(guest.says("apply", box, "--json"))
    assert done["withheld"] == [".git/config", ".git/hooks", ".git/index"]
    assert not (project / ".env").exists()
    guest.says("apply", "--undo", box)
    after = {path: (path.stat().st_uid, path.read_text()) for path in project.rglob("*") if path.is_file()}
    assert after == before


def test_what_was_kept_is_sound_and_nothing_is_left_of_what_was_removed(guest: Guest, box: str) -> None:
    guest.says("snapshot", box)
    assert json.loads(guest.says("verify", "--json"))["sound"]
    guest.says("gc")
    assert guest.says("rm", "--all", "--yes").split() == [box]
    assert guest.run("podman", "ps", "-aq").stdout == ""
    deadline = time.monotonic() + 20  # conmon cleans up after its container and then ends
    while {"loader", "conmon"} & set(guest.processes()):
        assert time.monotonic() < deadline, guest.processes()
        time.sleep(0.1)
    state = guest.home / ".local" / "state" / "ws"
    left = [
        str(path) for part in ("workspaces", "names", "run", "pending", "staging") for path in (state / part).iterdir()
    ]
    assert left == []


def test_one_that_takes_all_it_gets_leaves_its_user_and_others_some(guest: Guest, box: str) -> None:
    """The kernel counts twice: in the container's own user namespace, and for the user who has it (issue 10, A7)."""
    python = python_command(RUNTIME)
    other = f"{box}-other"
    guest.says("create", "--name", other, "--image", IMAGE)
    try:
        (guest.home / "hog.py").write_text(HOG)
        os.chown(guest.home / "hog.py", ID, ID)
        guest.says("cp", str(guest.home / "hog.py"), f"{box}:hog.py")
        shell(guest, box, f"{' '.join(python)} hog.py > said 2>&1 &")
        deadline = time.monotonic() + 60
        while "done" not in (said := shell(guest, box, "busybox cat said")):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        taken = parse(said)
        assert taken["inotify"] >= 16
        assert taken["aio"] == 0
        found = parse(guest.says("exec", other, "--", *python, "-c", ASK))
        assert {name for name, got in found.items() if got} >= {"inotify", "signals", "timers"}
        asked = guest.run(sys.executable, "-I", "-c", ASK)
        assert asked.returncode == 0, asked.stderr
        assert {name for name, got in parse(asked.stdout).items() if got} >= {"inotify", "signals", "timers", "pipes"}
        limits = shell(
            guest, box, "busybox cat /proc/sys/user/max_inotify_instances /proc/sys/user/max_user_namespaces"
        )
        assert limits.split() == [str(max(16, read_limit() // 8)), "0"]
    finally:
        guest.ws("rm", other)


def read_limit() -> int:
    return int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
