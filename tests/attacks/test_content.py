"""Whatever lies in a workspace is data: it comes back byte by byte, and nothing in it is obeyed, followed or run.

C1–C14 of the hardening list: what git or a kernel would take for an instruction, names and shapes of trees that break
walkers, sizes that break memories, objects that were damaged.

One workspace an engine for what is small. What is large is tried on the first engine that works: the store and the
overlay are the same. WS_ATTACK_SCALE multiplies it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import check_store, distrust, held, mounted_at, outside, remove_all, shell
from tree_picture import HOSTILE_NAMES, picture
from ws import merging
from ws.engine.base import Engine
from ws.errors import LimitExceeded, RestoreFailed
from ws.history import Snapshot
from ws.layout import EngineName
from ws.manager import Manager
from ws.store.packs import BLOB, COMMIT, TREE
from ws.store.repository import Store
from ws.workspace import Workspace

SCALE = int(os.environ.get("WS_ATTACK_SCALE", "1"))
PYTHON = "import os, sys; os.umask(0o022)\n"


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as manager:
        yield manager
        remove_all(manager)


@pytest.fixture
def box(manager: Manager) -> Iterator[Workspace]:
    """The same workspace for all tests of an engine, and empty."""
    names = {info.name for info in manager.list()}
    with manager.open("arena") if "arena" in names else manager.create(name="arena") as box:
        box.restore("base")
        yield box


@pytest.fixture(scope="module")
def large(engines: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager of whichever engine works first."""
    name: EngineName = "podman"
    try:
        engines.get("podman")  # type: ignore[attr-defined]
    except pytest.skip.Exception:
        engines.get("docker")  # type: ignore[attr-defined]
        name = "docker"
    with Manager(home=str(tmp_path_factory.mktemp("large")), engine=name) as manager:
        yield manager
        remove_all(manager)


def inside(box: Workspace, source: str, *arguments: str) -> str:
    """Run Python in the container's /workspace."""
    result = box.exec(["python3", "-c", PYTHON + source, *arguments], timeout=280)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def comes_back(manager: Manager, box: Workspace) -> Snapshot:
    """A snapshot of what is there brings it back exactly: from its layers, and from git alone."""
    before = outside(box)
    snapshot = box.snapshot("kept")
    shell(box, "chmod -R u+rwx . && find . -mindepth 1 -delete")
    box.restore(snapshot)
    assert outside(box) == before, "from layers"
    inside(box, "open('more', 'w').close()")
    distrust(manager.home, box, snapshot.number)
    box.restore(snapshot)
    assert box.record().layers == ()
    assert outside(box) == before, "from git"
    return snapshot


def test_attributes_of_git_change_no_byte(manager: Manager, box: Workspace) -> None:
    """C1: line endings, $Id$, encodings and filters would all change what is stored, or what comes back."""
    inside(
        box,
        r"""
attributes = b'* text eol=crlf ident\n*.u16 working-tree-encoding=UTF-16\n*.x filter=evil diff=evil merge=evil\n'
os.makedirs('sub/.git/info')
for place in ('.', 'sub', 'sub/.git/info'):
    open(place + '/.gitattributes', 'wb').write(attributes)
open('sub/.git/info/attributes', 'wb').write(attributes)
for name in ('a.txt', 'b.u16', 'c.x', 'sub/d.txt'):
    open(name, 'wb').write(b'one\r\ntwo\n$Id$\n$Id: 0123 $\r\xff\xfe\x00')
""",
    )
    comes_back(manager, box)
    check_store(manager.home)


def test_nothing_of_a_nested_repository_runs_on_the_host(manager: Manager, box: Workspace, tmp_path: Path) -> None:
    """C2, C3, C4: hooks, fsmonitor, filters, includes, alternates, `.git` files, submodules: content, all of it."""
    tripwire = tmp_path / "tripwire"
    canary = tmp_path / "objects"
    canary.mkdir()
    trip = f"touch {tripwire}"
    config = f"""[core]
\tfsmonitor = {trip}
\tsshCommand = {trip}
\tpager = {trip}
\teditor = {trip}
\thooksPath = hooks
\tworktree = /
[filter "evil"]
\tclean = {trip}
\tsmudge = {trip}
\tprocess = {trip}
[diff]
\texternal = {trip}
[alias]
\tlog = "!{trip}"
[include]
\tpath = /etc/passwd
[includeIf "gitdir:/**"]
\tpath = /etc/shadow
"""
    inside(
        box,
        r"""
config, trip, canary = sys.argv[1:]
for top in ('.git', 'nested/.git', 'bare.git'):
    os.makedirs(top + '/hooks'); os.makedirs(top + '/objects/info'); os.makedirs(top + '/refs/heads')
    open(top + '/HEAD', 'w').write('ref: refs/heads/main\n')
    open(top + '/config', 'w').write(config)
    open(top + '/objects/info/alternates', 'w').write(canary + '\n/etc\n')
    for hook in ('post-checkout', 'post-commit', 'pre-commit', 'reference-transaction', 'fsmonitor'):
        open(top + '/hooks/' + hook, 'w').write('#!/bin/sh\n' + trip + '\n')
        os.chmod(top + '/hooks/' + hook, 0o755)
open('nested/.gitattributes', 'w').write('* filter=evil\n')
open('nested/file', 'w').write('filtered?\n')
os.mkdir('pointing'); open('pointing/.git', 'w').write('gitdir: /etc\n')
modules = b'[submodule "../../x"]\n\tpath = ../../../etc\r\n\turl = -u./payload\n\tupdate = !' + trip.encode()
open('.gitmodules', 'wb').write(modules)
os.symlink('.git/modules/x', 'submodule')
os.symlink('.git', 'GIT~1')
""",
        config,
        trip,
        str(canary),
    )
    snapshot = comes_back(manager, box)
    box.diff(snapshot)
    with box.fork(snapshot, name="forked") as other:
        assert outside(other) == outside(box)
        other.remove()
    check_store(manager.home)
    git = ["git", "--git-dir", manager.home.store]
    subprocess.run([*git, "log", "--all", "--stat", "-p"], capture_output=True, check=True)
    tree = subprocess.run([*git, "ls-tree", "-r", snapshot.commit], capture_output=True, text=True, check=True)
    assert not [line for line in tree.stdout.splitlines() if line.startswith("160000")], "repositories are files here"
    assert not tripwire.exists()
    assert list(canary.iterdir()) == []


def test_any_name_comes_back_and_git_finds_it_proper(manager: Manager, box: Workspace) -> None:
    """C5: every spelling of .git, escapes of our own escapes, bytes that are no text; files, directories and links."""
    inside(
        box,
        r"""
for kind in ('file', 'dir', 'link'):
    os.mkdir(kind)
    for text in sys.argv[1:]:
        path = os.path.join(os.fsencode(kind), bytes.fromhex(text))
        if kind == 'file':
            open(path, 'wb').write(path)
        elif kind == 'dir':
            os.mkdir(path); open(os.path.join(path, b'x'), 'wb').write(path)
        else:
            os.symlink(b'../' + os.path.basename(path)[:200], path)
""",
        *[name.hex() for name in HOSTILE_NAMES],
    )
    assert len(os.listdir(f"{mounted_at(box)}/file")) == len(HOSTILE_NAMES)
    comes_back(manager, box)
    check_store(manager.home)


def test_modes_times_xattrs_and_special_files_come_back(manager: Manager, box: Workspace) -> None:
    """C8, C9, C13: nobody may read it, it is of 1901 or 2446, it waits for a writer, it looks like overlayfs' own."""
    inside(
        box,
        r"""
import socket
for mode in (0, 0o111, 0o222, 0o444, 0o4755, 0o2755, 0o1777, 0o7777):
    open(f'file{mode:o}', 'w').write('x'); os.chmod(f'file{mode:o}', mode)
    os.mkdir(f'dir{mode:o}'); open(f'dir{mode:o}/inner', 'w').write('y'); os.chmod(f'dir{mode:o}', mode)
for second in (-2**31, -1, 0, 2**31, 15032385535):
    open(f'at{second}', 'w').close(); os.utime(f'at{second}', ns=(0, second * 10**9 + 7))
    os.symlink('x', f'link{second}'); os.utime(f'link{second}', ns=(0, second * 10**9 + 9), follow_symlinks=False)
for note in ('opaque', 'whiteout', 'redirect', 'metacopy', 'origin', 'upper'):
    open('note-' + note, 'w').write('seen')
    os.mkdir('notes-' + note); open('notes-' + note + '/below', 'w').write('seen')
    for path in ('note-' + note, 'notes-' + note):
        os.setxattr(path, 'user.overlay.' + note, b'y')
for size in (65536, 60000, 3000):
    open('heavy', 'w').close()
    try:
        os.setxattr('heavy', 'user.large', b'v' * size); break
    except OSError:
        os.unlink('heavy')
open('many', 'w').close()
for n in range(40):
    os.setxattr('many', f'user.{n}', str(n).encode())
os.mkfifo('fifo', 0o640)
socket.socket(socket.AF_UNIX).bind('socket')
for target in (b'x' * 4095, b'a\nb', b'\xff\xfe', b'/nowhere', b'.', b'link' * 9):
    os.symlink(target, b'to-' + target[:20].hex().encode())
""",
    )
    snapshot = comes_back(manager, box)
    assert snapshot.skipped == ("socket: a socket",)
    assert "dir0/inner" in {os.fsdecode(path) for path in outside(box)}


def test_a_hard_link_is_what_the_container_saw(manager: Manager, box: Workspace) -> None:
    """C10: overlayfs breaks a link when one of its names is written to; a restore shows what was seen."""
    inside(box, "open('a', 'w').write('1'); os.link('a', 'b'); os.link('a', 'c'); os.mkdir('d'); os.link('a', 'd/e')")
    joined = box.snapshot("joined")
    inside(box, "open('a', 'a').write('2')")
    seen = shell(box, "cat a b c d/e; stat -c %i a b c d/e | uniq -c | awk '{print $1}'")
    comes_back(manager, box)
    assert shell(box, "cat a b c d/e; stat -c %i a b c d/e | uniq -c | awk '{print $1}'") == seen
    box.restore(joined)
    assert shell(box, "stat -c %i a b c d/e | sort -u | wc -l") == "1\n"


def test_a_limit_fails_whole_and_is_forgotten_with_the_file(box: Workspace) -> None:
    """A snapshot that failed may have sealed a layer; what was too large in it is gone once the file is."""
    box.snapshot("before")
    inside(box, "open('large', 'wb').write(bytes(3 << 20)); open('small', 'w').write('x')")
    for caps in ({"max_file": 1 << 20}, {"max_total": 2 << 20}):
        known = len(box.snapshots())
        with pytest.raises(LimitExceeded) as caught:
            box.snapshot("too large", **caps)
        assert "large" in str(caught.value)
        assert len(box.snapshots()) == known
    assert shell(box, "ls") == "large\nsmall\n"
    shell(box, "rm large")
    snapshot = box.snapshot("small enough", max_file=1 << 20, max_total=2 << 20)
    shell(box, "rm small")
    box.restore(snapshot)
    assert shell(box, "ls") == "small\n"


def test_pages_that_are_dirty_in_a_mapping_are_in_the_snapshot(box: Workspace) -> None:
    """C14: a shared mapping changes bytes and no time; the second snapshot of the same upper must see it."""
    writer = """
import mmap, sys
f = open('mapped', 'r+b'); m = mmap.mmap(f.fileno(), 0)
m[0:3] = b'one'
for line in sys.stdin:
    m[0:3] = line.strip().encode()
    print('written', flush=True)
"""
    inside(box, "open('mapped', 'wb').write(b'...' * 2000)")
    with box.terminal(["python3", "-uc", writer]) as terminal:
        trees = []
        for word in ("two", "six", "ten"):
            terminal.send(f"{word}\n".encode())
            wait_for(box, "mapped", word)
            snapshot = box.snapshot(word)
            trees.append((snapshot, word))
    for snapshot, word in trees:
        box.restore(snapshot)
        assert shell(box, "head -c 3 mapped") == word


def wait_for(box: Workspace, name: str, word: str) -> None:
    shell(box, f'while [ "$(head -c {len(word)} {name})" != {word} ]; do sleep 0.01; done')


def test_a_damaged_object_is_named_and_nothing_is_touched(manager: Manager) -> None:
    """C12: bytes flip on the disk; a restore from git finds out before it changes anything."""
    with manager.create(name="damaged") as box:
        inside(box, "os.mkdir('d'); open('d/precious', 'w').write('precious ' * 1000); open('other', 'w').write('x')")
        snapshot = box.snapshot("good")
        inside(box, "os.unlink('d/precious'); open('new', 'w').write('y')")
        before = outside(box)
        with Store(manager.home.store) as store:
            oid = next(
                oid
                for pack in store.all_packs()
                for oid in pack.index.ids()
                if store.read(oid, kind_of(manager, oid)).startswith(b"precious ")
            )
            (pack,) = [pack for pack in store.all_packs() if pack.find(oid) >= 0]
            place, offset = pack.name + ".pack", pack.index.offset(pack.find(oid))
        with open(place, "r+b") as file:
            file.seek(offset + 12)
            byte = file.read(1)
            file.seek(offset + 12)
            file.write(bytes([byte[0] ^ 0xFF]))
        distrust(manager.home, box, snapshot.number)
        with pytest.raises(RestoreFailed) as caught:
            box.restore(snapshot)
        assert oid.hex() in str(caught.value)
        assert "d/precious" in str(caught.value)
        assert outside(box) == before
        assert shell(box, "cat new") == "y"
        box.remove()


def kind_of(manager: Manager, oid: bytes) -> int:
    git = ["git", "--git-dir", manager.home.store]
    done = subprocess.run([*git, "cat-file", "-t", oid.hex()], capture_output=True, text=True, check=True)
    return {"commit": COMMIT, "tree": TREE, "blob": BLOB}[done.stdout.strip()]


def test_a_tree_three_thousand_deep_is_a_tree(large: Manager) -> None:
    """C6: no recursion, no path longer than the kernel takes, no descriptor a level; often enough to be merged, too."""
    with large.create(name="deep") as box:
        deepen = "for n in range(int(sys.argv[1])): os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').write('here')"
        inside(box, deepen, "3000")
        snapshot = box.snapshot("deep")
        touch = "open(sys.argv[1], 'w').close()\nfor n in range(450): os.chdir('d')\nopen(sys.argv[1], 'w').close()"
        for number in range(merging.WIDTH + 2):
            inside(box, touch, f"f{number}")
            box.snapshot(str(number))
        shell(box, "rm -rf d")
        box.restore(snapshot)
        climb = "for n in range(3000): os.chdir('d')\nprint(os.listdir(), open('bottom').read())"
        assert inside(box, climb) == "['bottom'] here\n"
        inside(box, "open('x', 'w').close()")
        distrust(large.home, box, snapshot.number)
        box.restore(snapshot)
        assert inside(box, climb) == "['bottom'] here\n"
        with box.fork(snapshot) as other:
            other.remove()
        box.remove()
    assert os.listdir(large.home.at("layers")) == []


def test_a_directory_of_many_files_and_many_empty_directories(large: Manager) -> None:
    """C6: every look at them is one pass, and the way back does not depend on how many there are."""
    files, directories = 25_000 * SCALE, 5_000 * SCALE
    with large.create(name="wide") as box:
        inside(
            box,
            "os.mkdir('many'); os.mkdir('empty')\n"
            "for n in range(int(sys.argv[1])): os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY))\n"
            "for n in range(int(sys.argv[2])): os.mkdir(f'empty/{n}')",
            str(files),
            str(directories),
        )
        snapshot = box.snapshot("wide")
        assert snapshot.paths_changed == files
        shell(box, "rm -rf many; mv empty/7 empty/seven")
        box.restore(snapshot)
        counted = shell(box, "ls many | wc -l; ls empty | wc -l; test -d empty/7 && echo 7")
        assert counted == f"{files}\n{directories}\n7\n"
        box.remove()


# ru_maxrss of a new process begins with what its parent had before exec; VmHWM is its own.
MEASURED = """
import sys
from ws.layout import open_home
from ws.workspace import open_workspace
box = open_workspace(open_home(sys.argv[1]), sys.argv[2], None)
getattr(box, sys.argv[3])(*sys.argv[4:])
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024)
"""


def measured(manager: Manager, name: str, verb: str, *words: str) -> int:
    """The memory in MiB that an operation took, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, manager.home.root, name, verb, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_files_larger_than_memory_allows_are_taken_in_chunks(large: Manager) -> None:
    """C7: a large file and one of a tebibyte that is nearly all hole; a small change to the large one costs a chunk."""
    with large.create(name="huge") as box:
        inside(
            box,
            "f = open('large', 'wb')\nfor n in range(192): f.write(os.urandom(1 << 20))\nf.close()\n"
            "os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 1 << 40)\n"
            "f = open('sparse', 'r+b'); f.seek(1 << 39); f.write(b'in the middle')",
        )
        before = shell(box, "sha256sum large")
        assert measured(large, "huge", "snapshot", "huge") < 180
        size = store_bytes(large)
        inside(box, "f = open('large', 'r+b'); f.seek(100 << 20); f.write(b'changed')")
        small = box.snapshot("a small change")
        assert store_bytes(large) - size < 3 << 20
        shell(box, "rm large sparse")
        snapshot = next(one for one in box.snapshots() if one.message == "huge")
        distrust(large.home, box, snapshot.number)
        assert measured(large, "huge", "restore", snapshot.commit) < 180
        assert shell(box, "sha256sum large") == before
        assert shell(box, "stat -c %s sparse; dd if=sparse bs=1 skip=549755813888 count=13 status=none") == (
            "1099511627776\nin the middle"
        )
        assert int(shell(box, "du -m sparse | cut -f1")) < 10
        box.restore(small)
        assert shell(box, "dd if=large bs=1 skip=104857600 count=7 status=none") == "changed"
        box.remove()


def store_bytes(manager: Manager) -> int:
    return sum(path.stat().st_size for path in Path(manager.home.store, "objects", "pack").iterdir())


def test_whoever_holds_the_workspace_changes_nothing_of_this(manager: Manager, box: Workspace) -> None:
    """The same content through the frozen scan."""
    with held(box):
        inside(
            box, "os.mkdir('.git'); open('.git/config', 'w').write('[core]'); os.mkfifo('p'); os.symlink('/etc', 'l')"
        )
        before = picture(mounted_at(box))
        snapshot = box.snapshot("held")
        inside(box, "os.unlink('p'); os.rename('.git', 'x')")
    box.restore(snapshot)
    assert outside(box) == before
