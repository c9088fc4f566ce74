"""A workspace is a real container over a project as it is: made, used, killed, brought back, removed, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspaces import ids_inside
from ws import containers
from ws.errors import (
    CommandNotStarted,
    ImageNotFound,
    InvalidRequest,
    SourceRefused,
    WorkspaceExists,
    WorkspaceNotFound,
)
from ws.layout import EngineName
from ws.manager import Manager
from ws.overlay import in_user_namespace
from ws.workspace import Workspace

pytestmark = pytest.mark.rootless

PARTS = ("workspaces", "names", "layers", "run", "pending", "staging")


@pytest.fixture
def manager(engine_name: EngineName, session_home: str) -> Iterator[Manager]:
    manager = Manager(home=session_home, engine=engine_name)
    yield manager
    for info in manager.list():
        manager.remove(info.id)
    assert manager.engine().list(manager.home.root) == []
    assert left_in(manager) == []
    manager.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in mid-work: committed, dirty, untracked and ignored files, and a repository inside another."""
    path = tmp_path / "project"
    (path / "src").mkdir(parents=True)
    (path / "src" / "main.py").write_text("print('hello')\n")
    (path / ".gitignore").write_text("*.log\n")
    git = ["git", "-C", str(path), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    (path / "src" / "main.py").write_text("print('dirty')\n")
    (path / "untracked.txt").write_text("untracked\n")
    (path / "debug.log").write_text("ignored\n")
    subprocess.run(["git", "init", "-q", str(path / "nested")], check=True)
    (path / "empty").mkdir()
    (path / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("src/main.py")
    return path


def left_in(manager: Manager) -> list[str]:
    return [f"{part}/{name}" for part in PARTS for name in os.listdir(manager.home.at(part))]


def shell(box: Workspace, line: str) -> str:
    result = box.exec(["sh", "-c", line])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def fingerprint(path: Path) -> dict[str, tuple[int, float, bytes]]:
    found = {}
    for file in sorted(path.rglob("*")):
        status = file.lstat()
        data = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
        found[str(file)] = (status.st_mode, status.st_mtime, data)
    return found


def test_the_project_is_there_as_it_is_and_the_host_stays_untouched(manager: Manager, project: Path) -> None:
    before = fingerprint(project)
    with manager.create(project, name="demo", remove_on_exit=True) as box:
        assert shell(box, "cat src/main.py untracked.txt debug.log") == "print('dirty')\nuntracked\nignored\n"
        assert shell(box, "./run.sh; cat link; test -d empty && test -d nested/.git && echo all") == (
            "ran\nprint('dirty')\nall\n"
        )
        assert shell(box, "git status --porcelain | sort").splitlines() == [
            " M src/main.py",
            "?? link",
            "?? nested/",
            "?? run.sh",
            "?? untracked.txt",
        ]
        shell(box, "rm -rf src .git; echo new > new; chmod 600 untracked.txt; echo more >> debug.log")
        assert shell(box, "ls -A") == ".gitignore\ndebug.log\nempty\nlink\nnested\nnew\nrun.sh\nuntracked.txt\n"
    assert fingerprint(project) == before


def test_everything_belongs_to_the_workspaces_user(manager: Manager, project: Path) -> None:
    with manager.create(project, remove_on_exit=True) as box:
        uid, gid = ids_inside(box)
        assert shell(box, "id -u; stat -c %u:%g . src/main.py .git; pwd") == (
            f"{uid}\n{uid}:{gid}\n{uid}:{gid}\n{uid}:{gid}\n/workspace\n"
        )
    with manager.create(project, user="1234:5678", remove_on_exit=True) as box:
        uid, gid = ids_inside(box)
        assert gid - uid == 5678 - 1234
        assert shell(box, "id -u; id -g; stat -c %u:%g src; touch mine; stat -c %u:%g mine") == (
            f"{uid}\n{gid}\n{uid}:{gid}\n{uid}:{gid}\n"
        )


def test_a_user_of_the_image_is_found_by_name(manager: Manager) -> None:
    with manager.create(user="daemon", remove_on_exit=True) as box:
        assert shell(box, "id -un; touch here && stat -c %U here") == "daemon\ndaemon\n"
    with pytest.raises(InvalidRequest, match="nobody-of-this-name"):
        manager.create(user="nobody-of-this-name")
    assert left_in(manager) == []


def test_a_user_of_the_image_is_looked_up_once(manager: Manager) -> None:
    def ids_of_daemon() -> str:
        with manager.create(user="daemon", remove_on_exit=True) as box:
            return box.info().user

    shutil.rmtree(manager.home.at("users"))  # of a home that an earlier ws made
    assert ids_of_daemon() == "1:1"
    (kept,) = Path(manager.home.at("users")).iterdir()
    kept.write_text("1234 5678\n")
    assert ids_of_daemon() == "1234:5678", "what is kept is what counts"
    kept.write_text("torn by a power cut")
    assert ids_of_daemon() == "1:1"
    assert kept.read_text() == "1 1\n"


def test_root_is_a_user_of_the_container_only(manager: Manager) -> None:
    if manager.engine().name == "docker":
        with pytest.raises(InvalidRequest):
            manager.create(user="root")
        return
    with manager.create(user="root", remove_on_exit=True) as box:
        assert shell(box, "id -u; touch f; stat -c %u f") == "0\n0\n"
        layer = Path(manager.home.layer(box.record().upper)) / "data"
        # Root in podman's user namespace is the ordinary user outside of it: as we see it, 0.
        assert (layer / "f").stat().st_uid == 0 if in_user_namespace() else (layer / "f").stat().st_uid >= 100_000


def test_the_container_sees_the_workspace_and_nothing_else_of_ours(manager: Manager, project: Path) -> None:
    with manager.create(project, remove_on_exit=True) as box:
        mounts = shell(box, "cat /proc/self/mountinfo")
        (overlay,) = [line for line in mounts.splitlines() if " - overlay " in line and " /workspace " in line]
        assert manager.home.root not in overlay
        seen = shell(box, "ls -A /.ws; ls /.ws/run").split()
        assert seen == ["run", "runtime", *([] if in_user_namespace() else ["idmap"]), "kept", "shim.sock"]
        assert box.exec(["sh", "-c", "touch /.ws/runtime/x || touch /etc/x || touch /x"]).exit_code != 0
        shell(box, "touch /tmp/x ~/x && test ~ = /home/agent")


def test_commands_get_input_environment_and_a_place(manager: Manager) -> None:
    with manager.create(env={"A": "from create"}, remove_on_exit=True) as box:
        result = box.exec(["sh", "-c", 'cat; echo "$A $B"; pwd'], stdin=b"in\n", env={"B": "from exec"}, workdir="/tmp")
        assert result.stdout == "in\nfrom create from exec\n/tmp\n"
        names = {line.partition("=")[0] for line in shell(box, "env").splitlines()}
        assert names <= {
            "A",
            "HOME",
            "PATH",
            "LANG",
            "PWD",
            "SHLVL",
            "_",
            "OLDPWD",
            "USER",
            "HOSTNAME",
            "TERM",
            "container",
        }
        assert not names & set(os.environ) - {"HOME", "PATH", "LANG", "PWD", "SHLVL", "_", "OLDPWD", "USER", "TERM"}


def test_output_streams_as_it_comes(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        came: list[tuple[str, bytes, float]] = []
        box.exec(
            ["sh", "-c", "echo one; sleep 0.5; echo two >&2"],
            on_output=lambda stream, data: came.append((stream, data, time.monotonic())),
        )
        assert [(stream, data) for stream, data, _ in came] == [("stdout", b"one\n"), ("stderr", b"two\n")]
        assert came[1][2] - came[0][2] > 0.3


def test_a_failing_command_is_a_result_and_a_missing_one_an_error(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        assert box.exec(["sh", "-c", "exit 42"]).exit_code == 42
        with pytest.raises(CommandNotStarted):
            box.exec(["no-such-command"])
        with pytest.raises(InvalidRequest):
            box.exec([])
        with pytest.raises(InvalidRequest):
            box.exec("ls -la")


def test_a_timeout_ends_the_whole_group_and_keeps_the_partial_output(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        result = box.exec(["sh", "-c", "echo begun; sleep 100 & sleep 100"], timeout=0.5)
        assert result.timed_out
        assert result.stdout == "begun\n"
        assert "sleep" not in shell(box, "ps -eo comm")


def test_unstoppable_output_is_capped_with_constant_memory(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        result = box.exec(["sh", "-c", "head -c 50000000 /dev/zero; echo end >&2"], max_output_bytes=1000)
        assert result.exit_code == 0
        assert result.truncated
        assert len(result.stdout) == 1000
        assert result.stderr == "end\n"


@pytest.mark.parametrize("user", [None, "4321"])
def test_a_command_that_the_kernel_ends_for_want_of_memory_says_so(manager: Manager, user: str | None) -> None:
    if any("memory" in note for note in manager.engine().check().notes):
        pytest.skip("a rootless user without cgroup v2 has no limit on memory; `ws doctor` says so")
    hog = "head -c 200000000 /dev/zero | tail"
    with manager.create(memory="64m", remove_on_exit=True) as box:
        for line in ("kill -9 $$", "exit 137", "true"):
            assert not box.exec(["sh", "-c", line], user=user).oom_killed
        killed = box.exec(["sh", "-c", hog], user=user)
        assert (killed.exit_code, killed.oom_killed) == (137, True)
        assert not box.exec(["sh", "-c", "kill -9 $$"], user=user).oom_killed, "that was before"


def test_orphans_are_reaped_and_a_fork_bomb_stays_inside(manager: Manager) -> None:
    with manager.create(pids=64, remove_on_exit=True) as box:
        shell(box, "(setsid sleep 0.2 &) ; true")
        time.sleep(0.5)
        assert "Z" not in shell(box, "ps -eo stat")
        bomb = "b() { b | b & }; b; sleep 0.5; true"
        box.exec(["bash", "-c", bomb], timeout=3)
        assert box.ping()
    assert box.id not in [info.id for info in manager.list()]


def test_a_terminal_is_interactive_and_has_a_size(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box, box.terminal(["sh"], rows=33, columns=77) as terminal:
        terminal.send(b"stty size; exit 7\n")
        shown = b"".join(terminal)
        assert b"33 77" in shown
        assert terminal.result is not None
        assert terminal.result.exit_code == 7


def test_two_workspaces_of_one_source_share_the_base_and_nothing_else(manager: Manager, project: Path) -> None:
    with (
        manager.create(project, remove_on_exit=True) as one,
        manager.create(project, remove_on_exit=True) as two,
    ):
        assert one.record().base == two.record().base
        shell(one, "echo one > mine; rm untracked.txt")
        assert shell(two, "cat untracked.txt; ls mine 2>/dev/null || echo none") == "untracked\nnone\n"


def test_without_a_source_the_workspace_is_empty_and_writable(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        assert shell(box, "ls -A; echo x > f; ls") == "f\n"


def test_a_killed_container_comes_back_with_its_files(manager: Manager, project: Path) -> None:
    with manager.create(project) as box:
        shell(box, "echo kept > kept")
        container = box.record().container
        assert container is not None
        os.kill(container.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while container.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert box.info().status == "stopped"
        assert shell(box, "cat kept untracked.txt") == "kept\nuntracked\n"
        assert box.info().status == "running"


def test_a_container_removed_by_hand_is_replaced(manager: Manager) -> None:
    with manager.create() as box:
        shell(box, "echo kept > kept")
        container = box.record().container
        assert container is not None
        manager.engine().remove(container.id)
        assert [info.status for info in manager.list()] == ["stopped"]
        assert shell(box, "cat kept") == "kept\n"
        replaced = box.record().container
        assert replaced is not None
        assert replaced.id != container.id


def test_a_handle_of_another_process_finds_the_same_workspace(manager: Manager) -> None:
    with manager.create(name="shared") as box:
        shell(box, "echo x > f")
        code = "import sys, ws; m = ws.Manager(home=sys.argv[1]); print(m.open('shared').exec(['cat', 'f']).stdout)"
        output = subprocess.run([sys.executable, "-c", code, manager.home.root], capture_output=True, check=True)
        assert output.stdout == b"x\n\n"


def test_a_name_is_taken_once(manager: Manager) -> None:
    manager.create(name="one")
    with pytest.raises(WorkspaceExists):
        manager.create(name="one")
    manager.remove("one")
    manager.create(name="one")
    assert [info.name for info in manager.list()] == ["one"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"image": "localhost/no-such-image"}, ImageNotFound),
        ({"source": "/"}, SourceRefused),
        ({"source": os.path.expanduser("~")}, SourceRefused),
        ({"source": "/no/such/directory"}, InvalidRequest),
        ({"memory": "none"}, InvalidRequest),
        ({"name": "Not A Name"}, InvalidRequest),
    ],
)
def test_a_bad_request_is_refused_and_nothing_is_made(
    manager: Manager, options: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        manager.create(**options)
    assert manager.list() == []
    assert left_in(manager) == []
    assert manager.engine().list(manager.home.root) == []


def test_the_home_itself_is_refused_as_a_source(manager: Manager) -> None:
    for source in (manager.home.root, str(Path(manager.home.root).parent), manager.home.at("bases")):
        with pytest.raises(SourceRefused):
            manager.create(source)


def test_remove_works_twice_from_two_threads_and_with_a_tree_three_thousand_deep(manager: Manager) -> None:
    with manager.create(name="deep") as box:
        deep = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
        assert box.exec(["python3", "-c", deep]).exit_code == 0
        threads = [threading.Thread(target=box.remove) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert manager.list() == []
        with pytest.raises(WorkspaceNotFound):
            manager.remove("deep")
        with pytest.raises(WorkspaceNotFound):
            box.exec(["true"])


def test_remove_works_when_the_container_is_gone_already(manager: Manager) -> None:
    with manager.create() as box:
        container = box.record().container
        assert container is not None
        manager.engine().remove(container.id)
        box.remove()
        assert manager.list() == []


@pytest.mark.parametrize("user", [None, "4321"])
def test_a_killed_client_does_not_leave_its_command_running(manager: Manager, user: str | None) -> None:
    with manager.create(name="busy", remove_on_exit=True) as box:
        line = "(sleep 1000 &); exec sleep 1000"
        code = "import sys, ws; ws.open('busy').exec(['sh', '-c', sys.argv[1]], user=sys.argv[2] or None)"
        client = subprocess.Popen(
            [sys.executable, "-c", code, line, user or ""], env={**os.environ, "WS_HOME": manager.home.root}
        )
        deadline = time.monotonic() + 20
        while shell(box, "ps -eo comm").count("sleep") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        client.kill()
        client.wait()
        while "sleep" in shell(box, "ps -eo comm") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "sleep" not in shell(box, "ps -eo comm")


def test_an_expired_workspace_is_pruned_and_others_stay(manager: Manager) -> None:
    manager.create(name="short", ttl="1h")
    manager.create(name="long")
    assert manager.prune().workspaces == ()
    assert manager.prune(now=time.time() + 7200, dry_run=True).workspaces == ("short",)
    assert manager.prune(now=time.time() + 7200).workspaces == ("short",)
    assert [info.name for info in manager.list()] == ["long"]


def test_threads_share_a_workspace(manager: Manager) -> None:
    with manager.create(remove_on_exit=True) as box:
        wrong: list[str] = []

        def work(number: int) -> None:
            for turn in range(5):
                shown = box.exec(["echo", f"{number}.{turn}"]).stdout
                if shown != f"{number}.{turn}\n":
                    wrong.append(shown)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_record_of_a_workspace_is_plain_json(manager: Manager) -> None:
    with manager.create(name="plain") as box:
        record = json.loads(Path(manager.home.record(box.id)).read_text())
        assert record["name"] == "plain"
        assert containers.ready(box.record())
        assert textwrap.shorten(box.root, 20) == "/workspace"
