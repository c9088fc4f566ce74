"""Changes to state are whole or did not happen, locks die with their holder, and any tree can be removed."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from ws import durable, filesystem_kinds
from ws.errors import Busy, NotFound
from ws.removing import remove_tree


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "record"
    durable.write_file(str(path), b"one")
    durable.write_file(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["record"]


def test_a_failed_write_leaves_the_old_bytes_and_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            durable.write_file(str(path), b"new bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir(tmp_path) == ["record"]
    assert path.read_bytes() == b"old"


def test_a_file_replaces_a_directory_that_damage_has_put_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "record" / "full").mkdir(parents=True)
    durable.write_file(str(tmp_path / "record"), b"a file again")
    assert (tmp_path / "record").read_bytes() == b"a file again"
    assert os.listdir(tmp_path) == ["record"]


@pytest.mark.parametrize("damage", ["missing", "directory", "link", "fifo"])
def test_a_damaged_lock_file_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "lock"
    if damage == "directory":
        (path / "full").mkdir(parents=True)
    elif damage == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif damage == "fifo":
        os.mkfifo(path)
    with durable.locked(str(path)):
        assert path.is_file()
        assert not path.is_symlink()
        with pytest.raises(Busy), durable.locked(str(path), timeout_s=0):
            raise AssertionError("two holders")
    assert os.listdir(tmp_path) == ["lock"]


def test_files_made_durable_together_appear_in_order_or_not_at_all(tmp_path: Path) -> None:
    beside = os.open(tmp_path / "beside", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(beside, b"also")
    seen: list[list[str]] = []
    files = [(str(tmp_path / "one"), b"1"), (str(tmp_path / "two"), b"2")]
    durable.write_files(files, also=[beside], then=lambda: seen.append(os.listdir(tmp_path)))
    assert not {"one", "two"} & set(seen[0]), "synced first, then renamed"
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"1", b"2"]
    os.close(beside)
    ends = os.pipe()
    with pytest.raises(OSError, match="Invalid argument"):  # a pipe cannot be synced
        durable.write_files([(str(tmp_path / "three"), b"3")], also=ends)
    for end in ends:
        os.close(end)
    assert sorted(os.listdir(tmp_path)) == ["beside", "one", "two"]


def test_only_a_journal_keeps_the_order_of_renames(tmp_path: Path) -> None:
    """Asked of real filesystems: the same ext4 with a journal and without."""
    for options, expected in (("^has_journal", False), ("has_journal", True)):
        image, place = tmp_path / f"{expected}.img", tmp_path / str(expected)
        place.mkdir()
        image.touch()
        os.truncate(image, 32 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-O", options, image], check=True)
        done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no loop device: {done.stderr}")
        try:
            assert filesystem_kinds.keeps_order(str(place)) is expected
        finally:
            subprocess.run(["umount", place], check=True)
    assert not filesystem_kinds.keeps_order("/proc")


def test_rename_new_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        durable.rename_new(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "b"


def test_exchange_swaps_two_directories(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    durable.exchange(str(tmp_path / "old"), str(tmp_path / "new"))
    assert os.listdir(tmp_path / "old") == ["new"]
    assert os.listdir(tmp_path / "new") == ["old"]


def test_a_tree_three_thousand_deep_with_hostile_modes_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    locked = top / "locked"
    locked.mkdir()
    (locked / "inside").touch()
    locked.chmod(0)
    remove_tree(str(top))
    assert not top.exists()


def test_removal_never_follows_a_link(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "precious").touch()
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "link").symlink_to(keep)
    (tree / "link").symlink_to(keep)
    remove_tree(str(tree))
    assert (keep / "precious").exists()
    remove_tree(str(tree))  # and again: idempotent


def test_an_exclusive_lock_refuses_others_and_shared_ones_agree(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    durable.create_lock_file(path)
    held = [durable.acquire_lock(path, shared=True) for _ in range(2)]
    with pytest.raises(Busy), durable.locked(path, timeout_s=0.05):
        raise AssertionError("two holders")
    for fd in held:
        os.close(fd)
    with durable.locked(path, timeout_s=0.05):
        pass


def test_a_lock_waits_for_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    durable.create_lock_file(path)
    fd = durable.acquire_lock(path)
    timer = threading.Timer(0.1, os.close, [fd])
    timer.start()
    with durable.locked(path, timeout_s=5):
        timer.join()


def test_a_lock_that_was_removed_with_its_directory_protects_nothing_and_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "workspace"
    directory.mkdir()
    path = str(directory / "lock")
    durable.create_lock_file(path)
    fd = durable.acquire_lock(path)
    waiter_saw: list[BaseException] = []

    def wait() -> None:
        try:
            with durable.locked(path, timeout_s=5):
                pass
        except NotFound as error:
            waiter_saw.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    os.rename(directory, tmp_path / "gone")
    os.close(fd)
    thread.join()
    assert waiter_saw


def test_an_intent_is_there_while_the_block_runs_and_gone_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "pending")
    with durable.intent(path, b"what"):
        assert Path(path).read_bytes() == b"what"
        with pytest.raises(Busy, match="under way"), durable.intent(path, b"other"):
            raise AssertionError("two intents")
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError, match="boom"), durable.intent(path, b"what"):
        raise RuntimeError("boom")
    assert os.listdir(tmp_path) == []


def _die_with_intent(path: str) -> None:
    with durable.intent(path, b"unfinished"):
        os.kill(os.getpid(), signal.SIGKILL)


def test_only_the_dead_leave_an_intent_and_it_is_unlocked(tmp_path: Path) -> None:
    path = str(tmp_path / "pending")
    child = multiprocessing.get_context("fork").Process(target=_die_with_intent, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert Path(path).read_bytes() == b"unfinished"
    with durable.locked(path, timeout_s=0):
        pass
    with pytest.raises(Busy, match="cut short"), durable.intent(path, b"other"):
        raise AssertionError("two intents")
    assert Path(path).read_bytes() == b"unfinished"
