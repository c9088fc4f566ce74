"""Workspace: what users hold.

A handle is cheap and stateless: it knows an id, and reads the record anew for every operation, so several handles in
several processes agree. A command needs the workspace's lock shared, and only until the shim has started it; what
changes the workspace needs it exclusively. A workspace whose container is gone (a reboot, `podman rm`) is brought
back by its next use.

Light to import: `ws exec` comes through here. Engines, pygit2 and pydantic are loaded by what needs them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ws import containers, durable
from ws.containers import EngineFor
from ws.errors import (
    CommandFailedError,
    InvalidRequest,
    NotFound,
    WorkspaceError,
    WorkspaceNotFound,
)
from ws.inside import Held, Inside, environment
from ws.layout import Home, Intent, WorkspaceRecord, new_id
from ws.listing import WorkspaceInfo
from ws.records import find_workspace, read_record, write_record
from ws.recovery import begin, ensure_whole, recover_workspace
from ws.remote.channel import Channel
from ws.remote.exec_request import check_output_cap, check_timeout, encode_command
from ws.remote.following import Terminal
from ws.remote.results import ExecResult, PeerFacts, SessionFacts
from ws.timeline import Timeline
from ws.vitals import Vitals

if TYPE_CHECKING:
    from ws.files import WorkspaceFilesystem
    from ws.fs.protocol import Limits
    from ws.history import Snapshot
    from ws.toolbox.approval import Approval, ApprovalPolicy
    from ws.toolbox.policy import CommandPolicy
    from ws.toolbox.roots import FsMode
    from ws.toolbox.router import Router
    from ws.tools.context import Caps

MAX_OUTPUT_BYTES = 16 << 20
LOCK_TIMEOUT_S = 30.0
KILLED = 128 + 9  # by SIGKILL
SHELL = ("/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash; exec sh")


class Owner(Protocol):
    """What a handle keeps open for as long as it is open itself: the manager of `ws.create` and `ws.open`."""

    def lend(self) -> None: ...
    def give_back(self) -> None: ...


class Workspace(Timeline):
    """A workspace that exists. As a context manager it is removed on exit if `ws.create` made it."""

    def __init__(
        self,
        home: Home,
        workspace_id: str,
        engine_for: EngineFor,
        *,
        remove_on_exit: bool = False,
        pool_size: int | None = None,
        owner: Owner | None = None,
    ) -> None:
        self._home = home
        self._owner: Owner | None = None
        self._pool_size = pool_size
        self._engine_for = engine_for
        self._remove_on_exit = remove_on_exit
        self._channel: Channel | None = None
        self._vitals: Vitals | None = None  # of the container that the channel leads to
        self._channel_pid = 0
        self._channel_lock = threading.Lock()
        self._fs: WorkspaceFilesystem | None = None
        self._tools: Router | None = None
        self.id = workspace_id
        self.name = self.record().name
        if owner is not None:
            owner.lend()
            self._owner = owner

    def __repr__(self) -> str:
        return f"<Workspace {self.name} ({self.id})>"

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._remove_on_exit:
                self.remove()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections of this handle, and the manager that `ws.create` or `ws.open` made for it.

        The workspace goes on. Idempotent; what is used afterwards connects again.
        """
        self._disconnect()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.give_back()

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # -- what it is ------------------------------------------------------------------------------------------

    def record(self) -> WorkspaceRecord:
        """What is recorded of it now. Raises WorkspaceNotFound."""
        record = read_record(self._home, self.id)
        if record is None or record.state != "ready":
            raise WorkspaceNotFound(f"workspace {self.id} is gone", hint="`ws ls` shows what there is")
        return record

    def info(self) -> WorkspaceInfo:
        return WorkspaceInfo.of(self.record())

    @property
    def root(self) -> str:
        """Where its files are, as its commands see them."""
        return containers.root_of(self._home, self.record())

    # -- commands --------------------------------------------------------------------------------------------

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | BinaryIO | None = None,
        max_output_bytes: int | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end. A failing command is a result; a dead container is an exception.

        `timeout` ends the whole process group and returns the partial output with `timed_out` set. Each stream is
        kept up to `max_output_bytes`, 16 MiB by default; with `on_output` it goes there as it comes, as ("stdout" or
        "stderr", bytes), and has no cap unless one is given.
        Raises CommandFailedError when it cannot be started, ContainerDied, ProtocolError, WorkspaceNotFound, Busy.
        """
        if isinstance(argv, str):
            raise InvalidRequest("a command is a list of words", hint='for a shell line: ["sh", "-c", line]')
        if not argv:
            raise InvalidRequest("the command is empty")
        channel, record, lock = self._enter()
        try:
            vitals = self._vitals
            oom_kills = vitals.oom_kills() if vitals else 0
            root = containers.root_of(self._home, record)
            cap = check_output_cap(max_output_bytes, None if on_output else MAX_OUTPUT_BYTES)
            if user is None or user in (str(record.ids.uid), f"{record.ids.uid}:{record.ids.gid}"):
                result = channel.exec(
                    list(argv),
                    workdir=workdir or root,
                    env=environment(record, env),
                    stdin=stdin,
                    timeout_s=timeout,
                    max_output_bytes=cap,
                    on_output=on_output,
                    started=lock.release,
                )
            else:
                from ws.engine.users import resolve_user
                from ws.remote.keeping import exec_kept

                if stdin is not None:
                    hint = "leave out --user"
                    raise CommandFailedError("input for a command of another user is not possible", hint=hint)
                assert record.container is not None  # _enter saw it ready
                variables = environment(record, env)
                encode_command(argv, variables, workdir)  # the same refusals as for the workspace's own user
                if record.engine != "none":
                    resolve_user(record.container.pid, user)
                result = exec_kept(
                    self._engine_for(record.engine, record.options.runtime),
                    record.container.id,
                    argv,
                    user=user,
                    workdir=os.path.join(root, workdir or ""),
                    env=variables,
                    timeout_s=check_timeout(timeout),
                    max_output_bytes=cap,
                    on_output=on_output,
                    started=lock.release,
                )
        finally:
            lock.release()
        if result.exit_code == KILLED and vitals and not result.timed_out:
            result.oom_killed = vitals.oom_kills() > oom_kills
        return result

    def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """An interactive command on a PTY of its own; by default the best shell the image has."""
        channel, record, lock = self._enter()
        try:
            terminal = channel.terminal(
                list(argv or SHELL),
                rows=rows,
                columns=columns,
                workdir=workdir or containers.root_of(self._home, record),
                env=environment(record, env),
            )
            try:
                terminal.wait_started()  # under the lock: a restore ends what it finds, and finds what has begun
            except BaseException:
                terminal.close()
                raise
            return terminal
        finally:
            lock.release()

    def ping(self) -> PeerFacts:
        """Ask the shim whether it is there. Raises ContainerDied, ProtocolError."""
        channel, _, lock = self._enter()
        lock.release()
        return channel.ping()

    def sessions(self) -> list[SessionFacts]:
        """The terminal sessions that live on between calls: those of `exec_command`, and the persistent shell."""
        with self.enter() as inside:
            return inside.calls.list_sessions()

    def close_session(self, session_id: int) -> None:
        """End a session with all its processes. Raises SessionNotFound."""
        with self.enter() as inside:
            inside.calls.close_session(session_id)

    # -- files and tools -------------------------------------------------------------------------------------

    @property
    def fs(self) -> WorkspaceFilesystem:
        """Its files, as the Filesystem protocol has them; the work is done inside the container."""
        if self._fs is None:
            self._fs = self.filesystem()
        return self._fs

    def filesystem(
        self,
        *,
        limits: Limits | None = None,
        read_only: bool = False,
        allowed_paths: Sequence[str] = (),
        restricted_paths: Sequence[str] = (),
    ) -> WorkspaceFilesystem:
        """Its files under rules of one's own: other limits, nothing to be written, more or less to be reached."""
        from ws.files import WorkspaceFilesystem
        from ws.fs.protocol import WORKSPACE_LIMITS

        return WorkspaceFilesystem(
            self,
            limits=limits or WORKSPACE_LIMITS,
            read_only=read_only,
            allowed_paths=allowed_paths,
            restricted_paths=restricted_paths,
        )

    @property
    def tools(self) -> Router:
        """Its tools in the standard dialect; nobody is asked, because a workspace can be thrown away."""
        if self._tools is None:
            self._tools = self.router()
        return self._tools

    def router(
        self,
        dialect: str = "standard",
        *,
        approval: Approval | ApprovalPolicy | None = None,
        commands: CommandPolicy | None = None,
        fs_mode: FsMode | None = None,
        allowed_paths: Sequence[str] = (),
        restricted_paths: Sequence[str] = (),
        caps: Caps | None = None,
    ) -> Router:
        """Its tools in a dialect, under an approval policy and other rules. Raises InvalidRequest.

        Without a policy the one that the dialect's contract asks for holds: `on-dangerous` in `agent-q`, else `never`.
        File tools reach what is below the root; with `fs_mode="unrestricted"` every absolute path of the container.
        """
        from ws.inside import open_router

        return open_router(
            self._home,
            self.id,
            self,
            dialect=dialect,
            approval=approval,
            commands=commands,
            fs_mode=fs_mode,
            allowed_paths=allowed_paths,
            restricted_paths=restricted_paths,
            caps=caps,
        )

    def enter(self) -> Inside:
        """Be inside, with the shared lock held, for as long as one request takes (`remote.entering`)."""
        return Inside(*self._enter())

    # -- its life --------------------------------------------------------------------------------------------

    def fork(self, snapshot: Snapshot | str | None = None, *, name: str | None = None) -> Workspace:
        """A new workspace over the same layers, at a snapshot, by default one taken now. It stays until removed."""
        from ws.creation import whole_or_gone
        from ws.forks import fork

        fork_id = new_id()
        with whole_or_gone(self._home, fork_id, self._remove_other):
            fork(
                self._home,
                self.id,
                self._own(snapshot),
                self._engine_for,
                fork_id=fork_id,
                name=name,
                pool_size=self._pool_size,
            )
            return Workspace(self._home, fork_id, self._engine_for, pool_size=self._pool_size, owner=self._owner)

    def _remove_other(self, workspace_id: str) -> None:
        from ws.removal import remove_workspace

        remove_workspace(self._home, self._engine_for, workspace_id, workspace_id)

    def start(self) -> None:
        """Bring the container up if it is not; any other use does the same by itself."""
        self._enter()[2].release()

    def remove(self) -> WorkspaceError | None:
        """Take the workspace away with all its files. Works whatever state it is in, and when it is gone already.

        Returns the engine's trouble, if it still has the container. Commit point: the record that says `removing`; a
        crash after it is finished by the next ws command.
        Raises Busy, StateUnusable for a broken disk; a full one has a reserve for this.
        """
        from ws.removal import remove_workspace

        self._disconnect()
        trouble = remove_workspace(self._home, self._engine_for, self.id, self.name)
        self.close()
        return trouble

    def _enter(self) -> tuple[Channel, WorkspaceRecord, Held]:
        """A channel to the running shim, the record, and the shared lock, to be released once the work has begun."""
        self._heal()
        while True:
            lock = Held(self._lock(shared=True))
            try:
                record = self.record()
                if containers.ready(record):
                    return self._channel_to(record), record, lock
            except BaseException:
                lock.release()
                raise
            lock.release()
            self._revive()

    def _heal(self) -> None:
        """Every use begins with what a dead process may have left of this workspace: frozen, or with an intent."""
        recover_workspace(self._home, self._engine_for, self.id)

    def _revive(self) -> None:
        """Commit point: the record with the new container."""
        from ws import pool

        lock = Held(self._lock(shared=False))
        try:
            record = self.record()
            if containers.ready(record):
                return
            with pool.claim(self._home, record) as claim:
                intent = Intent(workspace_id=self.id, operation="start", engine=record.engine, key=claim.key)
                with begin(self._home, self._engine_for, intent):  # a snapshot under way waits for our lock: no wait
                    record = ensure_whole(self._home, record)
                    engine = self._engine_for(record.engine, record.options.runtime)
                    container = containers.resume(self._home, engine, record) or claim.start(
                        self._home, self._engine_for, record
                    )
                    write_record(self._home, replace(record, container=container))
        finally:
            lock.release()
        if container.warm:
            pool.refill(self._home, record, self._pool_size)

    def _lock(self, *, shared: bool) -> int:
        """The descriptor of the workspace's lock. Raises Busy, WorkspaceNotFound."""
        try:
            return durable.acquire_lock(
                self._home.lock(self.id), shared=shared, timeout_s=LOCK_TIMEOUT_S, what=f"workspace {self.name}"
            )
        except NotFound as error:
            raise WorkspaceNotFound(error.message, hint="`ws ls` shows what there is") from None

    def _channel_to(self, record: WorkspaceRecord) -> Channel:
        """Raises Busy when somebody has paused the container: its shim would not answer."""
        container = record.container
        assert container is not None  # only called for a record that is ready
        with self._channel_lock:
            if self._channel is None or self._channel_pid != container.pid:
                self._disconnect()
                self._channel = Channel(self._home.run(container.key), peer_pid=container.pid)
                self._vitals = Vitals(container.pid) if record.engine != "none" else None
                self._channel_pid = container.pid
            if self._vitals is not None and self._vitals.paused():
                raise containers.paused(record)
            return self._channel


def open_workspace(
    home: Home, name: str, engine_for: EngineFor, *, pool_size: int | None = None, owner: Owner | None = None
) -> Workspace:
    """A handle without a manager, for callers that must not import one. Raises WorkspaceNotFound."""
    workspace_id = find_workspace(home, name)
    if workspace_id is None:
        raise WorkspaceNotFound(f"no workspace is called {name!r}", hint="`ws ls` shows what there is")
    return Workspace(home, workspace_id, engine_for, pool_size=pool_size, owner=owner)
