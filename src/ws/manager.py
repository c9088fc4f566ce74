"""Manager: create, open, list and remove workspaces under one WS_HOME.

There is no daemon: state is files, locks are flock, and every manager first settles what a dead one left.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ws import pool
from ws.creation import create_workspace, name_taken, options_of, whole_or_gone
from ws.discard import ENGINES
from ws.engine.base import Engine, ImageFacts
from ws.errors import InvalidRequest, StateError, WorkspaceError, WorkspaceNotFound
from ws.layout import EngineName, Home, Ids, Options, WorkspaceRecord, new_id, open_home, resolve_name
from ws.listing import WorkspaceInfo, list_workspaces
from ws.pool import check_size
from ws.records import find_workspace, name_of, read_record
from ws.recovery import recover
from ws.spec import WorkspaceSpec, check_image, check_name, check_spec, default_name
from ws.users import resolve_user
from ws.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from ws.bundle_manifest import ChosenSpec
    from ws.collecting import Collected
    from ws.pruning import Pruned
    from ws.store.import_limits import ImportLimits
    from ws.verifying import VerifyReport
    from ws.warming import PoolInfo

DEFAULT_IMAGE = "localhost/ws-base:latest"

Progress = Callable[[str, int, int], None]


class Manager:
    """The workspaces of one WS_HOME. `engine` is the default for `create`; each workspace remembers its own.

    `pool` is how many containers are kept warm for the workspaces to come, of each configuration that is used: after
    each create a process in the background makes what is missing. Default: WS_POOL, else none.
    """

    def __init__(
        self,
        home: str | None = None,
        engine: EngineName | None = None,
        *,
        runtime: str | None = None,
        pool: int | None = None,
    ) -> None:
        self._pool_size = check_size(pool)
        self._home = open_home(home)
        self._engine_name = engine
        self._runtime = runtime
        self._engines: dict[tuple[EngineName | None, str | None], Engine] = {}
        self._lent = 0
        try:
            settled = recover(self._home, self.engine)
        except BaseException:
            self.close()
            raise
        self._finished = {word: each.removed[-1] for each in settled for word in each.removed}

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lend(self) -> None:
        """A handle keeps this manager: it is closed when the last one that does gives it back."""
        self._lent += 1

    def give_back(self) -> None:
        self._lent -= 1
        if self._lent == 0:
            self.close()

    def close(self) -> None:
        """Let go of connections to engines; workspaces go on. What is used afterwards connects again."""
        for engine in set(self._engines.values()):
            engine.close()
        self._engines.clear()

    @property
    def home(self) -> Home:
        return self._home

    def engine(self, name: EngineName | None = None, runtime: str | None = None) -> Engine:
        """The engine of that name, or the one that `create` would use. Raises EngineUnavailable."""
        from ws.engine.choose import choose_engine

        key = (name or self._engine_name, runtime or self._runtime)
        if key not in self._engines:
            engine = choose_engine(key[0], home=self._home.root, runtime=key[1])
            self._engines[key] = self._engines[engine.name, key[1]] = engine
        return self._engines[key]

    # -- create ----------------------------------------------------------------------------------------------

    def create(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
        remove_on_exit: bool = False,
        owned: bool = False,
        **options: Any,
    ) -> Workspace:
        """A new workspace over `source` as it is now; `options` are the fields of `WorkspaceSpec`.

        Commit point: the record that says `ready`. A crash before it leaves an Intent, and the next ws command
        removes all of it; the base stays, because others may share it. A create that raises, for whatever reason,
        leaves no workspace. With `owned` the handle closes this manager with itself.
        Raises InvalidRequest, SourceRefused, WorkspaceExists, EngineUnavailable, ImageNotFound, SourceChanged.
        """
        spec = check_spec(source=os.fspath(source) if source is not None else None, **options)
        if spec.name and resolve_name(self._home, spec.name):
            raise name_taken(spec.name)
        record = self._plan(self.engine(spec.engine, spec.runtime), spec, progress)
        with whole_or_gone(self._home, record.id, self.remove):
            create_workspace(self._home, record, self.engine, pool_size=self._pool_size)
            return self._handle(record.id, remove_on_exit=remove_on_exit, owned=owned)

    def create_many(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        count: int,
        progress: Progress | None = None,
        **options: Any,
    ) -> builtins.list[Workspace]:
        """As many workspaces over one source, as many at once as the machine bears; with a name, they are NAME-1 to -N.

        All or none: if one cannot be made, those made before it are removed. Raises what `create` raises.
        """
        from ws.many import create_many

        spec = check_spec(source=os.fspath(source) if source is not None else None, **options)
        record = self._plan(self.engine(spec.engine, spec.runtime), spec, progress)
        made = create_many(
            self._home,
            record,
            count,
            self.engine,
            name=spec.name,
            pool_size=self._pool_size,
            remove=self.remove,
            progress=progress,
        )
        with contextlib.ExitStack() as all_or_none:
            for each in made:
                all_or_none.enter_context(whole_or_gone(self._home, each.id, self.remove))
            return [self._handle(each.id) for each in made]

    def _handle(self, workspace_id: str, *, remove_on_exit: bool = False, owned: bool = False) -> Workspace:
        return Workspace(
            self._home,
            workspace_id,
            self.engine,
            remove_on_exit=remove_on_exit,
            pool_size=self._pool_size,
            owner=self if owned else None,
        )

    def fork(self, name: str, snapshot: str | None = None, *, new_name: str | None = None) -> Workspace:
        """A new workspace that shares the layers of a snapshot of another; by default of one taken now.

        Raises WorkspaceNotFound, WorkspaceExists, SnapshotNotFound, RestoreFailed, Busy.
        """
        with self.open(name) as parent:
            return parent.fork(snapshot, name=new_name)

    def import_bundle(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        image: str | None = None,
        engine: EngineName | None = None,
        trust_spec: bool = False,
        limits: ImportLimits | None = None,
        report: Callable[[ChosenSpec], None] | None = None,
        progress: Progress | None = None,
    ) -> Workspace:
        """A workspace from a bundle that `Workspace.export_bundle` made, with all its snapshots and its own container.

        Nothing in the bundle is trusted before it was checked, within `limits`. Its source is a path of another machine
        and is not taken over. What it asks for its container (user, network, limits, environment, …) is taken only with
        `trust_spec`; `report` is called with what it asks for and what is used.
        Commit point: the record that says `ready`.
        Raises BundleRefused, LimitExceeded, InvalidName, WorkspaceExists, ImageNotFound, EngineUnavailable.
        """
        from ws.bundle_import import ImportOptions, import_bundle
        from ws.store.import_limits import ImportLimits

        if name is not None:
            check_name(name)
        options = ImportOptions(name, image, trust_spec, limits or ImportLimits())
        made = import_bundle(
            self._home, os.fspath(path), self.engine(engine), self.engine, options=options, progress=progress
        )
        with whole_or_gone(self._home, made.record.id, self.remove):
            if report:
                report(made.spec)
            return self._handle(made.record.id)

    def _plan(self, engine: Engine, spec: WorkspaceSpec, progress: Progress | None) -> WorkspaceRecord:
        """Everything that can be refused is refused here, before anything of the workspace is on disk."""
        from ws.bases import import_source

        if spec.disk is not None:
            # A limit that nothing enforces is worse than none: project quotas are to come (docs/decisions/0007).
            raise InvalidRequest(
                "a disk limit cannot be enforced yet", hint="put WS_HOME on a filesystem of the size you allow"
            )
        options, ids, facts = self._configure(engine, spec)
        base = import_source(self._home, spec.source, ids=ids, exclude=spec.exclude, progress=progress)
        workspace_id = new_id()
        now = time.time()
        return WorkspaceRecord(
            id=workspace_id,
            name=spec.name or default_name(spec.source, workspace_id, lambda name: resolve_name(self._home, name)),
            state="ready",
            engine=engine.name,
            created_at=now,
            expires_at=now + spec.ttl if spec.ttl else None,
            base=base.key,
            tree=base.tree,
            origin_tree=base.tree,
            source_tree=base.tree,
            upper=new_id(),
            ids=ids,
            options=options,
            source=os.path.realpath(spec.source) if spec.source else None,
            exclude=spec.exclude,
            image_id=facts.id,
            image_env=dict(facts.env),
            skipped=tuple(map(str, base.skipped)),
        )

    def _configure(self, engine: Engine, spec: WorkspaceSpec) -> tuple[Options, Ids, ImageFacts]:
        """What the container of a workspace is to have. Raises ImageNotFound, InvalidRequest for the user."""
        image = check_image(spec.image or os.environ.get("WS_IMAGE") or DEFAULT_IMAGE)
        facts = engine.image(image)
        options = replace(options_of(spec, image), runtime=spec.runtime)
        uid, gid = resolve_user(self._home, engine, options, facts.id, spec.user or facts.user)
        return options, engine.host_ids(uid, gid), facts

    # -- pool ------------------------------------------------------------------------------------------------

    def fill_pool(self, size: int, *, progress: Progress | None = None, **options: Any) -> int:
        """Have this many containers wait for workspaces that are asked for with these `options`; how many were made.

        Raises InvalidRequest, ImageNotFound, EngineUnavailable, Busy.
        """
        from ws.warming import fill

        spec = check_spec(**options)
        engine = self.engine(spec.engine, spec.runtime)
        made, ids, facts = self._configure(engine, spec)
        configuration = pool.configuration_of(engine.name, facts.id, ids, made)
        return fill(self._home, self.engine, configuration, size, image=made.image, progress=progress)

    def fill_pool_like(self, key: str, size: int, *, progress: Progress | None = None) -> int:
        """As `fill_pool`, for a configuration that the pool has, by the beginning of its key. Raises NotFound."""
        from ws.warming import fill

        known, image = pool.find_configuration(self._home, key)
        configuration = pool.configuration_of(known.engine, known.image_id, known.ids, known.options)
        return fill(self._home, self.engine, configuration, size, image=image, progress=progress)

    def list_pool(self) -> builtins.list[PoolInfo]:
        """The warm containers, by configuration."""
        from ws.warming import look

        return look(self._home)

    def drain_pool(self, image: str | None = None, *, dry_run: bool = False, progress: Progress | None = None) -> int:
        """Remove the warm containers, of one image or all; how many there were. A `dry_run` only counts."""
        from ws.warming import drain

        if image is not None:
            check_image(image)
        return drain(self._home, self.engine, image=image, dry_run=dry_run, progress=progress)

    # -- find ------------------------------------------------------------------------------------------------

    def open(self, name: str, *, owned: bool = False) -> Workspace:
        """The workspace of that name or id. Raises WorkspaceNotFound.

        With `owned` the handle closes this manager with itself.
        """
        owner = self if owned else None
        return open_workspace(self._home, name, self.engine, pool_size=self._pool_size, owner=owner)

    def list(self) -> list[WorkspaceInfo]:
        """Every workspace, oldest first, from the records alone: no engine is asked."""
        return list_workspaces(self._home)

    # -- end -------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> WorkspaceError | None:
        """Remove a workspace, also one whose record is damaged or which is half removed.

        Never fails because the engine is gone or the store is damaged: returns that trouble, if something may be left.
        Raises WorkspaceNotFound, Busy. Commit point: as in `Workspace.remove`.
        """
        from ws.removal import remove_workspace

        workspace_id = find_workspace(self._home, name, removing=True)
        if workspace_id is not None:
            return remove_workspace(self._home, self.engine, workspace_id, name)
        if name not in self._finished:  # else an earlier removal was cut short, and this manager has just finished it
            raise _not_found(name)
        return None

    def find_removable(self, name: str) -> tuple[str, str] | None:
        """The id and the name of what `remove` would remove; None when there is no such workspace.

        Also a workspace with a damaged record, one that is half removed, and one whose removal was just finished.
        """
        workspace_id = find_workspace(self._home, name, removing=True)
        if workspace_id is None:
            return (name, self._finished[name]) if name in self._finished else None
        try:
            record = read_record(self._home, workspace_id)
        except (StateError, OSError):
            record = None
        return workspace_id, record.name if record else name_of(self._home, workspace_id) or workspace_id

    def _resolve(self, name: str) -> str:
        workspace_id = find_workspace(self._home, name)
        if workspace_id is None:
            raise _not_found(name)
        return workspace_id

    def verify(self, name: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
        """Read everything back: the snapshots of one workspace, or of all, and the bases. Damage is in the report.

        Raises WorkspaceNotFound, StoreDamaged when the store cannot be opened at all.
        """
        from ws.verifying import verify

        return verify(self._home, self._resolve(name) if name is not None else None, progress=progress)

    def gc(self, *, dry_run: bool = False, progress: Progress | None = None) -> Collected:
        """Remove layers, bases, runtimes and objects that nothing needs; safe beside running workspaces.

        Raises Busy when another collection runs, StoreDamaged when the store is not whole, StateUnusable when the
        disk is too full to pack what is left; what was removed by then is gone.
        """
        from ws.collecting import collect
        from ws.removal import freeing

        complaint = "not everything that nothing needs could be removed"
        return freeing(self._home, lambda: collect(self._home, dry_run=dry_run, progress=progress), complaint)

    def prune(self, *, now: float | None = None, dry_run: bool = False) -> Pruned:
        """Remove workspaces whose time is up, and what crashes left, on every engine that answers.

        What could not be done is in `troubles`; nothing of it is raised.
        """
        from ws.pruning import prune
        from ws.removal import freeing

        asked_for = self._engine_name or os.environ.get("WS_ENGINE") or None
        needed = next((name for name in ENGINES if name == asked_for), None)
        return freeing(
            self._home,
            lambda: prune(self._home, self.engine, self.remove, needed=needed, now=now, dry_run=dry_run),
            "not everything that crashes left could be removed",
        )


def _not_found(name: str) -> WorkspaceNotFound:
    return WorkspaceNotFound(f"no workspace is called {name!r}", hint="`ws ls` shows what there is")
