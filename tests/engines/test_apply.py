"""The law: a container's changes reach the host only through `ws apply`, as merged, owned and confined as promised."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from ws.engine.base import Engine
from ws.errors import ApplyConflict, InvalidRequest, NotFound
from ws.manager import Manager
from ws.workspace import Workspace


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
    (path / "notes").write_text("notes\n")
    (path / "build.log").write_text("host\n")
    subprocess.run(["git", "init", "-q", path], check=True)
    return path


@pytest.fixture
def manager(stage: Stage) -> Iterator[Manager]:
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        yield manager


@pytest.fixture
def box(manager: Manager, project: Path) -> Iterator[Workspace]:
    workspace = manager.create(project, name="box", exclude=("*.log",))
    yield workspace
    workspace.close()


def sh(box: Workspace, line: str) -> str:
    done = box.exec(["sh", "-c", line])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_changes_come_back_again_and_again(stage: Stage, box: Workspace, project: Path) -> None:
    sh(box, "echo two >> src/main.py; rm notes; mkdir new; echo x > new/x; echo inside > build.log; git add src")
    told = stage.run("apply", "box", "--dry-run")
    assert told.returncode == 0
    assert b"nothing was changed: --dry-run" in told.stderr
    assert (project / "notes").exists()
    done = stage.run("apply", "box")
    assert done.returncode == 0, done.stderr
    assert done.stdout == told.stdout
    lines = done.stdout.decode().splitlines()
    assert {"M\tsrc/main.py", "D\tnotes", "A\tnew/", "A\tnew/x", "A\t.git/index"} <= set(lines)
    assert (project / "src" / "main.py").read_text() == "one\ntwo\n"
    assert (project / "build.log").read_text() == "host\n"
    status = subprocess.run(["git", "-C", project, "status", "--porcelain"], capture_output=True, check=True, text=True)
    assert "A  src/main.py" in status.stdout
    # What was applied is the new middle: the same path may change again, on either side.
    sh(box, "echo three >> src/main.py")
    assert stage.run("apply", "box").stdout == b"M\tsrc/main.py\n"
    (project / "new" / "x").write_text("host\n")
    sh(box, "echo four >> src/main.py")
    assert stage.run("apply", "box").stdout == b"M\tsrc/main.py\n"
    assert (project / "new" / "x").read_text() == "host\n"
    assert stage.run("apply", "box").stdout == b""


def test_conflicts_are_all_listed_and_nothing_is_touched(stage: Stage, box: Workspace, project: Path) -> None:
    sh(box, "echo ours >> src/main.py; rm notes; echo fine > fine")
    (project / "src" / "main.py").write_text("theirs\n")
    (project / "notes").write_text("theirs\n")
    refused = stage.run("apply", "box")
    assert refused.returncode == 8
    assert refused.stderr.decode().splitlines() == [
        f"error: 2 conflicts with {project}; nothing there was touched",
        "  notes: deleted in the workspace, changed in the source",
        "  src/main.py: changed in the workspace, changed in the source",
        "hint: undo the change on one side, or take the workspace's changes with `ws export --patch`",
    ]
    assert not (project / "fine").exists()
    error = json.loads(stage.run("apply", "box", "--json", "--dry-run").stderr)["error"]
    assert error["code"] == "apply_conflict"
    assert [path for path, _ in error["conflicts"]] == ["notes", "src/main.py"]
    with pytest.raises(ApplyConflict) as caught:
        box.apply()
    assert len(caught.value.conflicts) == 2


def test_another_directory_can_be_the_target(stage: Stage, box: Workspace, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", project, other], check=True)
    (other / "only-here").write_text("x")
    sh(box, "echo two >> src/main.py")
    document = stage.data("apply", "box", "--to", str(other))
    assert [change["path"] for change in document["changes"]] == ["src/main.py"]
    assert document["to"] == str(other)
    assert (other / "src" / "main.py").read_text() == "one\ntwo\n"
    assert (project / "src" / "main.py").read_text() == "one\n"
    assert [change.path for change in box.apply().changes] == [b"src/main.py"]  # the source is still to come
    assert box.apply().changes == ()
    # What the source has by now is still to come elsewhere, in a directory and in a patch.
    third = tmp_path / "third"
    subprocess.run(["cp", "-a", other, third], check=True)
    (third / "src" / "main.py").write_text("one\n")
    assert stage.run("apply", "box", "--to", str(third)).stdout == b"M\tsrc/main.py\n"
    assert (third / "src" / "main.py").read_text() == "one\ntwo\n"
    assert b"+two\n" in stage.run("export", "box", "--patch").stdout
    refused = stage.run("apply", "box", "--to", str(tmp_path / "nowhere"))
    assert refused.returncode == 2


def test_a_workspace_without_a_source_needs_a_target(manager: Manager, stage: Stage, tmp_path: Path) -> None:
    with manager.create(remove_on_exit=True) as empty:
        sh(empty, "echo x > x")
        with pytest.raises(InvalidRequest, match="was made from no directory"):
            empty.apply()
        target = tmp_path / "target"
        target.mkdir()
        (target / "mine").write_text("mine")
        assert [change.path for change in empty.apply(target).changes] == [b"x"]
        assert sorted(os.listdir(target)) == ["mine", "x"]


def test_whatever_a_container_leaves_lands_inside_and_owned_by_the_host(box: Workspace, project: Path) -> None:
    canary = project.parent / "canary"
    canary.mkdir()
    (canary / "file").write_text("untouched")
    sh(
        box,
        f"ln -s {canary} out; ln -s ../canary up; rm -r src; ln -s {canary} src; chmod 4755 notes; cp /bin/true suid;"
        " chmod 6755 suid; mkdir -m 2777 shared; printf x > \"$(printf 'odd\\nname\\377')\"; mkfifo pipe",
    )
    box.apply()
    owner = project.stat()
    for path in project.rglob("*"):
        look = path.lstat()
        assert (look.st_uid, look.st_gid) == (owner.st_uid, owner.st_gid)
        assert not look.st_mode & (stat.S_ISUID | stat.S_ISGID) or path.is_symlink()
    assert os.readlink(project / "src") == str(canary)
    assert stat.S_IMODE((project / "suid").stat().st_mode) == 0o755
    # The workspace has a directory again where the host now has a link that leads out.
    sh(box, "rm src; mkdir src; echo overwritten > src/file")
    box.apply()
    assert not (project / "src").is_symlink()
    assert (canary / "file").read_text() == "untouched"
    assert os.listdir(canary) == ["file"]
    assert not [name for name in os.listdir(project) if name.startswith(".ws-apply")]


def test_a_fork_applies_what_it_inherited_too(box: Workspace, project: Path) -> None:
    sh(box, "echo parent > parent")
    fork = box.fork(name="fork")
    try:
        sh(fork, "echo fork > fork; rm notes")
        assert [change.path for change in fork.apply().changes] == [b"fork", b"notes", b"parent"]
        assert box.apply().changes == ()
    finally:
        fork.remove()


def test_what_git_would_run_stays_until_it_is_asked_for(
    stage: Stage, box: Workspace, project: Path, tmp_path: Path
) -> None:
    wire = tmp_path / "wire"
    sh(
        box,
        f"echo two >> src/main.py; git config core.fsmonitor 'touch {wire}; false';"
        f" printf '#!/bin/sh\\ntouch {wire}\\n' > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change",
    )
    done = stage.run("apply", "box")
    assert (done.returncode, done.stdout) == (0, b"M\tsrc/main.py\n")
    reason = "it is not among the files of a git directory that come unasked"
    assert done.stderr.decode().splitlines() == [
        f"note: withheld: .git/config: {reason}",
        f"note: withheld: .git/hooks/post-index-change: {reason}",
        "note: git may run or obey what is withheld; check it, and bring it with --with-git-config",
    ]
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    assert not wire.exists()
    # It is still reported, and can still be had, though all else has come already.
    assert stage.data("apply", "box", "--dry-run")["withheld"] == [".git/config", ".git/hooks/post-index-change"]
    assert stage.run("apply", "box", "--with-git-config").stdout == b"M\t.git/config\nA\t.git/hooks/post-index-change\n"
    subprocess.run(["git", "status"], cwd=project, check=True, capture_output=True)
    assert wire.exists()
    sh(box, "git config user.name agent")
    assert stage.run("apply", "box", "--with-git-config").stdout == b"M\t.git/config\n"


def test_a_forged_index_and_a_git_directory_in_parts_stay(stage: Stage, box: Workspace, project: Path) -> None:
    """The reproductions: an index that names a hook, and HEAD and config first, objects and refs later."""
    sh(box, "git add notes; git -c user.name=x -c user.email=x@x commit -qm first")
    assert box.apply().withheld == ()
    forge = (
        "import hashlib, struct\n"
        "name = b'.git/hooks/post-checkout'\n"
        "body = struct.pack('>4sII', b'DIRC', 2, 1) + struct.pack('>10I', 0, 0, 0, 0, 0, 0, 0o100755, 0, 0, 0)\n"
        "body += bytes.fromhex('e69de29bb2d1d6434b8b29ae775ad8c2e48c5391') + struct.pack('>H', len(name)) + name\n"
        "body += bytes(8 - (62 + len(name)) % 8)\n"
        "open('.git/index', 'wb').write(body + hashlib.sha1(body).digest())\n"
    )
    assert box.exec(["python3", "-c", forge]).exit_code == 0
    sh(box, "mkdir docs; git init -q --bare /tmp/trap; cp /tmp/trap/HEAD /tmp/trap/config docs")
    assert box.apply().withheld == (".git/index",)
    sh(box, "cp -r /tmp/trap/objects /tmp/trap/refs docs")
    done = stage.run("apply", "box")
    assert b"note: withheld: .git/index: it has an entry b'.git/hooks/post-checkout'" in done.stderr
    assert b"note: withheld: docs: " in done.stderr
    assert sorted(os.listdir(project / "docs")) == ["HEAD", "config"]
    # A new directory is made by the same rules.
    exported = box.export_dir(project.parent / "exported")
    assert exported.withheld == (".git/index", "docs")
    assert not (project.parent / "exported" / "docs").exists()
    index = (project.parent / "exported" / ".git" / "index").exists()
    assert index is False, "there was none when it was imported"


def test_an_apply_is_undone_by_name_and_by_directory(
    stage: Stage, manager: Manager, box: Workspace, project: Path, tmp_path: Path
) -> None:
    none = stage.run("apply", "--undo", "box")
    assert (none.returncode, none.stdout) == (3, b"")
    other = tmp_path / "other"
    subprocess.run(["cp", "-a", project, other], check=True)
    sh(box, "echo two >> src/main.py; rm notes; mkdir new; echo x > new/x")
    assert stage.run("apply", "box", "--to", str(other)).returncode == 0
    assert stage.run("apply", "box").returncode == 0
    told = stage.run("apply", "--undo", "box", "--dry-run")
    assert told.stdout == b"D\tnew/\nD\tnew/x\nA\tnotes\nM\tsrc/main.py\n"
    assert not (project / "notes").exists()
    # What was kept survives a collection, and goes with the workspace.
    manager.gc()
    (project / "src" / "main.py").write_text("mine\n")
    refused = stage.run("apply", "--undo", "box")
    assert refused.returncode == 8
    assert b"src/main.py: it changed since the apply" in refused.stderr
    assert not (project / "notes").exists()
    (project / "src" / "main.py").write_text("one\ntwo\n")
    assert stage.run("apply", "--undo", "box").stdout == told.stdout
    assert (project / "notes").read_text() == "notes\n"
    assert not (project / "new").exists()
    assert stage.run("apply", "--undo", "box", "--to", str(project)).returncode == 3
    assert [change.path for change in box.undo_apply(other).changes] == [b"new", b"new/x", b"notes", b"src/main.py"]
    assert (other / "notes").exists()
    # Everything is to be applied again.
    assert stage.run("apply", "box").stdout == b"A\tnew/\nA\tnew/x\nD\tnotes\nM\tsrc/main.py\n"
    assert stage.run("apply", "--undo", "box", "--with-git-config").returncode == 2
    assert stage.run("verify").returncode == 0


def test_a_handle_undoes_what_was_applied(box: Workspace, project: Path) -> None:
    sh(box, "rm -r src notes")
    box.apply()
    assert sorted(os.listdir(project)) == [".git", "build.log"]
    assert box.undo_apply().to == str(project)
    assert (project / "src" / "main.py").read_text() == "one\n"
    with pytest.raises(NotFound):
        box.undo_apply()
