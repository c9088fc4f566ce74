"""Paths as callers write them: what may be said at all, and what a place means to the rules.

Nothing here touches a disk. A path is taken apart into segments below an anchor (the root, or an allowed path
outside it); whether the segments really stay below it is for the kernel to say (`confine`), never for a
comparison of strings. The rules that are about names (allowed and restricted paths) are asked with the real
path, after every link on the way has been resolved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ws.errors import FsViolationError, InvalidRequest
from ws.fs.protocol import Limits

MAX_SEGMENT_BYTES = 255
MAX_PATH_BYTES = 4_095


OUTSIDE = "path outside project root"
TOO_MANY_LINKS_HINT = "the links lead back to themselves; name the file itself"
_OUTSIDE_HINT = "use a path inside the root"
_RESTRICTED_HINT = "the path lies inside the root, but is restricted by configuration; use another path"

Missing = Literal["refuse", "make", "pass"]
"""What to do about a directory on the way that is not there: refuse, make it, pass over it as if it were."""


class Place(NamedTuple):
    """A path taken apart: segments below an anchor.

    `..` may be among them, never last; no segment is the anchor.
    """

    anchor: str
    segments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PathRules:
    """Which paths are inside: the root, what is allowed besides, what is restricted; an allowed path wins."""

    root: str
    limits: Limits
    allowed_paths: tuple[str, ...] = ()
    restricted_paths: tuple[str, ...] = ()
    home: str | None = None

    @classmethod
    def of(
        cls,
        root: str,
        *,
        limits: Limits,
        allowed_paths: tuple[str, ...] = (),
        restricted_paths: tuple[str, ...] = (),
        home: str | None = None,
    ) -> PathRules:
        """Rules with every path absolute and tidy: relative ones count from the root, `~` is `home`."""

        def absolute(path: str) -> str:
            if home is not None and (path == "~" or path.startswith("~/")):
                path = home + path[1:]
            return _tidy(path if path.startswith("/") else f"{root}/{path}")

        return cls(
            root=_tidy(root),
            limits=limits,
            allowed_paths=tuple(absolute(path) for path in allowed_paths),
            restricted_paths=tuple(absolute(path) for path in restricted_paths),
            home=home and _tidy(home),
        )

    @property
    def anywhere(self) -> bool:
        """Whether every place below the root is as good as every other."""
        return not self.restricted_paths

    def parse(self, path: str) -> Place:
        """Take a path apart.

        Raises InvalidRequest for what is no path, FsViolationError for what lies outside.
        """
        if not path:
            raise InvalidRequest("the path is empty", hint='name a file, or "." for the root')
        given = path
        if path[0] == "~" and (len(path) == 1 or path[1] == "/"):
            if self.home is None:
                raise self.violation(path, f"{OUTSIDE}: the home directory is not allowed")
            path = self.home + path[1:]
        anchor = self.root
        below = path
        if path[0] == "/":
            anchor, below = self._anchor(path, given)
        segments = tuple([part for part in below.split("/") if part and part != "."])
        self._check(path, segments)
        return Place(anchor, segments)

    def parse_target(self, target: str) -> tuple[str, str]:
        """The anchor of an absolute link target and what is left below it. Raises FsViolationError."""
        return self._anchor(target, target)

    def _anchor(self, path: str, given: str) -> tuple[str, str]:
        """The anchor of an absolute path and what is left below it; an error names the path as it was given."""
        for anchor in (self.root, *self.allowed_paths):
            if path == anchor or path.startswith(anchor + "/" if anchor != "/" else "/"):
                return anchor, path[len(anchor) :]
        raise self.violation(given, OUTSIDE if given == path else f"{OUTSIDE}: it leads to {path!r}")

    def _check(self, path: str, segments: tuple[str, ...]) -> None:
        limits = self.limits
        if len(segments) > limits.max_segments:
            raise InvalidRequest(f"{_shown(path)} has more than {limits.max_segments} segments")
        if "\0" in path:
            raise InvalidRequest(f"{_shown(path)} holds a NUL character")
        if segments and segments[-1] == "..":
            if segments.count("..") * 2 > len(segments):
                raise self.violation(path, OUTSIDE)
            raise InvalidRequest(f"{_shown(path)} ends in '..'", hint="name the directory itself")
        if len(path) < limits.max_segment_chars and path.isascii():
            return
        try:
            size = len(path.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            raise InvalidRequest(f"{_shown(path)} holds a character that no file name can have") from None
        if size > MAX_PATH_BYTES:
            raise InvalidRequest(f"{_shown(path)} is longer than {MAX_PATH_BYTES} bytes")
        for segment in segments:
            if (
                len(segment) > limits.max_segment_chars
                or len(segment.encode("utf-8", "surrogateescape")) > MAX_SEGMENT_BYTES
            ):
                raise InvalidRequest(
                    f"{_shown(segment)} is longer than {limits.max_segment_chars} characters or"
                    f" {MAX_SEGMENT_BYTES} bytes"
                )

    def check_real(self, place: Place, path: str) -> None:
        """Refuse a real path that the rules restrict. Raises FsViolationError."""
        if self.restricted_paths and self.is_restricted(absolute := self.absolute(place)):
            raise self._restricted(path, absolute)

    def check_on_the_way(self, place: Place, path: str) -> None:
        """Refuse a real path that is restricted with all below it, before it is made or reported as missing.

        Raises FsViolationError.
        """
        if self.restricted_paths and self.is_closed(absolute := self.absolute(place)):
            raise self._restricted(path, absolute)

    def _restricted(self, path: str, absolute: str) -> FsViolationError:
        by = next(restricted for restricted in self.restricted_paths if _under(absolute, (restricted,)))
        return self.violation(path, f"the path is restricted: it leads into {by!r}", hint=_RESTRICTED_HINT)

    def check_whole(self, place: Place, path: str) -> None:
        """Refuse a path that must not come or go as a whole. Raises FsViolationError."""
        if self.guards_below(self.absolute(place)):
            raise self.violation(
                path,
                "a restricted path lies below it",
                hint="change what it holds one by one; what is restricted must stay where it is",
            )

    def is_restricted(self, absolute: str) -> bool:
        if not _under(absolute, self.restricted_paths):
            return False
        # "/" is how `fs_mode="unrestricted"` is written; it lifts no restriction, else none would hold.
        return not _under(absolute, tuple(path for path in self.allowed_paths if path != "/"))

    def is_closed(self, absolute: str) -> bool:
        """Whether a directory is restricted with all that is below it."""
        prefix = absolute.rstrip("/") + "/"
        return self.is_restricted(absolute) and not any(path.startswith(prefix) for path in self.allowed_paths)

    def guards_below(self, absolute: str) -> bool:
        """Whether a restricted path lies below: then the directory must not go away or be moved as a
        whole.
        """
        prefix = absolute.rstrip("/") + "/"
        return any(path.startswith(prefix) for path in self.restricted_paths)

    def absolute(self, place: Place) -> str:
        return "/".join((place.anchor.rstrip("/"), *place.segments)) or "/"

    def shown(self, place: Place) -> str:
        """The path as results carry it: relative to the root, absolute outside it."""
        if place.anchor == self.root:
            return "/".join(place.segments) or "."
        absolute = self.absolute(place)
        if _under(absolute, (self.root,)):
            return absolute[len(self.root) :].lstrip("/") or "."
        return absolute

    def link_violation(self, path: str, place: Place) -> FsViolationError:
        """The refusal of a path that goes through a link, where links are not followed; names the link."""
        return self.violation(
            path,
            f"{_shown(self.shown(place))} is a symbolic link, and links are not followed",
            hint="name the path that the link leads to, or use limits with follow_links",
        )

    def violation(self, path: str, reason: str, *, hint: str = _OUTSIDE_HINT) -> FsViolationError:
        """The refusal of a path; names it and the root."""
        message = f"{_shown(path)} is refused: {reason} (root: {self.root})"
        return FsViolationError(message, hint=hint, filename=path)


def _tidy(path: str) -> str:
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part and part != ".":
            kept.append(part)
    return "/" + "/".join(kept)


def _under(path: str, ancestors: tuple[str, ...]) -> bool:
    return any(path == ancestor or path.startswith(ancestor.rstrip("/") + "/") for ancestor in ancestors)


def _shown(path: str) -> str:
    text = path if len(path) <= 200 else path[:200] + "…"
    return repr(text)


def is_left_again(pending: Sequence[str]) -> bool:
    """Whether a later `..` leaves the directory that was just entered; `pending` is in reverse order.

    A directory that is missing is not made then: nothing would be put into it.
    """
    depth = 1
    for segment in reversed(pending):
        if segment == "..":
            depth -= 1
        elif segment not in ("", "."):
            depth += 1
        if not depth:
            return True
    return False
