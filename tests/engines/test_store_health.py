"""The store under a living workspace: damage is not relied on, bases of restores are freed, references are packed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import check_store, remove_all, shell
from ws import durable
from ws.layout import EngineName, Intent
from ws.manager import Manager
from ws.store import references
from ws.store.packs import BLOB, object_id
from ws.store.repository import Store


@pytest.fixture
def manager(engine_name: EngineName, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine_name) as manager:
        yield manager
        remove_all(manager)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/precious").write_bytes(b"precious " * 500)
    return tmp_path / "project"


def damage(manager: Manager, content: bytes) -> None:
    """Write over the middle of the stored copy of a content."""
    with Store(manager.home.store) as store:
        (pack,) = (pack for pack in store.all_packs() if pack.find(object_id(BLOB, content)) >= 0)
        with open(pack.name + ".pack", "r+b") as file:
            file.seek(pack.index.offset(pack.find(object_id(BLOB, content))) + 12)
            file.write(b"\0\0\0\0")


def test_a_content_whose_stored_copy_is_damaged_is_stored_again(manager: Manager, project: Path) -> None:
    content = (project / "precious").read_bytes()
    with manager.create(str(project)) as box:
        first = box.snapshot("first")
        damage(manager, content)
        report = manager.verify()
        assert [finding.path for finding in report.findings] == ["precious"]
        shell(box, "cp precious anew; rm precious; mv anew precious")
        again = box.snapshot("the same content, written anew")
        assert manager.verify().sound
        shell(box, "rm precious")
        manager.gc()
        box.restore(again)
        assert shell(box, "cat precious").encode() == content
        box.restore(first)
        assert shell(box, "cat precious").encode() == content
    check_store(manager.home)


def test_the_bases_of_restores_are_freed_by_the_next_collection(manager: Manager, project: Path) -> None:
    count = 8
    with manager.create(str(project)) as box:
        taken = []
        for number in range(count):
            shell(box, f"echo {number} > number")
            taken.append(box.snapshot(str(number)))
        forget_stacks(manager, box.id)
        for snapshot in taken:
            box.restore(snapshot)
        assert len(bases(manager)) == count + 1
        told = manager.gc(dry_run=True)
        freed = manager.gc()
        assert told.bases == freed.bases == count - 1
        assert bases(manager) == {box.record().base, first_base(manager, box.id)}
        assert freed.bases_kept == freed.bases_in_use == 0
        assert shell(box, "cat number") == f"{count - 1}\n"
        box.restore(taken[2])
        assert shell(box, "cat number") == "2\n"
    check_store(manager.home)


def test_snapshots_that_stand_on_bases_of_restores_do_not_keep_them_for_long(manager: Manager, project: Path) -> None:
    with manager.create(str(project)) as box:
        taken = []
        for number in range(5):
            shell(box, f"echo {number} > number")
            taken.append(box.snapshot(str(number)))
        forget_stacks(manager, box.id)
        later = []
        for snapshot in taken:
            box.restore(snapshot)
            shell(box, "echo later > later")
            later.append(box.snapshot("later"))
        assert len(bases(manager)) == 6
        manager.gc()
        # What the workspace stands on, what an undo would bring back, and what it began as.
        assert len(bases(manager)) <= 3
        box.restore(later[1])
        assert shell(box, "cat number later") == "1\nlater\n"
    check_store(manager.home)


def test_a_base_that_an_operation_under_way_may_use_stays(manager: Manager, project: Path) -> None:
    with manager.create(str(project)) as box, manager.create(str(project)) as other:
        shell(box, "echo 1 > number")
        good = box.snapshot("good")
        shell(box, "echo 2 > number")
        newest = box.snapshot("newest")
        forget_stacks(manager, box.id)
        intent = Intent(workspace_id=other.id, operation="snapshot", engine=other.record().engine)
        with durable.intent(manager.home.pending(other.id), intent.to_bytes()):
            box.restore(good)
            box.restore(newest)
            kept = manager.gc()
            assert (kept.bases, kept.bases_in_use) == (0, 1)
        assert manager.gc().bases == 1


def test_a_base_of_a_removed_workspace_stays_for_an_hour_and_that_is_said(manager: Manager, project: Path) -> None:
    manager.create(str(project)).remove()
    kept = manager.gc()
    assert (kept.bases, kept.bases_kept) == (0, 1)
    assert kept.bases_kept_until
    (key,) = bases(manager)
    info = os.path.join(manager.home.base(key), "info.json")
    os.utime(info, (0, os.stat(info).st_mtime - 3700))
    assert manager.gc().bases == 1


def test_restores_and_collections_beside_each_other(manager: Manager, project: Path) -> None:
    with manager.create(str(project)) as box:
        taken = []
        for number in range(3):
            shell(box, f"echo {number} > number")
            taken.append(box.snapshot(str(number)))
        done = threading.Event()
        troubles: list[BaseException] = []

        def collect() -> None:
            while not done.is_set():
                try:
                    manager.gc()
                except BaseException as error:
                    troubles.append(error)
                    raise

        collector = threading.Thread(target=collect)
        collector.start()
        try:
            for turn in range(12):
                forget_stacks(manager, box.id)
                box.restore(taken[turn % 3])
                assert shell(box, "cat number") == f"{turn % 3}\n"
        finally:
            done.set()
            collector.join()
        assert troubles == []
    check_store(manager.home)


def test_references_are_packed_when_they_are_many(manager: Manager) -> None:
    with manager.create() as box:
        taken = [box.snapshot(str(number)) for number in range(references.MANY_LOOSE + 20)]
        loose = os.listdir(os.path.join(manager.home.store, "refs", "workspaces", box.id))
        assert len(loose) <= references.MANY_LOOSE
        assert [snapshot.commit for snapshot in box.snapshots()][1:] == [snapshot.commit for snapshot in taken]
        box.restore(taken[3].id)
        box.restore(taken[-1].id)
    check_store(manager.home)


def bases(manager: Manager) -> set[str]:
    return set(os.listdir(manager.home.at("bases")))


def first_base(manager: Manager, workspace_id: str) -> str:
    from ws.bases import base_key
    from ws.records import read_record

    record = read_record(manager.home, workspace_id)
    assert record is not None
    return base_key(record.origin_tree, record.ids)


def forget_stacks(manager: Manager, workspace_id: str) -> None:
    """As if a collection had dropped the layers of old snapshots."""
    directory = os.path.dirname(manager.home.stack(workspace_id, 0))
    for name in os.listdir(directory):
        os.unlink(os.path.join(directory, name))
