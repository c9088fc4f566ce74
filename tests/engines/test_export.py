"""The law: what leaves a workspace is exact and harmless, and a bundle is the same workspace somewhere else."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from ws.engine.base import Engine
from ws.manager import Manager
from ws.removing import remove_tree
from ws.workspace import Workspace

LOOK = (
    "find . -mindepth 1 -printf '%p %y %m %u:%g %T@ %s %l\\n' | sort;"
    " find . -type f -print0 | sort -z | xargs -0 sha256sum"
)
DEEP = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').write('reached')"


@pytest.fixture
def stage(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(warm_home(tmp_path / "home", session_home), engine.name)
    yield stage
    stage.run("rm", "--all", "--yes")
    assert stage.left() == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "src").mkdir(parents=True)
    (path / "src" / "main.py").write_text("one\n")
    (path / "picture").write_bytes(bytes(range(256)) * 20)
    (path / "old").write_text("old\n")
    subprocess.run(["git", "init", "-q", path], check=True)
    return path


@pytest.fixture
def manager(stage: Stage) -> Iterator[Manager]:
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        yield manager


@pytest.fixture
def box(manager: Manager, project: Path) -> Iterator[Workspace]:
    workspace = manager.create(project, name="box")
    yield workspace
    workspace.close()


def sh(box: Workspace, line: str) -> str:
    done = box.exec(["sh", "-c", line])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_patch_makes_the_source_what_the_workspace_is(stage: Stage, box: Workspace, project: Path) -> None:
    sh(
        box,
        "echo two >> src/main.py; printf 'a\\0b' > picture; rm old; chmod +x src/main.py; ln -s src/main.py link;"
        " printf 'no end' > 'with space'; mkdir empty; git add src",
    )
    done = stage.run("export", "box", "--patch")
    assert done.returncode == 0
    assert b"git has no words for it: empty\n" in done.stderr
    assert b"git has no words for it: .git/index\n" in done.stderr
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=project, input=done.stdout, check=True)
    assert (project / "src" / "main.py").read_text() == "one\ntwo\n"
    assert os.access(project / "src" / "main.py", os.X_OK)
    assert (project / "picture").read_bytes() == b"a\0b"
    assert os.readlink(project / "link") == "src/main.py"
    assert (project / "with space").read_text() == "no end"
    assert not (project / "old").exists()
    document = stage.data("export", "box", "--patch")
    assert document["patch"].encode() == done.stdout
    assert "empty" in document["left_out"]
    # The patch and an apply agree: nothing but what git has no words for is left to do.
    assert {change.path for change in box.apply().changes} >= {b"empty", b".git/index"}
    assert b"src/main.py" not in {change.path for change in box.apply().changes}


def test_a_directory_is_all_of_it_and_belongs_to_the_caller(stage: Stage, box: Workspace, tmp_path: Path) -> None:
    sh(
        box,
        "cp /bin/true suid; chmod 6755 suid; ln -s /etc/passwd out; mkdir -m 700 closed; echo x > closed/x;"
        " mkfifo pipe; ln src/main.py hard; touch -d @1234567890 old; printf x > \"$(printf 'odd\\nname\\377')\"",
    )
    done = stage.run("export", "box", "--dir", str(tmp_path / "result"))
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path / 'result'}\n")
    result = tmp_path / "result"
    for path in [result, *result.rglob("*")]:
        look = path.lstat()
        assert (look.st_uid, look.st_gid) == (os.geteuid(), os.getegid())
        assert not look.st_mode & 0o6000
    assert stat.S_IMODE((result / "suid").stat().st_mode) == 0o755
    assert os.readlink(result / "out") == "/etc/passwd"
    assert (result / "old").stat().st_mtime == 1234567890
    assert (result / ".git" / "HEAD").exists()
    assert os.path.samefile(result / "hard", result / "src" / "main.py")
    assert b"odd\nname\xff" in os.listdir(os.fsencode(result))
    assert stage.run("export", "box", "--dir", str(result)).returncode == 4
    assert sorted(os.listdir(tmp_path)) == ["home", "project", "result"]


def test_what_git_would_run_is_in_no_directory_and_no_patch(
    stage: Stage, box: Workspace, project: Path, tmp_path: Path
) -> None:
    hook = "printf '#!/bin/sh\\n' > .git/hooks/pre-commit"
    sh(box, f"git config core.fsmonitor true; {hook}; ln .git/hooks/pre-commit hard; git init -q --bare trap")
    result = tmp_path / "result"
    done = stage.run("export", "box", "--dir", str(result))
    assert b"note: withheld: .git/hooks/pre-commit: " in done.stderr
    assert (result / ".git" / "config").read_bytes() == (project / ".git" / "config").read_bytes()
    assert not (result / ".git" / "hooks" / "pre-commit").exists()
    assert (result / "hard").read_text() == "#!/bin/sh\n"
    assert not (result / "trap").exists()
    patch = stage.data("export", "box", "--patch")
    assert {".git/config", "trap"} <= set(patch["withheld"])
    assert "trap" not in patch["patch"]
    everything = stage.data("export", "box", "--dir", str(tmp_path / "all"), "--with-git-config")
    assert everything["withheld"] == []
    assert os.path.samefile(tmp_path / "all" / ".git" / "hooks" / "pre-commit", tmp_path / "all" / "hard")
    # Of a bundle nobody knows who configured it.
    box.export_bundle(tmp_path / "box.bundle")
    assert stage.run("import", str(tmp_path / "box.bundle"), "--name", "again").returncode == 0
    told = stage.data("export", "again", "--dir", str(tmp_path / "again"))
    assert ".git/config" in told["withheld"]
    assert not (tmp_path / "again" / ".git" / "config").exists()


def test_a_bundle_is_the_same_workspace_elsewhere(
    stage: Stage, box: Workspace, session_home: str, tmp_path: Path
) -> None:
    sh(box, "echo two >> src/main.py; ln src/main.py hard; mkdir empty")
    box.snapshot("first", tag="v1")
    sh(box, "rm -rf src .git; head -c 18000000 /dev/urandom > large; chmod 4711 picture; touch -d @77 old")
    live = sh(box, LOOK)
    exported = stage.data("export", "box", "--bundle", str(tmp_path / "box.bundle"))
    assert exported["snapshots"] == 2
    assert stage.run("export", "box", "--bundle", str(tmp_path / "box.bundle")).returncode == 4

    there = Stage(warm_home(tmp_path / "there", session_home), stage.engine)
    try:
        assert there.run("import", str(tmp_path / "box.bundle")).stdout == b"box\n"
        with Manager(home=str(there.home), engine=there.engine) as manager, manager.open("box") as arrived:
            assert sh(arrived, LOOK) == live
            arrived.restore("v1")
            assert sh(arrived, "cat src/main.py; stat -c %h hard; git rev-parse --git-dir") == "one\ntwo\n2\n.git\n"
            arrived.undo()
            assert sh(arrived, LOOK) == live
        assert [entry["id"] for entry in there.data("log", "box")] == [
            entry["id"] for entry in stage.data("log", "box")
        ]
        assert there.run("apply", "box").returncode == 2
        taken = there.run("import", str(tmp_path / "box.bundle"))
        assert taken.returncode == 4
        other = there.run("import", str(tmp_path / "box.bundle"), "--name", "other", "--image", "localhost/no-such")
        assert other.returncode == 3
        (tmp_path / "cut").write_bytes((tmp_path / "box.bundle").read_bytes()[:-4000])
        cut = there.run("import", str(tmp_path / "cut"), "--name", "cut", "--json")
        assert cut.returncode == 2
        assert json.loads(cut.stderr)["error"]["code"] == "bundle_refused"
        assert there.names() == ["box"]
        assert there.run("verify").returncode == 0
        fsck = ["git", "--git-dir", there.home / "store", "fsck", "--strict"]
        subprocess.run(fsck, check=True, capture_output=True)
    finally:
        there.run("rm", "--all", "--yes")
    assert there.left() == []


def test_what_was_deleted_of_a_git_directory_is_as_it_was_imported(
    stage: Stage, box: Workspace, project: Path, tmp_path: Path
) -> None:
    """As an apply would leave it: a new directory has no fewer of the user's hooks."""
    sh(box, "rm -r .git/hooks .git/info .git/config; rm old")
    exported = box.export_dir(tmp_path / "result")
    assert exported.withheld == (".git/config", ".git/hooks", ".git/info/exclude")
    left, right = (
        sorted(str(path.relative_to(top)) for path in top.rglob("*")) for top in (project, tmp_path / "result")
    )
    assert set(left) - set(right) == {"old"}


def test_a_patch_on_a_terminal_forges_nothing(stage: Stage, box: Workspace) -> None:
    sh(box, "printf 'a\\033]0;title\\007b\\rc\\302\\233d\\342\\200\\256e\\n' > src/main.py")
    raw = stage.run("export", "box", "--patch").stdout
    assert b"\x1b]0;title\x07b\rc\xc2\x9bd" in raw, "a program gets the bytes"
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "ws", "export", "box", "--patch"]
    shell = subprocess.Popen(words, env=stage.env, stdout=follower, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while part := os.read(leader, 65536):
            shown += part
    _, said = shell.communicate()
    os.close(leader)
    assert shell.returncode == 0
    assert b"+a\\x1b]0;title\\x07b\\rc\\x9bd\\u202ee\r\n" in shown
    assert not {byte for byte in shown if byte < 32} - {9, 10, 13}
    assert b"\xc2\x9b" not in shown
    assert b"control characters are shown escaped" in said


def test_three_thousand_levels_leave_and_arrive(manager: Manager, stage: Stage, tmp_path: Path) -> None:
    with manager.create(name="deep") as box:
        done = box.exec(["python3", "-c", DEEP])
        assert done.exit_code == 0, done.stderr
        box.export_dir(tmp_path / "result")
        remove_tree(str(tmp_path / "result"))
        box.export_bundle(tmp_path / "deep.bundle")
        again = manager.import_bundle(tmp_path / "deep.bundle", name="again")
        bottom = "import os\nfor _ in range(3000): os.chdir('d')\nprint(open('bottom').read())"
        assert again.exec(["python3", "-c", bottom]).stdout == "reached\n"
        assert again.diff("base").listed()
        for workspace in (again, box):
            workspace.remove()
    for part in ("bases", "layers"):
        for name in os.listdir(stage.home / part):
            remove_tree(str(stage.home / part / name))  # deeper than pytest can remove
