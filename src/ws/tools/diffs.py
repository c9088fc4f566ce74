"""Unified diffs for results: quick where files are alike, bounded where they are not.

An edit touches a few lines of a long file, so what both sides share at either end is set aside first, as text, without
being cut into lines; `difflib`, whose cost grows with the square of what it is given, sees the rest.
"""

from __future__ import annotations

CONTEXT_LINES = 3
MAX_MIDDLE_LINES = 4_000
_NO_NEWLINE = "\\ No newline at end of file\n"


def unified_diff(path: str, before: str | None, after: str | None) -> str:
    """What `diff -u` says of two texts; None stands for a file that is not there.

    Empty when they are equal.
    """
    if before == after:
        return ""
    name = path.lstrip("/")  # a file outside of the root, such as one in HOME: git refuses `a//home`
    out = [
        "--- /dev/null\n" if before is None else f"--- a/{name}\n",
        "+++ /dev/null\n" if after is None else f"+++ b/{name}\n",
    ]
    whole, other = before or "", after or ""
    head = _shared_head(whole, other)
    tail = _shared_tail(whole, other, head)
    first = _lines_back(whole, head)
    last = _lines_on(whole, len(whole) - tail)
    start = whole.count("\n", 0, first)
    old = _lines(whole[first:last])
    new = _lines(other[first : len(other) - (len(whole) - last)])
    context = len(_lines(whole[len(whole) - tail : last]))
    for group in _groups(old, new, whole.count("\n", first, head), context):
        opening, closing = group[0], group[-1]
        old_range = _range(start + opening[1], start + closing[2])
        new_range = _range(start + opening[3], start + closing[4])
        out.append(f"@@ -{old_range} +{new_range} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += [_marked(" ", line) for line in old[i1:i2]]
                continue
            out += [_marked("-", line) for line in old[i1:i2]]
            out += [_marked("+", line) for line in new[j1:j2]]
    return "".join(out)


def _shared_head(old: str, new: str) -> int:
    """Characters of the whole lines that both begin with. Halving compares each character twice, in C."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return old.rfind("\n", 0, low) + 1


def _shared_tail(old: str, new: str, head: int) -> int:
    """Characters of the whole lines that both end with, beyond the head."""
    low, high = 0, min(len(old), len(new)) - head
    while low < high:
        middle = (low + high + 1) // 2
        if old[len(old) - middle : len(old) - low] == new[len(new) - middle : len(new) - low]:
            low = middle
        else:
            high = middle - 1
    if _begins_line(old, len(old) - low) and _begins_line(new, len(new) - low):
        return low
    line = old.find("\n", len(old) - low) + 1
    return len(old) - line if line else 0


def _begins_line(text: str, at: int) -> bool:
    return not at or text[at - 1] == "\n"


def _lines_back(text: str, at: int) -> int:
    """Where the lines of context before a place begin."""
    for _ in range(CONTEXT_LINES):
        at = text.rfind("\n", 0, at - 1) + 1 if at else 0
    return at


def _lines_on(text: str, at: int) -> int:
    """Where the lines of context after a place end."""
    for _ in range(CONTEXT_LINES):
        at = text.find("\n", at) + 1 or len(text)
    return at


_Op = tuple[str, int, int, int, int]


def _groups(old: list[str], new: list[str], head: int, tail: int) -> list[list[_Op]]:
    """Hunks. One block when the middle is too long for difflib, or plainly one insertion or removal."""
    old_end, new_end = len(old) - tail, len(new) - tail
    middle = max(old_end, new_end) - head
    one_line = old_end - head == 1 == new_end - head
    if old_end == head or new_end == head or one_line or middle > MAX_MIDDLE_LINES:
        block: list[_Op] = [("replace", head, old_end, head, new_end)]
        if head:
            block.insert(0, ("equal", 0, head, 0, head))
        if tail:
            block.append(("equal", old_end, len(old), new_end, len(new)))
        return [block]
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [list(group) for group in matcher.get_grouped_opcodes(CONTEXT_LINES)]


def _lines(text: str) -> list[str]:
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    if parts[-1]:
        lines.append(parts[-1])
    return lines


def _marked(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n{_NO_NEWLINE}"


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"
