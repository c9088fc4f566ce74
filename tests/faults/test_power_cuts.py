"""The power goes at any instant: what was reported is there, the rest is old or new, and ws goes on.

A story of operations runs on a real filesystem over a disk that records every write and flush (`power`). Then the disk
is rebuilt as each cut leaves it, mounted as a boot mounts it, and ws recovers: every snapshot that was reported
restores byte for byte, each workspace is in its old state or in its new one, each path of the source too, `ws verify`
finds the store sound, and everything can be removed.

An ext4 without a journal is checked by `e2fsck -f -y` first, as at boot. Cuts are sampled here; `scripts/soak-power`
tries all of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from power.disk import TOOLS

ROOT = Path(__file__).parents[2]
EVERY = "WS_EVERY_CUT" in os.environ
REQUIRED = os.environ.get("WS_REQUIRE", "").split(",")
SEED = int(os.environ.get("WS_POWER_SEED", "1"))


def missing() -> str | None:
    """Why no power can be cut here, or None."""
    if os.geteuid() != 0:
        return "only root mounts filesystems"
    lacking = [device for device in ("/dev/fuse", "/dev/loop-control") if not os.path.exists(device)]
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    lacking += sorted(tool for tool in TOOLS if shutil.which(tool, path=path) is None)
    if importlib.util.find_spec("mfusepy") is None:
        lacking.append("mfusepy")
    return f"needs {', '.join(lacking)}" if lacking else None


@pytest.fixture(autouse=True)
def power() -> None:
    reason = missing()
    if reason and "power" in REQUIRED:
        pytest.fail(f"WS_REQUIRE names power, and it cannot be cut here: {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


def program(name: str, *words: str, source: Path) -> str:
    """Run a module of `power` on a ws, in a mount namespace of its own."""
    path = ":".join(map(str, (source, ROOT / "tests" / "faults", ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PATH"] += ":/usr/sbin:/sbin"
    environment.pop("CONTAINER_HOST", None)  # that service does not see the disk
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", f"power.{name}", *words],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def cut_power(
    top: Path, filesystem: str, engine: str, *, reported: int, others: int, source: Path = ROOT / "src"
) -> list[dict[str, str]]:
    """Record a story, try the cuts; a row for each, with its problem if there is one."""
    mount, log, recording = top / "disk", top / "log", top / "recording"
    mount.mkdir()
    length = ["long"] if EVERY else []
    program("recording", filesystem, engine, str(mount), str(log), str(recording), str(SEED), *length, source=source)
    numbers = (-1, -1, 3, SEED) if EVERY else (reported, others, 1, SEED)
    out = program("replay", str(recording), str(log), *map(str, numbers), source=source)
    return [json.loads(line) for line in out.splitlines()]


def check(rows: list[dict[str, str]]) -> None:
    print(f"{len(rows)} cuts")
    bad = [row for row in rows if row["problem"]]
    told = "\n".join(f"{row['cut']}, {row['during']}: {row['problem'][-1500:]}" for row in bad[:5])
    assert not bad, f"{len(bad)} of {len(rows)} cuts\n{told}"


@pytest.mark.timeout(0 if EVERY else 300)
@pytest.mark.parametrize("filesystem", ["ext4", "ext4-no-journal", "xfs"])
def test_what_was_reported_survives_a_power_cut(tmp_path: Path, filesystem: str) -> None:
    rows = cut_power(tmp_path, filesystem, "none", reported=-1, others=8)
    assert len(rows) > 30
    check(rows)


@pytest.mark.podman
@pytest.mark.timeout(0 if EVERY else 300)
def test_what_a_container_changed_survives_a_power_cut(tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    rows = cut_power(tmp_path, "ext4", "podman", reported=8, others=4)
    assert len(rows) >= 12
    check(rows)


def test_a_product_that_does_not_sync_its_files_is_found_out(tmp_path: Path) -> None:
    """The proof that these tests can fail: without the fsync of `write_file`, records are lost."""
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    durable = source / "ws" / "durable.py"
    text = durable.read_text()
    synced = "            if sync:\n                os.fsync(fd)\n        finally:"
    assert text.count(synced) == 1
    durable.write_text(text.replace(synced, "            pass\n        finally:"))
    rows = cut_power(tmp_path, "ext4", "none", reported=24, others=24, source=source)
    assert any(row["problem"] for row in rows), rows
