"""A base is its source at one instant: all of it, exactly; the source is only read; asking again is cheap."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tree_picture import picture
from ws import bases, durable
from ws.errors import InvalidRequest, SourceChanged, SourceRefused, StateError, StoreDamaged
from ws.layout import Home, Ids, open_home
from ws.removing import remove_tree
from ws.store.repository import Store
from ws.syncing import ensure_synced

ME = Ids(1000, 1000, os.geteuid(), os.getegid())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(str(tmp_path / "home"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in the middle of work: ignored files, its own .git, another repository inside."""
    root = tmp_path / "project"
    for path, text in {
        "src/main.py": "print('hi')\n",
        "src/data.bin": "\0\1\2",
        ".gitignore": "build/\n*.log\n",
        ".gitattributes": "* text eol=crlf ident\n",
        "build/out.o": "ignored, yet here",
        "debug.log": "ignored too",
        "vendor/lib/.git/hooks/post-checkout": "#!/bin/sh\ntouch /tmp/never\n",
        "vendor/lib/.git/config": "[core]\n\tfsmonitor = touch /tmp/never\n",
        "vendor/lib/readme": "nested\r\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, newline="")
    (root / "empty").mkdir()
    (root / "link").symlink_to("src/main.py")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def settle() -> None:
    """Let files grow older than a timestamp is fine, so that they are not read again for that reason."""
    time.sleep(0.05)


def test_everything_that_is_there_is_imported_and_the_source_is_untouched(home: Home, project: Path) -> None:
    before = picture(project)
    base = bases.import_source(home, str(project), ids=ME)
    assert picture(base.path) == before == picture(project)
    assert base.files == sum(len(files) for _, _, files in os.walk(project))
    assert base.bytes == sum(p.lstat().st_size for p in project.rglob("*") if p.is_symlink() or p.is_file())
    assert base.skipped == ()
    assert os.listdir(home.at("staging")) == []


def test_everything_belongs_to_the_workspace_s_user_as_after_a_checkout(home: Home, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (project / "src" / "setuid").write_text("x")
    (project / "src" / "setuid").chmod(0o6755)
    base = bases.import_source(home, str(project), ids=Ids(1000, 1000, 201000, 201001))
    assert {(look[2], look[3]) for look in picture(base.path).values()} == {(201000, 201001)}
    assert os.stat(base.path + "/src/setuid").st_mode & 0o7777 == 0o6755
    assert base.key.endswith("-201000-201001")


def test_the_same_tree_from_another_place_is_the_same_base(home: Home, project: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-a", project, tmp_path / "copy"], check=True)
    first = bases.import_source(home, str(project), ids=ME)
    second = bases.import_source(home, str(tmp_path / "copy"), ids=ME)
    assert first.key == second.key
    assert os.listdir(home.at("bases")) == [first.key]


def test_an_unchanged_source_is_not_read_again(home: Home, project: Path) -> None:
    settle()
    first = bases.import_source(home, str(project), ids=ME)
    opened = trace(home, project)
    assert not any(str(project / "src") in line for line in opened)
    assert bases.import_source(home, str(project), ids=ME) == first


def import_command(home: Home, project: Path) -> list[str]:
    """Import in a process of its own, and print the key."""
    package = os.path.dirname(os.path.dirname(bases.__file__))
    script = (
        f"import sys; sys.path.insert(0, {package!r}); from ws import bases;"
        f"from ws.layout import Ids, open_home; ids = Ids{ME.uid, ME.gid, ME.host_uid, ME.host_gid};"
        f"print(bases.import_source(open_home(sys.argv[1]), sys.argv[2], ids=ids).key)"
    )
    return [sys.executable, "-c", script, home.root, str(project)]


def trace(home: Home, project: Path) -> list[str]:
    """The files that a new import of the project opens, as the kernel saw it."""
    command = ["strace", "-f", "-y", "-e", "trace=open,openat,openat2", *import_command(home, project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("strace does not work here")
    return [line for line in done.stderr.splitlines() if str(project) in line]


def test_only_what_changed_is_read_again_and_the_rest_is_shared(home: Home, project: Path) -> None:
    settle()
    first = bases.import_source(home, str(project), ids=ME)
    (project / "src" / "main.py").write_text("print('changed')\n")
    (project / "src" / "new.py").write_text("new")
    (project / "debug.log").unlink()
    settle()
    second = bases.import_source(home, str(project), ids=ME)
    assert picture(second.path, owners=True).keys() == picture(project).keys()
    assert Path(second.path, "src/main.py").read_text() == "print('changed')\n"
    assert Path(first.path, "src/main.py").read_text() == "print('hi')\n"
    shared = os.stat(first.path + "/src/data.bin"), os.stat(second.path + "/src/data.bin")
    assert shared[0].st_ino == shared[1].st_ino
    assert os.stat(first.path + "/src/main.py").st_ino != os.stat(second.path + "/src/main.py").st_ino
    fresh = open_home(home.root + "-fresh")
    assert bases.import_source(fresh, str(project), ids=ME).key == second.key


@pytest.mark.parametrize(
    "change",
    [
        lambda p: (p / "src/main.py").write_text("print('ho')\n"),
        lambda p: (p / "src/main.py").chmod(0o755),
        lambda p: os.utime(p / "src/main.py", ns=(5, 5)),
        lambda p: os.setxattr(p / "src/main.py", "user.k", b"v"),
        lambda p: os.setxattr(p / "empty", "user.k", b"v"),
        lambda p: (p / "empty").chmod(0o700),
        lambda p: (p / "empty/new").mkdir(),
        lambda p: (p / "empty").rmdir(),
        lambda p: (p / "link").unlink() or (p / "link").symlink_to("src/data.bin"),
        lambda p: os.rename(p / "debug.log", p / "error.log"),
        lambda p: os.link(p / "debug.log", p / "second name"),
        lambda p: os.mkfifo(p / "pipe"),
    ],
)
def test_every_kind_of_change_is_seen(home: Home, project: Path, change) -> None:  # type: ignore[no-untyped-def]
    settle()
    first = bases.import_source(home, str(project), ids=ME)
    change(project)
    second = bases.import_source(home, str(project), ids=ME)
    assert second.key != first.key
    assert picture(second.path) == picture(project)


def test_a_change_within_the_grain_of_the_clock_is_seen(home: Home, project: Path) -> None:
    for number in range(20):
        (project / "src/main.py").write_text(f"{number:02}")
        first = bases.import_source(home, str(project), ids=ME)
        assert Path(first.path, "src/main.py").read_text() == f"{number:02}"


def test_names_modes_times_links_xattrs_and_pipes_come_along(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "odd"
    root.mkdir()
    (root / "a").write_bytes(b"x" * 100)
    os.link(root / "a", root / "z")
    (root / "sub").mkdir()
    os.link(root / "a", root / "sub" / "m")
    os.symlink("nowhere\n", root / "sub" / "dangling")
    os.link(root / "sub" / "dangling", root / "same link", follow_symlinks=False)
    os.mkfifo(root / "pipe", 0o620)
    os.utime(root / "pipe", ns=(7, 7))
    (root / os.fsdecode(b"\xff\n .git")).write_text("")
    (root / ".git").write_text("gitdir: /etc\n")
    (root / "closed").mkdir()
    (root / "closed" / "in").write_text("in")
    # Under a mount of an ordinary user this one is the kernel's, and lies in the base under another name.
    os.setxattr(root / "closed", "user.overlay.opaque" if os.geteuid() == 0 else "user.k", b"y")
    os.setxattr(root / "a", "user.big", b"v" * 2000)
    (root / "closed").chmod(0o000 if os.geteuid() == 0 else 0o500)
    os.utime(root / "sub", ns=(-5, -5))
    os.utime(root, ns=(12_000_000_000_000_000_000, 12_000_000_000_000_000_000))
    base = bases.import_source(home, str(root), ids=ME)
    assert picture(base.path) == picture(root)
    again = bases.ensure_base(home, rebuilt(home, base.key), ids=ME)
    assert picture(again.path) == picture(root)


def rebuilt(home: Home, key: str) -> str:
    """Take a base away, as if it had been lost."""
    os.rename(home.base(key), home.at("staging", "lost"))
    return key


def test_large_and_sparse_files_are_kept_in_chunks(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "large"
    root.mkdir()
    (root / "whole").write_bytes(os.urandom(16 << 20))
    (root / "chunked").write_bytes(os.urandom((16 << 20) + 1))
    with (root / "sparse").open("wb") as file:
        file.truncate(300 << 20)
        file.seek(100 << 20)
        file.write(b"island")
    base = bases.import_source(home, str(root), ids=ME)
    assert picture(base.path) == picture(root)
    assert os.stat(base.path + "/sparse").st_blocks * 512 < 8 << 20
    with Store(home.store) as store:
        size = sum(os.path.getsize(pack.name + ".pack") for pack in store.all_packs())
    assert size < 40 << 20
    lost = rebuilt(home, base.key)
    assert picture(bases.ensure_base(home, lost, ids=ME).path) == picture(root)
    with (root / "chunked").open("r+b") as file:
        file.seek(9 << 20)
        file.write(b"small change")
    bases.import_source(home, str(root), ids=ME)
    with Store(home.store) as store:
        grown = sum(os.path.getsize(pack.name + ".pack") for pack in store.all_packs())
    assert grown - size < 3 << 20


def test_sockets_and_devices_are_reported_and_left_out(home: Home, project: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(project / "src/socket"))
        base = bases.import_source(home, str(project), ids=ME)
        again = bases.import_source(home, str(project), ids=ME)
    assert [(skipped.path, skipped.reason) for skipped in base.skipped] == [("src/socket", "a socket")]
    assert again.skipped == base.skipped
    assert not os.path.lexists(base.path + "/src/socket")


@pytest.mark.root
def test_the_walk_stops_at_mount_points_and_says_so(home: Home, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    (project / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", project / "mnt"], check=True)
    try:
        (project / "mnt/secret").write_text("elsewhere")
        base = bases.import_source(home, str(project), ids=ME)
        assert bases.import_source(home, str(project), ids=ME) == base
    finally:
        subprocess.run(["umount", project / "mnt"], check=True)
    assert [(skipped.path, skipped.reason) for skipped in base.skipped] == [("mnt", "a mount point")]
    assert not os.path.lexists(base.path + "/mnt")
    after = bases.import_source(home, str(project), ids=ME)
    assert after.skipped == ()
    assert os.path.isdir(after.path + "/mnt")


@pytest.mark.parametrize(
    ("patterns", "gone"),
    [
        (["*.log"], {"debug.log"}),
        (["build"], {"build", "build/out.o"}),
        (["build/"], {"build", "build/out.o"}),
        (["debug.log/"], set()),
        (["src/*.py"], {"src/main.py"}),
        (["/src/main.py"], {"src/main.py"}),
        (["lib/readme"], set()),
        (["**/readme"], {"vendor/lib/readme"}),
        (["vendor/**"], {"vendor/lib", "vendor/lib/readme"}),
        (["main.p?", "[!a-r]ata.bin"], {"src/main.py"}),
        (["[a-d]ata.bin"], {"src/data.bin"}),
    ],
)
def test_excluded_patterns_are_left_out(home: Home, project: Path, patterns: list[str], gone: set[str]) -> None:
    base = bases.import_source(home, str(project), ids=ME, exclude=patterns)
    missing = {os.fsdecode(path) for path in picture(project).keys() - picture(base.path).keys()}
    assert {path for path in missing if "/.git" not in path and not path.startswith(".git/")} == gone


@pytest.mark.parametrize("pattern", ["", "/", "a\0b"])
def test_a_pattern_that_means_nothing_is_refused(home: Home, project: Path, pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        bases.import_source(home, str(project), ids=ME, exclude=[pattern])


def test_no_source_is_the_empty_base_always_the_same_one(home: Home) -> None:
    first, second = (bases.import_source(home, None, ids=ME) for _ in range(2))
    assert first == second
    assert os.listdir(first.path) == []
    assert os.listdir(home.at("imports")) == []


def test_places_that_must_not_become_workspaces_are_refused(home: Home, project: Path, tmp_path: Path) -> None:
    inside = project / ".ws"
    (tmp_path / "alias").symlink_to(os.path.expanduser("~"))
    for source, owner in [
        ("/", home),
        ("/root/..", home),
        (os.path.expanduser("~"), home),
        (str(tmp_path / "alias"), home),
        (home.root, home),
        (home.at("bases"), home),
        (str(tmp_path), home),
        (str(project), open_home(str(inside))),
    ]:
        with pytest.raises(SourceRefused) as refused:
            bases.import_source(owner, source, ids=ME)
        assert refused.value.hint
    assert os.listdir(home.at("staging")) == os.listdir(home.at("bases")) == []


def test_a_source_that_is_missing_or_no_directory_is_refused(home: Home, project: Path) -> None:
    for source in ("/nowhere/at/all", str(project / "debug.log")):
        with pytest.raises(InvalidRequest, match=source):
            bases.import_source(home, source, ids=ME)


def test_a_source_that_keeps_changing_is_refused_and_leaves_nothing(home: Home, project: Path) -> None:
    turns = itertools.count()

    def change(*_: object) -> None:
        """Called while the source is read, and when it has been, before it is looked at again."""
        (project / "src/main.py").write_text(f"{next(turns)}")

    with pytest.raises(SourceChanged, match=r"main\.py"):
        bases.import_source(home, str(project), ids=ME, progress=change)
    assert os.listdir(home.at("staging")) == os.listdir(home.at("bases")) == []


def test_a_source_that_changes_once_is_read_again(home: Home, project: Path) -> None:
    for number in range(400):
        (project / f"src/{number}").write_text("x" * 2000)
    timer = threading.Timer(0.03, lambda: (project / "src/main.py").write_text("late"))
    timer.start()
    base = bases.import_source(home, str(project), ids=ME)
    timer.join()
    final = bases.import_source(home, str(project), ids=ME)
    assert picture(final.path) == picture(project)
    assert Path(base.path, "src/main.py").read_text() in ("print('hi')\n", "late")


def test_an_unreadable_file_is_named(home: Home, project: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (project / "src/main.py").chmod(0)
    with pytest.raises(InvalidRequest, match=r"src/main\.py"):
        bases.import_source(home, str(project), ids=ME)


def test_two_imports_at_once_both_succeed(home: Home, project: Path) -> None:
    for number in range(600):
        (project / f"src/{number}").write_text(f"{number}" * 100)
    settle()
    command = import_command(home, project)
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    keys = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(keys) == 1
    assert picture(home.base(keys.pop()) + "/data") == picture(project)
    assert os.listdir(home.at("staging")) == []


def test_the_second_process_gives_the_same_tree_as_one_alone(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "wide"
    for number in range(120):
        (root / f"{number % 7}/{number}").mkdir(parents=True)
        for other in range(10):
            (root / f"{number % 7}/{number}/{other}").write_text(f"{other % 3}" * 500)
    settle()
    two = bases.import_source(home, str(root), ids=ME)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        one = bases.import_source(open_home(home.root + "-one"), str(root), ids=ME)
    finally:
        os.sched_setaffinity(0, allowed)
    assert one.key == two.key
    assert picture(two.path) == picture(root)
    with Store(home.store) as store:
        ids = [oid for pack in store.all_packs() for oid in pack.index.ids()]
    assert len(ids) == len(set(ids))
    subprocess.run(["git", "--git-dir", home.store, "fsck", "--strict"], check=True, capture_output=True)


def test_a_tree_3000_deep_is_a_tree_like_any_other(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "deep"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for depth in range(3000):
        os.mkdir("d", dir_fd=here)
        if depth % 100 == 0:
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here))
            os.mkdir("z", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    settle()
    try:
        base = bases.import_source(home, str(root), ids=ME)
        assert base.files == 30
        assert depth_of(base.path) == 3000
        assert bases.import_source(home, str(root), ids=ME) == base
        assert depth_of(bases.ensure_base(home, rebuilt(home, base.key), ids=ME).path) == 3000
    finally:  # pytest could not remove them
        remove_tree(str(root))
        remove_tree(home.root)


def depth_of(path: str) -> int:
    here, depth = os.open(path, os.O_RDONLY), 0
    try:
        while True:
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here, depth = below, depth + 1
    except FileNotFoundError:
        return depth
    finally:
        os.close(here)


def test_a_base_from_before_a_crash_is_rebuilt_from_the_store(home: Home, project: Path) -> None:
    base = bases.import_source(home, str(project), ids=ME)
    info = Path(home.base(base.key), "info.json")
    info.write_text(info.read_text().replace('"boot": "', '"boot": "another-'))
    Path(base.path, "src/main.py").write_text("half written")
    assert bases.find_base(home, base.key) is None
    again = bases.ensure_base(home, base.key, ids=ME)
    assert picture(again.path) == picture(project)
    assert bases.import_source(home, str(project), ids=ME).key == base.key


def reboot(home: Home) -> None:
    for info in Path(home.at("bases")).glob("*/info.json"):
        info.write_text(info.read_text().replace('"boot": "', '"boot": "another-'))


def test_a_base_that_a_sync_has_covered_outlives_a_reboot(home: Home, project: Path) -> None:
    base = bases.import_source(home, str(project), ids=ME)
    ensure_synced(home)
    (project / "new").write_text("later")
    later = bases.import_source(home, str(project), ids=ME)
    reboot(home)
    assert bases.find_base(home, base.key) == base
    assert bases.find_base(home, later.key) is None
    assert bases.ensure_base(home, later.key, ids=ME).path == later.path, "rebuilt, and synced at once"
    reboot(home)
    inode = os.stat(later.path).st_ino
    assert bases.import_source(home, str(project), ids=ME).key == later.key
    assert os.stat(later.path).st_ino == inode


def test_what_took_the_place_of_a_base_during_a_sync_is_not_taken_for_it(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = bases.import_source(home, str(project), ids=ME)
    sync = durable.sync_filesystem

    def collected_and_imported_meanwhile(path: str) -> None:
        sync(path)
        os.rename(home.base(base.key), home.at("staging", "collected"))
        bases.import_source(home, str(project), ids=ME)

    monkeypatch.setattr("ws.syncing.durable.sync_filesystem", collected_and_imported_meanwhile)
    ensure_synced(home)
    reboot(home)
    assert bases.find_base(home, base.key) is None


def test_a_base_that_the_store_cannot_give_back_is_damage(home: Home, project: Path) -> None:
    base = bases.import_source(home, str(project), ids=ME)
    rebuilt(home, base.key)
    with Store(home.store) as store:
        for pack in store.all_packs():
            os.truncate(pack.name + ".pack", 1000)
    with pytest.raises(StoreDamaged):
        bases.ensure_base(home, base.key, ids=ME)
    assert os.listdir(home.at("bases")) == []
    assert os.listdir(home.at("staging")) == ["lost"]


def test_a_damaged_cache_costs_time_and_nothing_else(home: Home, project: Path) -> None:
    settle()
    base = bases.import_source(home, str(project), ids=ME)
    (cache,) = Path(home.at("imports")).iterdir()
    for damage in (b"", b"x" * 100, cache.read_bytes()[:-1], cache.read_bytes().replace(b"main", b"mane")):
        cache.write_bytes(damage)
        assert bases.import_source(home, str(project), ids=ME).key == base.key


def test_progress_is_told(home: Home, tmp_path: Path) -> None:
    root = tmp_path / "some"
    root.mkdir()
    (root / "a").write_text("a")
    seen: list[tuple[str, int, int]] = []
    bases.import_source(home, str(root), ids=ME, progress=lambda *told: seen.append(told))
    assert seen[-1] == ("import", 1, 1)


def test_a_second_process_that_dies_fails_the_import_whole_and_the_next_one_succeeds(
    home: Home, tmp_path: Path
) -> None:
    """As the kernel does when memory is short (HARDENING G5)."""
    for number in range(1200):
        path = tmp_path / "many" / f"{number % 60}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(2000))
    over = threading.Event()

    def kill_children() -> None:
        while not over.is_set():
            for task in os.listdir("/proc/self/task"):
                for child in Path(f"/proc/self/task/{task}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                    over.set()
            time.sleep(0.001)

    killer = threading.Thread(target=kill_children)
    killer.start()
    try:
        with pytest.raises(StateError, match="second process") as died:
            bases.import_source(home, str(tmp_path / "many"), ids=ME)
    finally:
        over.set()
        killer.join()
    assert died.value.hint
    assert os.listdir(home.at("bases")) == os.listdir(home.at("staging")) == []
    base = bases.import_source(home, str(tmp_path / "many"), ids=ME)
    assert picture(base.path) == picture(tmp_path / "many")
