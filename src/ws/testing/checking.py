"""How the conformance suite states its checks: a list of functions, each with a new filesystem of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol

from ws.fs.protocol import Filesystem, Limits


class MakeFilesystem(Protocol):
    """Makes a new, empty filesystem each time it is called."""

    def __call__(self, *, limits: Limits | None = None, read_only: bool = False) -> Filesystem: ...


Check = Callable[[MakeFilesystem], None]
FILESYSTEM_CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Make a function one of the checks."""
    FILESYSTEM_CHECKS.append(function)
    return function


class HasPath(Protocol):
    @property
    def path(self) -> str: ...


def paths_of(found: Iterable[HasPath]) -> list[str]:
    """The paths of results, in their order."""
    return [item.path for item in found]


class raises:
    """A block that must raise `kind`, with a message that has the words."""

    def __init__(self, kind: type[BaseException], *words: str) -> None:
        self._kind = kind
        self._words = words

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert kind is not None, f"no {self._kind.__name__} was raised"
        if not issubclass(kind, self._kind):
            return False
        for word in self._words:
            assert word in str(error), f"{word!r} is not in {error!s}"
        return True
