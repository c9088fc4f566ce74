"""Run a story on a recorded disk. A program, in a mount namespace of its own, so that nothing outlives it.

`recording.py FILESYSTEM ENGINE MOUNTPOINT LOG OUT SEED [long]`
"""

from __future__ import annotations

import os
import pickle
import sys

from power.disk import FILESYSTEMS, Log, loop_device, recorded_disk, run
from power.recorder import FLUSH
from power.service import engine_here
from power.story import Recording, Story, fill_source, tell
from ws.manager import Manager


def record(recording: Recording, log: str, seed: int, *, long: bool) -> None:
    kind = FILESYSTEMS[recording.filesystem]
    with recorded_disk(log, kind.size_bytes) as disk:
        with loop_device(disk) as device:
            run(*kind.make, device)
            run("mount", "-o", kind.options, device, recording.mount)
        try:
            prove_flushes(recording.mount, log)
            fill_source(recording.source)
            with engine_here(recording.engine), Manager(home=recording.home, engine=recording.engine) as manager:
                story = Story(recording, log, seed)
                story.begin(manager)
                try:
                    tell(story, long=long)
                finally:
                    for info in manager.list():  # their processes hold the filesystem
                        manager.remove(info.id)
        finally:
            run("umount", recording.mount)


def prove_flushes(mount: str, log: str) -> None:
    """A file that is synced reaches the log, and a flush behind it; otherwise the recording proves nothing."""
    path = os.path.join(mount, "proof")
    before = os.stat(log).st_size
    with open(path, "wb") as file:
        file.write(b"proof" * 1000)
        file.flush()
        os.fsync(file.fileno())
    found = Log(log)
    new = found.entries[found.position(before) :]
    assert new[-1].kind == FLUSH, "an fsync was not followed by a flush of the device"
    assert any(b"proof" * 800 in found.read(entry) for entry in new), "what was synced did not reach the device"
    os.unlink(path)


if __name__ == "__main__":
    filesystem, engine, mount, log, out, seed, *options = sys.argv[1:]
    recording = Recording(filesystem, engine, os.path.realpath(mount))  # type: ignore[arg-type]
    record(recording, log, int(seed), long="long" in options)
    with open(out, "wb") as file:
        pickle.dump(recording, file)
