"""The law: the line of snapshots is told as it is, a restore brings everything back, and every verb keeps its word."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import DEADLINE_S, Stage, warm_home
from ws.engine.base import Engine
from ws.layout import Home, resolve_name
from ws.manager import Manager
from ws.stacks import read_stack
from ws.store.repository import Store

LOOK = "find . -mindepth 1 -printf '%p %y %m %T@ %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum"


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
    (path / "src" / "main.py").write_text("print('one')\n")
    (path / ".gitignore").write_text("*.log\n")
    (path / "debug.log").write_text("ignored\n")
    subprocess.run(["git", "init", "-q", path], check=True)
    return path


@pytest.fixture
def box(stage: Stage, project: Path) -> str:
    assert stage.run("create", str(project), "--name", "box").returncode == 0
    return "box"


def sh(stage: Stage, box: str, line: str) -> str:
    """A command in the workspace, past the command line, which is not what is judged by it."""
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        workspace = manager.open(box)
        done = workspace.exec(["sh", "-c", line])
        workspace.close()
    assert done.exit_code == 0, done.stderr
    return done.stdout


def said(stage: Stage, *words: str) -> str:
    done = stage.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_damage_and_rescue(stage: Stage, box: str) -> None:
    before = sh(stage, box, LOOK)
    good = said(stage, "snapshot", box, "-m", "tests pass", "--tag", "green").strip()
    assert len(good) == 12
    sh(stage, box, "rm -rf src .git debug.log; echo broken > new; chmod 000 .gitignore")
    letters = said(stage, "diff", box, "--name-status")
    assert {"D\tdebug.log", "D\tsrc/main.py", "A\tnew", "P\t.gitignore"} < set(letters.splitlines())
    plan = said(stage, "restore", box, "--dry-run").splitlines()
    assert plan[0] == "keep the workspace as it is now in a safety snapshot"
    assert "new" in sh(stage, box, "ls")

    assert said(stage, "restore", box) == ""
    assert sh(stage, box, LOOK) == before
    assert said(stage, "undo", box) == ""
    assert sh(stage, box, "cat new") == "broken\n"
    plan = stage.run("undo", box, "--dry-run")
    assert plan.stdout.decode().splitlines()[-1] == "switch /workspace to green"
    assert plan.stderr == b"nothing was restored: --dry-run\n"
    assert sh(stage, box, "cat new") == "broken\n"
    undone = stage.data("undo", box)
    assert undone["target"]["name"] == "green"
    assert undone["safety"] is None, "nothing had changed since the last undo"
    told = stage.data("undo", box, "--dry-run")
    assert (told["target"]["name"], told["dry_run"]) == ("the state before the last restore", True)
    assert sh(stage, box, LOOK) == before
    assert said(stage, "diff", box) == ""


def test_the_log_tells_restores_and_forks(stage: Stage, box: str) -> None:
    assert said(stage, "log", box) == ""
    sh(stage, box, "echo two > two")
    first = said(stage, "snapshot", box, "-m", "first", "--tag", "v1").strip()
    sh(stage, box, "echo three > three")
    assert stage.run("restore", box, "v1").returncode == 0
    fork = said(stage, "fork", box, "--at", "v1", "--name", "other").strip()
    assert fork == "other"
    assert sh(stage, "other", "ls") == "debug.log\nsrc\ntwo\n"

    header, *lines = said(stage, "log", box).splitlines()
    assert header.split() == ["AGE", "ID", "TAG", "FILES", "SIZE", "NOTES", "MESSAGE"]
    assert re.search(r"then v1 was restored +before restoring v1$", lines[0])
    assert lines[1].split()[1:4] == [first, "v1", "1"]
    assert re.search(r" here, restored \d+s ago, forked as other  first$", lines[1])
    assert f"base: {stage.data('show', box)['source']}" in lines[2]
    document = stage.data("log", box)
    assert [entry["kind"] for entry in document] == ["safety", "snapshot", "base"]
    assert [entry["head"] for entry in document] == [False, True, False]
    assert document[1]["forks"] == ["other"]
    # The fork says itself where it came from, and is told of when it is gone.
    log = stage.run("log", "other")
    assert (log.stdout, log.stderr) == (b"", b"other has no snapshots yet; forked from box at v1\n")
    assert "forked from  box at v1" in said(stage, "show", "other")
    assert stage.data("show", "other")["origin"] == {"workspace": "box", "snapshot": "v1"}
    said(stage, "snapshot", "other")
    assert "forked from box at v1" in said(stage, "log", "other").splitlines()[2]
    assert stage.data("log", "other")[1]["forked_from"] == {"workspace": "box", "snapshot": "v1"}
    said(stage, "rm", "other")
    assert stage.data("log", box)[1]["forks"] == ["other"]
    sh(stage, box, "echo four > four")
    said(stage, "snapshot", box)
    assert "grew from v1" in said(stage, "log", box).splitlines()[1]


def test_the_log_tells_every_restore_also_where_nothing_had_changed(stage: Stage, box: str) -> None:
    sh(stage, box, "echo two > two")
    said(stage, "snapshot", box, "--tag", "green")
    assert stage.run("restore", box, "base").returncode == 0
    for words in (["restore", box, "green"], ["undo", box], ["undo", box]):
        assert stage.data(*words)["safety"] is None
    newest, oldest = stage.data("log", box)
    assert (newest["kind"], oldest["kind"]) == ("snapshot", "base")
    assert (len(newest["restores"]), len(oldest["restores"])) == (2, 2)
    assert sorted(oldest["restores"] + newest["restores"])[-1] == newest["restores"][-1]
    first, last = said(stage, "log", box).splitlines()[1:]
    assert re.search(r" here, restored \d+s ago \(2 times\) ", first)
    assert re.search(r" restored \d+s ago \(2 times\) ", last)


def test_a_diff_is_text_statistic_letters_or_json(stage: Stage, box: str) -> None:
    sh(stage, box, r"""echo "print('two')" > src/main.py; printf 'a\0b' > bin; ln -s /etc/passwd link; mkdir empty""")
    text = said(stage, "diff", box)
    assert "-print('one')\n+print('two')\n" in text
    assert "Binary files /dev/null and b/bin differ\n" in text
    assert "\x1b" not in text
    assert " src/main.py | 2 +-\n" in said(stage, "diff", box, "base", "--stat")
    document = stage.data("diff", box, "base", "--stat")
    assert (document["from"], document["to"]) == ("base", "live")
    changes = {change["path"]: change for change in document["changes"]}
    assert changes["src/main.py"]["letter"] == "M"
    assert (changes["src/main.py"]["added"], changes["src/main.py"]["removed"]) == (1, 1)
    assert changes["bin"]["binary"] is True
    assert changes["link"]["new"]["type"] == "symlink"
    assert changes["empty"]["new"]["type"] == "directory"
    one = said(stage, "snapshot", box).strip()
    sh(stage, box, "rm bin")
    said(stage, "snapshot", box, "--tag", "two")
    assert said(stage, "diff", box, one, "two", "--name-status") == "D\tbin\n"
    assert stage.run("diff", box, "--stat", "--name-status").returncode == 2


def test_on_a_terminal_a_diff_has_colours_and_nothing_that_a_file_holds_reaches_it(
    stage: Stage, box: str, tmp_path: Path
) -> None:
    sh(stage, box, r"printf 'x\033]0;pwned\007\ty\n' > src/main.py")

    def seen(**env: str) -> str:
        main, side = pty.openpty()
        words = [sys.executable, "-m", "ws", "diff", box]
        ours = {key: value for key, value in stage.env.items() if key != "PAGER"}
        environment = {**ours, "TERM": "xterm", **env}
        running = subprocess.Popen(words, env=environment, stdin=side, stdout=side, stderr=subprocess.DEVNULL)
        os.close(side)
        data = b""
        while True:
            try:
                part = os.read(main, 4096)
            except OSError:
                break
            data += part
        os.close(main)
        assert running.wait(DEADLINE_S) == 0
        return data.decode()

    coloured = seen(PAGER="cat")
    assert "\x1b[32m+x\\x1b]0;pwned\\x07\ty\x1b[0m" in coloured
    assert "\x1b]0;" not in coloured
    assert "\x1b" not in seen(PAGER="cat", NO_COLOR="1")
    assert "paged: +x" in seen(PAGER="sed 's/^/paged: /'", NO_COLOR="1")
    # Without a pager that runs it is shown all the same.
    assert "+x" in seen(PAGER="no-such-pager", NO_COLOR="1")
    assert "+x" in seen(PAGER="/etc/passwd", NO_COLOR="1")
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in ("podman", "docker"):  # and no less
        if found := shutil.which(program):
            (bare / program).symlink_to(found)
    assert "+x" in seen(PATH=str(bare), NO_COLOR="1")


def test_a_command_that_fails_is_rolled_back_and_one_that_does_not_is_kept(stage: Stage, box: str) -> None:
    for words in (["exec", box, "--rollback-on-failure"], ["exec", "--rollback-on-failure", "--timeout=1m", box]):
        done = stage.run(*words, "--", "sh", "-c", "rm -rf src; echo partial; exit 7")
        assert (done.returncode, done.stdout) == (7, b"partial\n")
        assert b"note: the command failed; box is back at " in done.stderr
        assert sh(stage, box, "ls src") == "main.py\n"
    assert stage.run("undo", box).returncode == 0
    assert stage.run("exec", box, "--", "test", "-e", "src").returncode == 1
    assert stage.run("undo", box).returncode == 0
    kept = stage.run("exec", box, "--json", "--rollback-on-failure", "--", "touch", "kept")
    assert json.loads(kept.stdout)["rolled_back"] is None
    assert stage.run("exec", box, "--rollback-on-failure", "--", "no-such-command").returncode == 10
    late = stage.run("exec", box, "--rollback-on-failure", "--timeout", "0.5", "--", "sh", "-c", "rm kept; sleep 60")
    assert late.returncode == 124
    assert sh(stage, box, "ls kept") == "kept\n"


def test_mistakes_are_named_and_change_nothing(stage: Stage, box: str) -> None:
    said(stage, "snapshot", box, "--tag", "once")
    other = said(stage, "fork", box, "--at", "once", "--name", f"{box}-other").strip()
    others_id = said(stage, "snapshot", other).strip()
    stage.run("rm", other)
    for words, status, code in (
        (["restore", box, "nosuch"], 3, "snapshot_not_found"),
        (["restore", box, "~9"], 3, "snapshot_not_found"),
        (["restore", box, others_id], 3, "snapshot_not_found"),
        (["restore", box, ""], 3, "snapshot_not_found"),
        (["snapshot", box, "--tag", "once"], 4, "tag_exists"),
        (["snapshot", box, "--tag", "base"], 2, "invalid_name"),
        (["undo", box], 3, "snapshot_not_found"),
        (["fork", box, "--name", box], 4, "workspace_exists"),
        (["diff", box, "once", "nosuch"], 3, "snapshot_not_found"),
        (["export", box], 2, "invalid_request"),
    ):
        done = stage.run(*words, "--json")
        error = json.loads(done.stderr)["error"]
        assert (done.returncode, error["code"]) == (status, code), words
        assert error["hint"], words
        if words[0] == "restore":
            assert repr(words[2]) in error["message"], "what was asked for is named as it was"
    sh(stage, box, "head -c 2000000 /dev/zero > large")
    limited = stage.run("snapshot", box, "--max-file", "1m")
    assert limited.returncode == 9
    assert b"large" in limited.stderr
    assert len(stage.data("log", box)) == 2


def test_sockets_are_named_and_left_out(stage: Stage, box: str) -> None:
    sh(stage, box, "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"")
    done = stage.run("snapshot", box, "--json")
    assert json.loads(done.stdout)["skipped"] == ["s: a socket"]
    assert done.stderr == b"note: left out s: a socket\n"


def test_completion_knows_tags_and_ids(stage: Stage, box: str) -> None:
    taken = said(stage, "snapshot", box, "--tag", "green").strip()
    for line in (f"ws restore {box} ", f"ws fork {box} --at "):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        env = {**stage.env, "_WS_COMPLETE": "bash_complete", **words}
        done = subprocess.run([sys.executable, "-m", "ws"], env=env, capture_output=True, text=True, check=True)
        assert {"plain,base", "plain,green", f"plain,{taken}"} <= set(done.stdout.splitlines())


def test_what_is_kept_is_verified_and_damage_is_named_with_what_it_touches(stage: Stage, box: str) -> None:
    sh(stage, box, "head -c 4000 /dev/urandom | base64 > precious")
    said(stage, "snapshot", box, "--tag", "first")
    sh(stage, box, "echo more > more")
    said(stage, "snapshot", box, "--tag", "second")
    sh(stage, box, "rm precious")
    said(stage, "snapshot", box, "--tag", "third")
    done = stage.run("verify")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"sound: 1 workspaces, 4 snapshots, 1 bases, 3 layers\n"

    home = Home(str(stage.home))
    changed = stage.data("diff", box, "base", "first")["changes"]
    oid = bytes.fromhex(next(change["new"]["id"] for change in changes_at(changed, "precious")))
    with Store(home.store) as store:
        pack = next(pack for pack in store.all_packs() if pack.find(oid) >= 0)
        with open(pack.name + ".pack", "r+b") as file:
            file.seek(pack.index.offset(pack.find(oid)) + 200)
            file.write(b"\xff\x00\xff\x00")
    broken = stage.run("verify", box, "--json")
    assert broken.returncode == 7
    report = json.loads(broken.stdout)
    (finding,) = report["findings"]
    assert finding["path"] == "precious"
    assert oid.hex() in finding["problem"]
    assert finding["touches"] == ["box/first", "box/second"]
    told = stage.run("verify")
    assert told.returncode == 7
    assert b"precious: object " in told.stdout
    assert b"  touches box/first\n" in told.stdout


def changes_at(changes: list[dict[str, object]], path: str) -> list[dict[str, object]]:
    return [change for change in changes if change["path"] == path]


def test_a_base_that_was_tampered_with_is_found(stage: Stage, box: str) -> None:
    (base,) = os.listdir(stage.home / "bases")
    victim = stage.home / "bases" / base / "data" / "src" / "main.py"
    times = victim.stat()
    victim.write_text("print('two')\n")
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    (stage.home / "bases" / base / "data" / "planted").write_text("x")
    report = json.loads(stage.run("verify", "--json").stdout)
    problems = {os.path.basename(one["path"]): one["problem"] for one in report["findings"]}
    assert problems["main.py"] == "has other bytes"
    assert problems["planted"] == "does not belong there"


def test_a_layer_that_was_tampered_with_is_found_and_not_used_again(stage: Stage, box: str) -> None:
    home = Home(str(stage.home))
    for tag in ("first", "second"):
        sh(stage, box, f"mkdir {tag} && echo {tag} > {tag}/file && cp src/main.py {tag}")
        said(stage, "snapshot", box, "--tag", tag)
    box_id = resolve_name(home, box)
    assert box_id is not None
    stack = read_stack(home, box_id, 1)
    assert stack is not None
    data = Path(home.layer(stack.layers[0]), "data", "first")
    times = (data / "file").stat()
    (data / "file").write_text("fir$t\n")
    os.utime(data / "file", ns=(times.st_atime_ns, times.st_mtime_ns))
    (data / "main.py").unlink()
    broken = stage.run("verify", "--json")
    assert broken.returncode == 7
    findings = {one["path"]: one for one in json.loads(broken.stdout)["findings"]}
    assert findings[str(data / "file")]["problem"] == "has other bytes"
    assert findings[str(data / "file")]["touches"] == ["box", "box/first", "box/second"]
    assert findings[str(data / "main.py")]["problem"] == "is missing"
    for tag in ("first", "second"):
        said(stage, "restore", box, tag)
        assert sh(stage, box, "cat first/file first/main.py") == "first\nprint('one')\n"
    done = stage.run("verify")
    assert (done.returncode, done.stdout) == (0, b"")


def reboot(stage: Stage) -> None:
    """All that was made so far is of another boot; what the disk has is there, and nothing runs."""
    for info in stage.data("ls"):
        container = stage.data("show", info["name"])["container"]
        if info["status"] == "running":
            os.kill(container["pid"], signal.SIGKILL)
    for mark in stage.home.glob("layers/*/boot-*"):
        mark.rename(mark.with_name("boot-an-earlier-one"))
    for info in stage.home.glob("bases/*/info.json"):
        info.write_text(json.dumps({**json.loads(info.read_text()), "boot": "an earlier one"}))


def test_layers_that_a_sync_has_covered_outlive_a_reboot(stage: Stage, box: str) -> None:
    def is_rebuilt(tag: str) -> bool:
        reboot(stage)
        return f"rebuild {tag} from git" in said(stage, "restore", box, tag, "--dry-run")

    sh(stage, box, "echo one > one")
    said(stage, "snapshot", box, "--tag", "first")
    assert is_rebuilt("first"), "nothing has synced it yet"
    said(stage, "restore", box, "first")
    assert not is_rebuilt("first"), "the restore did"
    sh(stage, box, "echo two > two")
    said(stage, "snapshot", box, "--tag", "second")
    said(stage, "gc")
    assert not is_rebuilt("second")
    sh(stage, box, "echo three > three")
    said(stage, "snapshot", box, "--tag", "third")
    said(stage, "restore", box, "third")
    upper = stage.data("show", box)["upper"]
    assert not (stage.home / "layers" / upper / "synced").exists()
    assert not is_rebuilt("third")
    said(stage, "restore", box, "second")
    assert sh(stage, box, "cat one two; ls") == "one\ntwo\ndebug.log\none\nsrc\ntwo\n"
    said(stage, "rm", box)
    assert stage.run("create", str(stage.home.parent / "project"), "--name", box).returncode == 0
    said(stage, "rm", box)
    before = {base.name: base.stat().st_ino for base in stage.home.glob("bases/*")}
    reboot(stage)
    assert stage.run("create", str(stage.home.parent / "project"), "--name", box).returncode == 0
    assert {base.name: base.stat().st_ino for base in stage.home.glob("bases/*")} == before


def test_a_damaged_record_hides_no_other_workspace_and_can_be_removed(stage: Stage, box: str, project: Path) -> None:
    home = Home(str(stage.home))
    sh(stage, box, "echo x > x")
    said(stage, "snapshot", box)
    said(stage, "create", str(project), "--name", "sound")
    box_id = resolve_name(home, box)
    assert box_id is not None
    Path(home.record(box_id)).write_text("{")
    bases, layers = os.listdir(home.at("bases")), os.listdir(home.at("layers"))
    for key in bases:
        os.utime(stage.home / "bases" / key / "info.json", (1, 1))

    listed = {info["name"]: info["status"] for info in stage.data("ls")}
    assert listed == {"box": "damaged", "sound": "running"}
    assert sh(stage, "sound", "cat src/main.py") == "print('one')\n"
    used = stage.run("exec", box, "--", "true")
    assert used.returncode == 7
    assert box_id.encode() in used.stderr
    assert b"ws rm" in used.stderr
    for words in (["verify"], ["verify", box]):
        found = stage.run(*words)
        assert found.returncode == 7
        assert b"  touches box\n" in found.stdout
    assert [check["name"] for check in stage.data("doctor")["checks"] if "is damaged" in check["detail"]] == [box]
    containers = sorted(stage.containers())
    assert stage.data("prune")["containers"] == []
    said(stage, "rm", "sound")
    collected = stage.data("gc")
    assert (collected["bases"], collected["objects"], collected["spared"]) == (0, 0, [box])
    assert os.listdir(home.at("bases")) == bases
    assert set(os.listdir(home.at("layers"))) < set(layers)
    assert len(os.listdir(home.at("layers"))) == 2  # of the snapshot, and the upper
    assert len(containers) == 2
    assert len(stage.containers()) == 1

    assert said(stage, "rm", box) == "box\n"
    assert stage.left() == []
    assert os.listdir(home.at("layers")) == []
    assert os.listdir(os.path.join(home.store, "refs", "workspaces")) == []
    assert stage.data("gc")["bases"] == len(bases)


def test_gc_frees_what_nothing_needs_beside_running_workspaces(stage: Stage, box: str) -> None:
    for number in range(3):
        sh(stage, box, f"head -c 300000 /dev/urandom > r{number}")
        said(stage, "snapshot", box)
    sh(stage, box, "head -c 500000 /dev/urandom > looked-at")
    said(stage, "diff", box)
    sh(stage, box, "rm looked-at; echo other > other")
    said(stage, "diff", box)  # the look before is needed no more
    other = said(stage, "fork", box).strip()
    serving = stage.start("exec", other, "--", "sh", "-c", "while sleep 0.05; do date > now; done")
    try:
        before = sh(stage, box, LOOK)
        told = stage.data("gc", "--dry-run")
        assert told["objects"] >= 1
        assert told["bytes_freed"] > 400_000
        freed = stage.data("gc")
        assert freed["bytes_freed"] > 400_000
        assert freed["objects"] == told["objects"]
        assert sh(stage, box, LOOK) == before
        assert stage.run("verify").returncode == 0
        assert stage.run("restore", box, "~2").returncode == 0
        assert sh(stage, box, "ls r1; test ! -e r2") == "r1\n"
        subprocess.run(["git", "--git-dir", stage.home / "store", "fsck", "--strict"], check=True, capture_output=True)
        assert serving.poll() is None
    finally:
        serving.kill()
        serving.wait()
    assert stage.run("rm", box, other).returncode == 0
    for key in os.listdir(stage.home / "bases"):
        os.utime(stage.home / "bases" / key / "info.json", (1, 1))  # as if they had not been used for an hour
    last = stage.data("gc")
    assert last["bases"] >= 1
    assert [os.listdir(stage.home / part) for part in ("bases", "layers", "imports")] == [[], [], []]
    assert os.listdir(stage.home / "store" / "objects" / "pack") == []


def test_gc_drops_the_layers_of_old_snapshots_and_git_brings_them_back(stage: Stage, box: str) -> None:
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        workspace = manager.open(box)
        for number in range(40):
            workspace.exec(["sh", "-c", f"echo {number} > number"])
            workspace.snapshot(str(number), tag=f"n{number}")
        stacks = os.path.dirname(manager.home.stack(workspace.id, 0))
        assert len(os.listdir(stacks)) == 40
        assert manager.gc().layers > 0
        assert len(os.listdir(stacks)) == 32
        workspace.restore("n3")
        assert workspace.exec(["cat", "number"]).stdout == "3\n"
        workspace.undo()
        assert workspace.exec(["cat", "number"]).stdout == "39\n"
        workspace.close()


def test_references_of_a_workspace_that_never_came_to_be_are_dropped(stage: Stage, box: str) -> None:
    said(stage, "snapshot", box)
    refs = stage.home / "store" / "refs" / "workspaces"
    (real,) = os.listdir(refs)
    assert real == resolve_name(Home(str(stage.home)), box)
    orphan = refs / "0123456789ab"
    orphan.mkdir()
    (orphan / "0").write_text((refs / real / "0").read_text())
    assert stage.run("gc").returncode == 0
    packed = (stage.home / "store" / "packed-refs").read_text()
    assert "0123456789ab" not in packed
    assert real in packed
    assert len(stage.data("log", box)) == 2


def test_a_diff_of_nothing_changed_is_quick_and_adds_no_layer(stage: Stage, box: str) -> None:
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        workspace = manager.open(box)
        workspace.exec(["sh", "-c", "echo x > x"])
        packs = stage.home / "store" / "objects" / "pack"
        assert workspace.diff("base").name_status() == "A\tx\n"
        count, layers = len(os.listdir(packs)), workspace.record().layers
        started = time.monotonic()
        for _ in range(10):
            assert workspace.diff("base")
        assert time.monotonic() - started < 5
        assert len(os.listdir(packs)) == count
        assert workspace.record().layers == layers
        workspace.close()


def test_a_snapshot_is_counted_back_from_the_newest_or_from_another(stage: Stage, box: str) -> None:
    ids = []
    for number in range(4):
        sh(stage, box, f"echo {number} > counted")
        ids.append(said(stage, "snapshot", box, "--tag", f"count-{number}").strip())
    assert stage.run("restore", box, "count-0").returncode == 0  # its safety snapshot is not counted
    cases = {"@0": 3, "@1": 2, "~1": 2, "count-2@0": 2, "count-2@2": 0, "count-3~1": 2, f"{ids[3]}@3": 0}
    for wanted, number in cases.items():
        found = stage.run("diff", box, wanted, f"count-{number}", "--name-status")
        assert (found.returncode, found.stdout) == (0, b""), wanted
    for missing in ("@99", "count-9@0", "count-1@99", "@", "x@y"):
        assert stage.run("diff", box, missing, "count-0").returncode == 3, missing
    for bash in ("ws diff {0} @1 count-2", "ws diff {0} count-3@1 count-2"):
        line = bash.format(box).replace("ws ", f"{sys.executable} -m ws ", 1)
        assert subprocess.run(["bash", "-c", line], env=stage.env, check=True, capture_output=True).stdout == b""
