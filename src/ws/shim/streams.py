"""Files that are held open for streams, and how all of them are let go of at once.

A stream outlives the request that opened it, and with it the workspace's lock. An open file holds the mount, so a
restore asks the shim to let go (`streams.close`): readers are closed, writers abandoned, and whoever comes back to
one of them finds ESTALE. Nothing else in the shim stays open between two requests.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from ws.shim.server import Request

T = TypeVar("T")

LOST: Final = "the workspace was restored while the file was open"


class Held(Generic[T]):
    """A file of a stream; for a `with` block, at whose end it is closed by `end`."""

    def __init__(self, file: T, path: str, end: Callable[[], object]) -> None:
        self._file: T | None = file
        self._path = path
        self._end = end
        self._lock = Lock()

    def __enter__(self) -> Self:
        with _register:
            _held.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _register:
            _held.discard(self)
        self.let_go()

    @contextmanager
    def using(self) -> Iterator[T]:
        """The file for the length of one step: meanwhile nobody closes its descriptor. Raises OSError (ESTALE)."""
        with self._lock:
            if self._file is None:
                raise OSError(errno.ESTALE, LOST, self._path)
            yield self._file

    def let_go(self) -> None:
        """Close the file, once the step that is under way is done."""
        with self._lock:
            if self._file is not None:
                self._file = None
                self._end()


_held: Final[set[Held[Any]]] = set()
_register: Final = Lock()


def close_all(request: Request) -> dict[str, Any]:  # noqa: ARG001
    """Let go of every file; says how many there were."""
    with _register:
        found = list(_held)
    for held in found:
        held.let_go()
    return {"closed": len(found)}


OPS: Final = {"streams.close": close_all}
