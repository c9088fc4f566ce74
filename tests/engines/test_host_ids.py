"""The law: every container runs under host ids of its own, and files show none of it (issue 10, A7)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_stage import warm_home
from engine_images import ensure_busybox
from ws.engine import RUNTIME, WORKSPACE
from ws.engine.base import Engine
from ws.errors import InvalidRequest
from ws.id_slots import DIRECTORY
from ws.layout import process_start
from ws.manager import Manager
from ws.remote.runtime import python_command
from ws.subordinate_ids import SLOT_IDS, read_span
from ws.workspace import Workspace

PYTHON = python_command(RUNTIME)


class Keeping(Manager):
    """A manager that knows the workspaces which a test made, to remove them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.made: list[Workspace] = []

    def create(self, *args: Any, **options: Any) -> Workspace:
        self.made.append(super().create(*args, **options))
        return self.made[-1]

    def keep(self, box: Workspace) -> Workspace:
        self.made.append(box)
        return box


@pytest.fixture
def manager(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[Keeping]:
    with Keeping(home=str(warm_home(tmp_path / "home", session_home)), engine=engine.name) as manager:
        yield manager
        for box in manager.made:
            box.remove()
        manager.drain_pool()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "dir").mkdir(parents=True)
    (path / "file").write_text("from the host\n")
    (path / "dir" / "other").write_text("too\n")
    return path


def pid_of(box: Workspace) -> int:
    container = box.record().container
    assert container is not None
    return container.pid


def host_ids(pid: int) -> tuple[int, int]:
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return int(status["Uid"].split()[0]), int(status["Gid"].split()[0])


def shell(box: Workspace, script: str, user: str | None = None) -> str:
    result = box.exec(["sh", "-c", script], user=user)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def as_host_user(uid: int, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import os; os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n{script}",
        ],
        capture_output=True,
        text=True,
    )


def test_two_workspaces_have_no_host_id_in_common_and_none_of_a_user_of_the_host(manager: Keeping) -> None:
    boxes = [manager.create() for _ in range(3)]
    ids = [host_ids(pid_of(box)) for box in boxes]
    first = {uid - box.record().ids.uid for (uid, _), box in zip(ids, boxes, strict=True)}
    assert len(first) == 3
    span = read_span()
    assert span is not None, "the range is recorded in /etc/subuid and /etc/subgid"
    assert all(span.first <= each < span.end and each % SLOT_IDS == 0 for each in first)
    assert all(
        uid - box.record().ids.uid == gid - box.record().ids.gid for (uid, gid), box in zip(ids, boxes, strict=True)
    )
    assert all(uid != box.record().ids.host_uid for (uid, _), box in zip(ids, boxes, strict=True))


def test_a_user_of_the_host_neither_reads_nor_writes_nor_kills_in_a_workspace(manager: Keeping, project: Path) -> None:
    box = manager.create(str(project))
    pid = pid_of(box)
    for uid in {1000, box.record().ids.host_uid}:
        for script in (
            f"os.listdir('/proc/{pid}/root{WORKSPACE}')",
            f"open('/proc/{pid}/root{WORKSPACE}/file').read()",
            f"open('/proc/{pid}/cwd/x', 'w')",
            f"os.listdir('/proc/{pid}/fd')",
            f"os.kill({pid}, 0)",
        ):
            done = as_host_user(uid, script)
            assert "PermissionError" in done.stderr, (uid, script, done)
    assert shell(box, "cat file") == "from the host"


def test_another_user_of_a_container_has_ids_of_the_container_too(manager: Keeping, project: Path) -> None:
    box = manager.create(str(project))
    first = host_ids(pid_of(box))[0] - box.record().ids.uid
    shell(box, "mkdir open && chmod 777 open")
    for user in ("www-data", "33", "33:33"):
        shell(box, f"touch open/{user}", user=user)
        made = os.stat(f"/proc/{pid_of(box)}/root{WORKSPACE}/open/{user}")
        assert (made.st_uid, made.st_gid) == (first + 33, first + 33)
    assert shell(box, "whoami", user="www-data") == "www-data"
    for user in ("70000", "70000:1000", "1000:70000", f"{first + SLOT_IDS + 1000}"):
        with pytest.raises(InvalidRequest):
            manager.create(user=user)
        if manager.engine().name == "docker":
            with pytest.raises(InvalidRequest):
                box.exec(["true"], user=user)
    snapshot = box.snapshot("with a file of another user")
    box.restore("base")
    box.restore(snapshot.id)
    made = os.stat(f"/proc/{pid_of(box)}/root{WORKSPACE}/open/33")
    assert (made.st_uid, made.st_gid) == (first + 33, first + 33)


def test_files_belong_to_the_user_inside_and_to_the_same_ids_on_disk_whichever_container_shows_them(
    manager: Keeping, project: Path
) -> None:
    box = manager.create(str(project))
    ids = box.record().ids
    shell(box, "touch made; mkdir new; echo more >> file; rm -r dir; ln made linked")
    good = box.snapshot("good")
    other = manager.keep(box.fork(good))
    shell(box, "rm -rf file new; echo x > z")
    box.restore(good)
    assert len({host_ids(pid_of(each)) for each in (box, other)}) == 2
    for each in (box, other):
        shell(each, 'for name in . file made new linked; do test -O "$name" && test -G "$name" || exit 1; done')
        shell(each, "echo again >> file && mkdir -p new/er && rm linked && mv made moved")
        each.snapshot("again")
        shell(each, "touch last")
    on_disk = {
        (found.st_uid, found.st_gid)
        for part in ("layers", "bases")
        for top, names, files in os.walk(manager.home.at(part))
        if "/data" in top
        for name in (*names, *files)
        if not stat.S_ISCHR((found := os.lstat(os.path.join(top, name))).st_mode)  # a whiteout is the kernel's
    }
    assert on_disk == {(ids.host_uid, ids.host_gid)}
    shell(other, "cat file | wc -l | grep -q 3")


def test_a_container_that_is_replaced_gets_other_ids_and_shows_the_same_files(manager: Keeping, project: Path) -> None:
    box = manager.create(str(project))
    shell(box, "echo kept > mine")
    pid = pid_of(box)
    before = host_ids(pid)
    os.kill(pid, signal.SIGKILL)
    while process_start(pid) is not None:
        time.sleep(0.01)
    assert shell(box, "cat mine; test -O mine && echo own") == "kept\nown"
    assert host_ids(pid_of(box)) != before


def test_warm_containers_have_ids_of_their_own(manager: Keeping, project: Path) -> None:
    manager.fill_pool(2)
    boxes = [manager.create(str(project)) for _ in range(2)]
    assert all(box.info().warm for box in boxes)
    assert len({host_ids(pid_of(box)) for box in boxes}) == 2
    for box in boxes:
        assert shell(box, "test -O file && echo own > new && cat new") == "own"


def test_the_slot_of_a_workspace_that_was_removed_is_free(manager: Keeping) -> None:
    box = manager.create()
    container = box.record().container
    assert container is not None
    slot = Path(DIRECTORY, str(host_ids(container.pid)[0] - box.record().ids.uid))
    assert str(container.pid) in slot.read_text()
    run = manager.home.run(container.key)
    assert run in slot.read_text()
    manager.made.pop().remove()
    assert not os.path.exists(run)
    assert not os.path.exists(f"/proc/{container.pid}")


def test_the_user_has_a_name_and_a_home(manager: Keeping, engine: Engine) -> None:
    box = manager.create()
    assert shell(box, "whoami; id -un; id -gn; cd ~ && pwd && touch x && git config --global user.name me") == (
        "agent\nagent\nagent\n/home/agent"
    )
    assert shell(box, "stat -c %U ~ .") == "agent\nagent"
    assert shell(box, "stat -c %U /etc/passwd") == "root"
    named = manager.create(user="www-data")
    assert shell(named, "whoami; touch x; test -O x") == "www-data"
    unknown = manager.create(user="4321:4321")
    shell(unknown, "touch x; test -O x")


def test_an_image_without_users_works_the_same(manager: Keeping, engine: Engine, project: Path) -> None:
    box = manager.create(str(project), image=ensure_busybox(engine))
    assert box.exec(["/bin/busybox", "sh", "-c", "busybox cat file && echo x > y"]).exit_code == 0
    assert box.snapshot("one").id
