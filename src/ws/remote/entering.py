"""How file operations and tools come into a workspace: through a door that holds its lock while they are inside.

Whoever owns the workspace brings the door. Inside there is a shim that answers; the lock is shared, so many may be
inside at once, and nobody restores or removes the workspace meanwhile. `leave` lets go of the lock early: once a
command runs, or a stream is open, what happens to the workspace happens to them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from ws.remote.calls import Calls


class Inside(Protocol):
    """Being inside, for a `with` block."""

    @property
    def calls(self) -> Calls: ...

    @property
    def env(self) -> Mapping[str, str]:
        """The variables that commands get."""
        ...

    def leave(self) -> None:
        """Let go of the lock; more than once does no harm."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Door(Protocol):
    """A workspace as its operations reach it."""

    @property
    def root(self) -> str:
        """The absolute path that its files are below, as its own processes see it."""
        ...

    def enter(self) -> Inside:
        """Raises WorkspaceNotFound, Busy, ContainerDied, and what bringing a container back up raises."""
        ...
