"""A source and a workspace's changes to it, without a container: what an apply merges and lands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tree_picture import picture
from ws import apply_records, bases
from ws.applying import ApplyResult, bring_over
from ws.layout import Home, Ids, Options, WorkspaceRecord, open_home
from ws.store.repository import Store
from ws.undo_apply import UndoneApply, take_back

ID = "0" * 12
ME = Ids(1000, 1000, os.geteuid(), os.getegid())


class Bench:
    """A source, and a copy of it in which the workspace's changes are made."""

    def __init__(self, top: Path, base: str = "") -> None:
        self.home: Home = open_home(str(top / "home"))
        self.source = top / "source"
        self.ours = top / "ours"
        self.source.mkdir(exist_ok=True)
        self.exclude: tuple[str, ...] = ()
        self.base = base
        self.applied = ""
        os.makedirs(self.home.workspace(ID), exist_ok=True)

    def begin(self, *exclude: str) -> None:
        """What is in the source now is what was imported."""
        self.exclude = exclude
        self.base = bases.import_source(self.home, str(self.source), ids=ME, exclude=exclude).tree
        subprocess.run(["cp", "-a", self.source, self.ours], check=True)

    def apply(self, *, dry_run: bool = False, with_git_config: bool = False) -> ApplyResult:
        result, self.applied = self._apply(dry_run=dry_run, with_git_config=with_git_config)
        return result

    def _apply(self, *, dry_run: bool, with_git_config: bool) -> tuple[ApplyResult, str]:
        live = bases.import_source(self.home, str(self.ours), ids=ME).tree
        with Store(self.home.store) as store, store.writing():
            result, applied = bring_over(
                self.home,
                store,
                self.record(live),
                live,
                str(self.source),
                with_git_config=with_git_config,
                dry_run=dry_run,
            )
            return result, self.applied if dry_run else applied

    def undo(self, *, dry_run: bool = False) -> UndoneApply:
        """Take the newest apply back."""
        number = apply_records.list_numbers(self.home, ID)[-1]
        applied = apply_records.read_apply(self.home, ID, number)
        with Store(self.home.store) as store, store.writing():
            done = take_back(self.home, store, self.record(""), applied, str(self.source), dry_run=dry_run)
        if not dry_run:
            self.applied = applied.base_before
            apply_records.forget_apply(self.home, ID, number)
        return done

    def record(self, live: str) -> WorkspaceRecord:
        return WorkspaceRecord(
            id=ID, name="box", state="ready", engine="none", created_at=0, base="", tree=live, upper="", ids=ME,
            options=Options(image=""), source=str(self.source), source_tree=self.base, applied_tree=self.applied,
            exclude=self.exclude,
        )  # fmt: skip


def essence(root: Path) -> dict[bytes, object]:
    """Types, modes, content and the times of files; what directories are like follows from it."""
    return {path: (facts[0], facts[1], facts[4] if facts[5] else 0, facts[5]) for path, facts in picture(root).items()}
