"""Whatever happened to a workspace, every snapshot of it comes back exactly.

Bytes, types, modes, owners, times, links, empty directories, hard links, user xattrs, any name: compared path by path,
from inside and from outside, for random trees and random damage. Whether a snapshot was sealed or scanned, and
whether it is restored from layers or from git alone, makes no difference.

One workspace an engine lives through all of this file: the state one test leaves is where the next begins.
WS_PROPERTY_ROUNDS makes it longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import tree_changes
from lived_in import (
    Look,
    change,
    check_store,
    differences,
    held,
    kill_container,
    leftovers,
    look,
    lose_power,
    outside,
    remove_all,
    shell,
    whole_tree,
)
from ws import merging
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

ROUNDS = int(os.environ.get("WS_PROPERTY_ROUNDS", "6"))


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as manager:
        yield manager
        remove_all(manager)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project on the host, with everything that a seed grows."""
    path = tmp_path_factory.mktemp("source")
    tree_changes.live(os.fsencode(path), "grow", 99, 40)
    os.chmod(path, 0o755)
    return path


@pytest.fixture(scope="module")
def beginning(manager: Manager, source: Path) -> Look:
    """What the workspace began as."""
    with manager.create(source, name="lived-in") as box:
        return look(box)


@pytest.fixture(scope="module")
def box(manager: Manager, beginning: Look) -> Iterator[Workspace]:
    """A workspace of user 1000 in which users 1234 and 5678 have left files too."""
    with manager.open("lived-in") as box:
        shell(box, "mkdir -m 777 theirs; chmod 777 theirs")
        shell(box, "mkdir theirs/deep; echo x > theirs/deep/f; chmod 4750 theirs/deep/f", user="1234:5678")
        shell(box, "echo y > theirs/g; ln -s g theirs/l; mkfifo theirs/p", user="5678")
        yield box


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_any_snapshot_comes_back_after_any_damage(manager: Manager, box: Workspace, seed: int) -> None:
    chance = random.Random(seed)
    kept = []
    for step in range(4):
        assert change(box, "grow" if step % 2 == 0 else "damage", 100 * seed + step, 20) > 0
        before = look(box)
        kept.append((box.snapshot(f"{seed}.{step}"), before))
        assert differences(before, look(box)) == [], "taking a snapshot changes nothing"
    for step in range(3):
        change(box, "damage", 1000 + 100 * seed + step, 12)
        snapshot, before = chance.choice(kept)
        damaged = look(box)
        box.restore(snapshot)
        assert differences(before, look(box)) == [], f"seed {seed}, snapshot {snapshot.message}"
        box.undo()
        assert differences(damaged, look(box)) == [], f"seed {seed}, undo of {snapshot.message}"
    assert leftovers(manager.home) == []


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_sealing_and_scanning_give_the_same_tree(manager: Manager, box: Workspace, seed: int) -> None:
    with held(box):
        change(box, "grow", 2000 + seed, 15)
        first = box.snapshot("scanned")
        assert first.tree == whole_tree(manager.home, box)
        change(box, "damage", 2000 + seed, 15)
        scanned = box.snapshot("scanned with a cache")
        assert box.record().upper in os.listdir(manager.home.at("layers")), "nothing was sealed"
        assert scanned.tree == whole_tree(manager.home, box)
        before = look(box)
        upper = box.record().upper
    sealed = box.snapshot("sealed")
    assert box.record().layers[0] == upper, "it was sealed"
    assert sealed.tree == scanned.tree == whole_tree(manager.home, box)
    assert sealed.commit != scanned.commit, "each has its own id"
    assert sealed.skipped == scanned.skipped
    change(box, "damage", 2500 + seed, 10)
    for snapshot in (scanned, sealed):
        box.restore(snapshot)
        assert differences(before, look(box)) == []


@pytest.mark.parametrize("seed", range(max(2, ROUNDS // 2)))
def test_git_alone_gives_back_what_layers_give(manager: Manager, box: Workspace, seed: int) -> None:
    """The caches are lost as after a power cut: every layer and every base is empty, only the upper survived."""
    change(box, "grow", 3000 + seed, 15)
    one, before_one = box.snapshot("one"), look(box)
    change(box, "damage", 3000 + seed, 15)
    two, before_two = box.snapshot("two"), look(box)
    change(box, "damage", 3500 + seed, 6)
    unsaved = look(box)
    lose_power(manager.home, box)
    assert differences(unsaved, look(box)) == [], "the workspace itself is whole again"
    box.restore(one)
    lose_power(manager.home, box, upper=True)
    assert differences(before_one, look(box)) == [], "a restore that was reported happened"
    box.undo()
    assert differences(unsaved, look(box)) == [], "and what it kept was on disk before it"
    lose_power(manager.home, box, upper=True)
    box.restore(one)
    assert differences(before_one, look(box)) == []
    lose_power(manager.home, box, upper=True)
    box.restore(two)
    assert differences(before_two, look(box)) == []
    assert box.snapshot("again").tree == two.tree


def test_a_long_chain_is_merged_and_every_link_of_it_comes_back(manager: Manager, box: Workspace) -> None:
    chance = random.Random(7)
    kept = []
    for step in range(merging.WIDTH * (merging.WIDTH + 1)):
        change(box, chance.choice(["grow", "damage", "damage"]), 4000 + step, 4)
        kept.append((box.snapshot(str(step)), outside(box)))
    record = box.record()
    assert max(map(merging.level_of, record.layers)) == 2, "it was merged, and what had been merged was merged again"
    assert len(record.layers) < 3 * merging.WIDTH
    for snapshot, before in chance.sample(kept, 12):
        change(box, "damage", 5000 + snapshot.number, 3)
        box.restore(snapshot)
        assert outside(box) == before, snapshot.message
    assert kept[-1][0].tree != kept[0][0].tree
    assert leftovers(manager.home) == []


def test_a_fork_begins_as_the_snapshot_and_goes_its_own_way(manager: Manager, box: Workspace) -> None:
    change(box, "grow", 6000, 10)
    before = look(box)
    with box.fork(name="forked") as other:
        assert differences(before, look(other)) == []
        change(other, "damage", 6001, 15)
        theirs = look(other)
        other.snapshot("theirs")
        assert differences(before, look(box)) == []
        change(box, "damage", 6002, 15)
        assert differences(theirs, look(other)) == []
        other.restore("base")
        assert differences(before, look(other)) == []
        kill_container(other)
        assert differences(before, look(other)) == []
        other.remove()
    assert leftovers(manager.home) == []


def test_in_the_end_the_beginning_comes_back_and_nothing_else_has_changed(
    manager: Manager, box: Workspace, beginning: Look, source: Path
) -> None:
    assert len(box.snapshots()) > 2
    box.restore("base")
    assert differences(beginning, look(box)) == []
    check_store(manager.home)
    with manager.create(source, name="later") as other:
        assert differences(beginning, look(other)) == [], "neither the source nor its base was ever written to"
        other.remove()


def test_without_a_container_every_snapshot_comes_back_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    """There the workspace is a plain directory, read whole, and replaced whole by a restore."""
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine="none") as manager:
        with manager.create(name="plain") as box:
            for seed in range(ROUNDS // 2):
                change(box, "grow", 7000 + seed, 20)
                one, before_one = box.snapshot("one"), look(box)
                change(box, "damage", 7100 + seed, 15)
                two, before_two = box.snapshot("two"), look(box)
                change(box, "damage", 7200 + seed, 15)
                damaged = look(box)
                box.restore(one)
                assert differences(before_one, look(box)) == []
                box.undo()
                assert differences(damaged, look(box)) == []
                box.restore(two)
                assert differences(before_two, look(box)) == []
            assert leftovers(manager.home) == []
            check_store(manager.home)
        remove_all(manager)
