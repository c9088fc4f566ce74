"""A merged layer shows exactly what the chain it came from shows, over any base, as the kernel itself sees it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from ws import overlay
from ws.layout import Home, open_home
from ws.merging import WIDTH, level_of, merge_layers, plan_merge
from ws.removing import remove_tree

pytestmark = pytest.mark.root
OPAQUE = "trusted.overlay.opaque"


def seen(path: Path) -> dict[str, tuple[object, ...]]:
    """Everything a container could notice of a tree."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(path):
        for name in [".", *names, *files]:
            full = os.path.join(directory, name)
            status = os.lstat(full)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                content = Path(full).read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(full)
            xattrs = {
                key: os.getxattr(full, key, follow_symlinks=False) for key in os.listxattr(full, follow_symlinks=False)
            }
            mtime = status.st_mtime_ns
            found[os.path.relpath(full, path)] = (status.st_mode, status.st_uid, mtime, content, tuple(xattrs.items()))
    return found


def mounted(home: Home, layers: list[str], base: Path, place: Path) -> dict[str, tuple[object, ...]]:
    upper = place / f"view-{os.urandom(4).hex()}"
    for part in ("data", "work", "mnt"):
        (upper / part).mkdir(parents=True)
    lowers = [os.path.join(home.layer(layer), "data") for layer in layers]
    shutil.copystat(lowers[0], upper / "data")
    os.chown(upper / "data", os.stat(lowers[0]).st_uid, os.stat(lowers[0]).st_gid)
    plan = overlay.MountPlan((*lowers, str(base)), str(upper))
    mount = plan.execute()
    overlay.move_mount(mount, str(upper / "mnt"))
    os.close(mount)
    try:
        return seen(upper / "mnt")
    finally:
        overlay.umount2(str(upper / "mnt"))


def act(root: Path, dice: random.Random) -> None:
    """One random change, of the kinds that programs make; what does not fit the tree just fails, as there."""
    path = root.joinpath(*dice.choices("abcd", k=dice.randint(1, 3)))
    with contextlib.suppress(OSError):
        match dice.randint(0, 6):
            case 0 | 1:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(dice.random()))
            case 2:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            case 3:
                path.mkdir()
            case 4:
                path.chmod(dice.choice([0o700, 0o755, 0o711]))
                os.setxattr(path, "user.note", str(dice.random()).encode())
            case 5:
                path.symlink_to(dice.choice("abcd"))
            case 6:
                shutil.rmtree(path)
                path.mkdir()
                (path / "again").write_text("again")


@pytest.mark.parametrize("seed", range(12))
def test_the_merged_layer_shows_what_the_chain_shows(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    home = open_home(str(tmp_path / "home"))
    base = tmp_path / "base"
    base.mkdir()
    for _ in range(40):
        act(base, dice)
    chain: list[str] = []
    for number in range(5):
        layer = Path(home.layer(f"l{number}"))
        for part in ("data", "work", "users", "mnt"):
            (layer / part).mkdir(parents=True)
        lowers = [os.path.join(home.layer(name), "data") for name in chain]
        mount = overlay.MountPlan((*lowers, str(base)), str(layer)).execute()
        overlay.move_mount(mount, str(layer / "mnt"))
        os.close(mount)
        try:
            for _ in range(25):
                act(layer / "mnt", dice)
        finally:
            overlay.umount2(str(layer / "mnt"))
        chain.insert(0, f"l{number}")
    merged = merge_layers(home, chain, [str(base)], "user", opaque=OPAQUE)
    assert level_of(merged) == 1
    before = seen(Path(home.layer(chain[0])) / "data")
    assert mounted(home, [merged], base, tmp_path) == mounted(home, chain, base, tmp_path)
    part = merge_layers(
        home,
        chain[:3],
        [*(os.path.join(home.layer(name), "data") for name in chain[3:]), str(base)],
        "user",
        opaque=OPAQUE,
    )
    assert mounted(home, [part, *chain[3:]], base, tmp_path) == mounted(home, chain, base, tmp_path)
    assert seen(Path(home.layer(chain[0])) / "data") == before
    assert not [name for name in os.listdir(home.at("layers")) if name.endswith(".new")]
    remove_tree(home.root)


def test_only_a_full_run_of_one_level_is_merged_with_what_is_above_it() -> None:
    assert plan_merge([f"x{n}" for n in range(WIDTH - 1)]) == 0
    assert plan_merge([f"x{n}" for n in range(WIDTH)]) == WIDTH
    assert plan_merge(["x", *[f"m{n}-1" for n in range(WIDTH - 1)]]) == 0
    assert plan_merge(["x", *[f"m{n}-1" for n in range(WIDTH)]]) == WIDTH + 1
    assert plan_merge([f"m{n}-1" for n in range(WIDTH)] + ["old-2"]) == WIDTH


def test_a_chain_stays_short_over_ten_thousand_snapshots() -> None:
    chain: list[str] = []
    for _ in range(10_000):
        run = plan_merge(chain)
        if run:
            chain[:run] = [f"merged-{max(map(level_of, chain[:run])) + 1}"]
        chain.insert(0, "sealed")
        assert len(chain) <= 40
    assert {level_of(layer) for layer in chain} >= {0, 3, 4}


@pytest.mark.parametrize("looks", [1, 3, 8, 20])
def test_a_chain_stays_short_when_every_snapshot_comes_after_some_looks(looks: int) -> None:
    """A look seals, and what it sealed is merged by itself until a snapshot has it (`capturing._shortened`)."""
    fresh: list[str] = []
    kept: list[str] = []
    for number in range(10_000):
        for chain in (kept, fresh):
            if run := plan_merge(chain):
                chain[:run] = [f"merged-{max(map(level_of, chain[:run])) + 1}"]
        fresh.insert(0, "sealed")
        if number % (looks + 1) == looks:
            kept, fresh = fresh + kept, []
        assert len(fresh) + len(kept) <= 80


def test_a_merge_copies_no_bytes(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    for number in range(2):
        data = Path(home.layer(f"l{number}")) / "data"
        data.mkdir(parents=True)
        (data / f"file{number}").write_bytes(b"x" * 100_000)
    merged = merge_layers(home, ["l1", "l0"], [], "user", opaque=OPAQUE)
    for number in range(2):
        copy = os.stat(os.path.join(home.layer(merged), "data", f"file{number}"))
        assert copy.st_ino == os.stat(os.path.join(home.layer(f"l{number}"), "data", f"file{number}")).st_ino
    assert subprocess.run(["find", home.layer(merged), "-type", "c"], capture_output=True).stdout == b""
