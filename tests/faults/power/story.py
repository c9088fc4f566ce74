"""Operations of ws on a disk that may lose its power at any time, and what each of them promises.

Beside each operation stands what may be found after a cut: before it began the old state, while it ran the old or the
new, once it was reported the new one. Edits of the workspace's own files are followed by a sync: no promise covers
what a program wrote and did not sync.
"""

from __future__ import annotations

import copy
import os
import random
from dataclasses import dataclass, field

from lived_in import outside, shell
from tree_picture import Picture, picture
from ws import durable
from ws.layout import EngineName
from ws.manager import Manager
from ws.workspace import Workspace

ABSENT = "absent"
ANY = "any"


def look(box: Workspace) -> Picture:
    """All of a workspace but the owners: to the host they are those of the container, which is another after a boot."""
    return {path: (*facts[:2], *facts[4:]) for path, facts in outside(box).items()}


@dataclass
class Promises:
    """What must be found after a cut; states by their labels."""

    workspaces: dict[str, tuple[str, ...]] = field(default_factory=dict)
    snapshots: dict[str, tuple[str, str]] = field(default_factory=dict)  # commit: workspace and state
    source: tuple[str, ...] = (ANY,)


@dataclass
class Recording:
    """All that a replay needs beside the log."""

    filesystem: str
    engine: EngineName
    mount: str
    start_bytes: int = 0
    promises: list[tuple[int, str, Promises]] = field(default_factory=list)  # by the size of the log
    states: dict[str, Picture] = field(default_factory=dict)

    @property
    def home(self) -> str:
        return os.path.join(self.mount, "home")

    @property
    def source(self) -> str:
        return os.path.join(self.mount, "source")


class Story:
    """The operations, one method each; every one notes what it promises and from which entry of the log on."""

    def __init__(self, recording: Recording, log: str, seed: int) -> None:
        self._recording = recording
        self._log = log
        self._now = Promises()
        self._random = random.Random(seed)
        self._number = 0

    def begin(self, manager: Manager) -> None:
        """From here on the power may go. All before it is on the disk."""
        self._manager = manager
        durable.sync_filesystem(self._recording.mount)
        self._recording.start_bytes = os.stat(self._log).st_size
        self._know_source()
        self._note("begin")

    def _note(self, what: str) -> None:
        entry = (os.stat(self._log).st_size, what, copy.deepcopy(self._now))
        self._recording.promises.append(entry)

    def _label(self, what: str) -> str:
        self._number += 1
        return f"{self._number} {what}"

    def _know(self, label: str, box: Workspace) -> None:
        self._recording.states[label] = look(box)

    def _know_source(self) -> None:
        label = self._label("source")
        self._recording.states[label] = picture(self._recording.source)
        self._now.source = (label,)

    # -- operations ------------------------------------------------------------------------------------------------

    def create(self, name: str) -> Workspace:
        label = self._label(f"{name} created")
        self._now.workspaces[name] = (ABSENT, label)
        self._note(f"create {name}")
        box = self._manager.create(self._recording.source, name=name)
        self._now.workspaces[name] = (label,)
        self._note(f"{name} was created")
        self._know(label, box)
        return box

    def edit(self, box: Workspace) -> None:
        """Change files as a program does that syncs in the end."""
        label = self._label(f"{box.name} edited")
        self._now.workspaces[box.name] = (ANY,)
        self._note(f"edit {box.name}")
        number, size = self._number, self._random.choice((10, 5000, 70_000))
        shell(
            box,
            f"mkdir -p d{number}/deep; head -c {size} /dev/urandom > d{number}/deep/random; echo {number} > counter;"
            f"ln d{number}/deep/random linked-{number}; ln -sf counter symbolic; : > empty-{number};"
            f"rm -f empty-{number - 4}; chmod 0{self._random.choice((600, 640, 755))} counter; echo more >> grows",
        )
        durable.sync_filesystem(self._recording.mount)
        self._know(label, box)
        self._now.workspaces[box.name] = (label,)
        self._note(f"{box.name} was edited")

    def snapshot(self, box: Workspace) -> str:
        (label,) = self._now.workspaces[box.name]
        self._note(f"snapshot {box.name}")
        commit = box.snapshot(label, tag=f"t{self._number}").commit
        self._now.snapshots[commit] = (box.name, label)
        self._note(f"snapshot {label} was taken")
        return commit

    def fork(self, box: Workspace, commit: str, name: str) -> Workspace:
        state = self._now.snapshots[commit][1]
        self._now.workspaces[name] = (ABSENT, state)
        self._note(f"fork {name}")
        fork = box.fork(commit, name=name)
        self._now.workspaces[name] = (state,)
        self._note(f"{name} was forked")
        return fork

    def restore(self, box: Workspace, commit: str) -> None:
        new = self._now.snapshots[commit][1]
        old = self._now.workspaces[box.name]
        self._now.workspaces[box.name] = (*old, new)
        self._note(f"restore {box.name} to {new}")
        box.restore(commit)
        self._now.workspaces[box.name] = (new,)
        self._note(f"{box.name} was restored")

    def undo(self, box: Workspace, new: tuple[str, ...]) -> None:
        self._now.workspaces[box.name] = (*self._now.workspaces[box.name], *new)
        self._note(f"undo in {box.name}")
        box.undo()
        self._now.workspaces[box.name] = new
        self._note(f"undone in {box.name}")

    def state(self, box: Workspace) -> tuple[str, ...]:
        return self._now.workspaces[box.name]

    def apply(self, box: Workspace) -> None:
        old = self._now.source
        label = self._label("source applied")
        self._now.source = (*old, label)
        self._note(f"apply {box.name}")
        box.apply()
        self._now.source = (label,)
        self._note(f"{box.name} was applied")
        self._recording.states[label] = picture(self._recording.source)

    def collect(self) -> None:
        self._note("gc")
        self._manager.gc()
        self._note("collected")

    def remove(self, box: Workspace) -> None:
        self._now.workspaces[box.name] = (*self._now.workspaces[box.name], ABSENT)
        kept = self._now.snapshots
        self._now.snapshots = {commit: each for commit, each in kept.items() if each[0] != box.name}
        self._note(f"remove {box.name}")
        box.remove()
        self._now.workspaces[box.name] = (ABSENT,)
        self._note(f"{box.name} was removed")


def fill_source(source: str) -> None:
    """A small project, with what filesystems treat differently: empty, tiny, inline, large, linked."""
    os.makedirs(os.path.join(source, "pkg", "inner"))
    for name, size in (("empty", 0), ("tiny", 3), ("pkg/page", 4096), ("pkg/inner/large", 90_000), ("README", 700)):
        with open(os.path.join(source, name), "wb") as file:
            file.write(random.Random(name).randbytes(size))
    os.symlink("README", os.path.join(source, "link"))
    os.link(os.path.join(source, "tiny"), os.path.join(source, "pkg", "tiny-again"))


def tell(story: Story, *, long: bool) -> None:
    """Every operation that is to survive a cut, each after others have left something to lose."""
    box = story.create("box")
    story.edit(box)
    first = story.snapshot(box)
    story.edit(box)
    second = story.snapshot(box)
    twin = story.fork(box, first, "twin")
    story.edit(twin)
    story.snapshot(twin)
    story.edit(box)
    before = story.state(box)
    story.restore(box, first)
    story.undo(box, before)
    story.apply(box)
    for _ in range(8 if long else 2):
        story.edit(box)
        story.snapshot(box)
    story.remove(twin)
    story.collect()
    story.restore(box, second)
    story.edit(box)
    story.snapshot(box)
    story.apply(box)
    if long:
        other = story.create("other")
        story.edit(other)
        story.snapshot(other)
        story.collect()
        story.remove(other)
    story.remove(box)
