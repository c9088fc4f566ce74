"""What may come home of a git directory, file by file: the allow list, and the check that each kind of file must pass.

Only what git merely reads, and what cannot name a path or a command, is in the list:

    HEAD and other references    an id, or `ref: refs/…` with a valid name
    packed-refs, shallow, logs   lines of the known form
    objects                      loose ones have the id that their name says; packs and the files beside them have a
                                 known signature and the right checksum, and name nothing but each other
    index                        if `git_index` accepts it
    messages                     text
    lfs/objects                  have the id that their name says

Everything else, and every name that a newer git may bring, is not in the list. Names are compared exactly.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ws.store.git_index import SHA1_BYTES, SHA256_BYTES, IndexRefused, parse_index
from ws.store.git_names import is_ref_path, is_refname

_MAX_TEXT_BYTES = 64 << 20
_MAX_INDEX_BYTES = 256 << 20
_MAX_INFLATED_BYTES = 1 << 30  # of one object
_MAX_ALL_INFLATED_BYTES = 16 << 30  # of all objects that one apply checks: a few bytes can say a thousand times as many
_INFLATE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 64

_ID = rb"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_PACK = rb"pack-(?:[0-9a-f]{40}|[0-9a-f]{64})"
_IDS = re.compile(rb"(?:%s\n)+|%s" % (_ID, _ID))
_SYMBOLIC = re.compile(rb"ref: ([^\n]*)\n?")
_PACKED_REF = re.compile(rb"(%s) ([^ \n]+)" % _ID)
_PEELED = re.compile(rb"\^%s" % _ID)
_INFO_REF = re.compile(rb"%s\t([^ \n]+?)(?:\^\{\})?" % _ID)
_LOG = re.compile(
    rb"%s %s [^\x00-\x1f\x7f<>]*<[^\x00-\x1f\x7f<>]*> -?\d+ [+-]\d{4,6}(?:\t[^\x00-\x08\x0a-\x1f\x7f]*)?" % (_ID, _ID)
)
_FETCHED = re.compile(rb"%s\t(?:not-for-merge)?\t[^\x00-\x1f\x7f]*" % _ID)
_PACK_LIST = re.compile(rb"P %s\.pack" % _PACK)
_PROMISED = re.compile(rb"%s [^\x00-\x1f\x7f]+" % _ID)
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_OBJECT_HEADER = re.compile(rb"(?:blob|tree|commit|tag) (0|[1-9]\d{0,15})\0")
_OBJECT_FORMAT = re.compile(rb"^[ \t]*objectformat[ \t]*=[ \t]*(sha1|sha256)[ \t]*$", re.IGNORECASE | re.MULTILINE)


class Refused(ValueError):
    """The file does not pass the check of its kind; the message says why."""


@dataclass(slots=True)
class Budget:
    """How much work the checks of one apply may still be."""

    inflated_bytes: int = _MAX_ALL_INFLATED_BYTES


@dataclass(frozen=True, slots=True)
class Content:
    """One file of a git directory, as the workspace has it, and what its checks ask of the files around it."""

    path: bytes  # within the git directory
    chunks: Callable[[], Iterator[bytes]]
    size_bytes: int
    neighbour_tail: Callable[[bytes, int], bytes]  # the last bytes of another file of the git directory, as applied
    hash_bytes: int | None  # the length of an id in this git directory; None: it cannot be told
    budget: Budget
    hidden: Callable[[], frozenset[bytes]]  # by assume-unchanged or skip-worktree in the host's own index


Check = Callable[[Content], None]  # raises Refused


def find_check(path: bytes) -> Check | None:
    """The check for a file of a git directory by its path in there; None: it does not come unasked."""
    for pattern, check in _FILES:
        if pattern.fullmatch(path):
            return check
    if is_refname(path):
        return None if path.startswith(b"refs/replace/") else _check_reference
    if path.startswith(b"logs/refs/") and is_refname(path.removeprefix(b"logs/")):
        return _check_log
    return None


def is_known_directory(path: bytes) -> bool:
    """Whether a directory of a git directory may come, by its path in there."""
    return _DIRECTORIES.fullmatch(path) is not None or is_ref_path(path.removeprefix(b"logs/"))


def object_format(config: bytes | None) -> int | None:
    """The length of an id that a git directory's configuration asks for; None when it cannot be told."""
    if config is None:
        return SHA1_BYTES
    found = {value.lower() for value in _OBJECT_FORMAT.findall(config)}
    if config.lower().count(b"objectformat") != len(found):
        return None
    return {
        frozenset[bytes](): SHA1_BYTES,
        frozenset((b"sha1",)): SHA1_BYTES,
        frozenset((b"sha256",)): SHA256_BYTES,
    }.get(frozenset(found))


# -- text --------------------------------------------------------------------------------------------------------


def _text(content: Content) -> bytes:
    if content.size_bytes > _MAX_TEXT_BYTES:
        raise Refused("it is too large")
    return b"".join(content.chunks())


def _require_lines(content: Content, forms: Iterable[re.Pattern[bytes]]) -> Iterator[tuple[bytes, re.Match[bytes]]]:
    """Each line that is not empty with the first of the forms that it has."""
    kinds = tuple(forms)
    for line in _text(content).split(b"\n"):
        if line:
            match = next((found for form in kinds if (found := form.fullmatch(line))), None)
            if match is None:
                raise Refused("it has a line that git does not write")
            yield line, match


def _check_reference(content: Content) -> None:
    data = _text(content)
    target = _SYMBOLIC.fullmatch(data)
    if target:
        if not is_refname(target[1]):
            raise Refused("it refers to something that is not a reference")
    elif not _IDS.fullmatch(data) or data.count(b"\n") > 1:
        raise Refused("it is not a reference")


def _check_ids(content: Content) -> None:
    if not _IDS.fullmatch(_text(content)):
        raise Refused("it is not a list of ids")


def _check_log(content: Content) -> None:
    for _ in _require_lines(content, (_LOG,)):
        pass


def _check_packed_refs(content: Content) -> None:
    header = re.compile(rb"# pack-refs with:(?: [a-z-]+)* ?")
    for line, match in _require_lines(content, (_PACKED_REF, _PEELED, header)):
        if match.re is _PACKED_REF and (not is_refname(match[2]) or match[2].startswith(b"refs/replace/")):
            raise Refused(f"it has the reference {line[:200]!r}")


def _check_info_refs(content: Content) -> None:
    for line, match in _require_lines(content, (_INFO_REF,)):
        if not is_refname(match[1]) or match[1].startswith(b"refs/replace/"):
            raise Refused(f"it has the reference {line[:200]!r}")


def _check_lines(form: re.Pattern[bytes]) -> Check:
    def check(content: Content) -> None:
        for _ in _require_lines(content, (form,)):
            pass

    return check


def _check_message(content: Content) -> None:
    if _NOT_TEXT.search(_text(content)):
        raise Refused("it has control characters")


# -- objects -----------------------------------------------------------------------------------------------------


def _check_loose(content: Content) -> None:
    """The zlib stream has a known header, the size it says, and the id that the path says."""
    wanted = content.path.removeprefix(b"objects/").replace(b"/", b"").decode("ascii")
    hashing = hashlib.sha1(usedforsecurity=False) if len(wanted) == 2 * SHA1_BYTES else hashlib.sha256()
    header, expected, size = b"", -1, 0
    for data in _inflate(content.chunks()):
        hashing.update(data)
        size += len(data)
        content.budget.inflated_bytes -= len(data)
        if content.budget.inflated_bytes < 0:
            raise Refused("there are too many objects to check")
        if expected < 0:
            header = (header + data)[:_MAX_HEADER_BYTES]
            match = _OBJECT_HEADER.match(header)
            if match:
                expected = match.end() + int(match[1])
            elif len(header) == _MAX_HEADER_BYTES:
                raise Refused("it is not an object")
        if size > _MAX_INFLATED_BYTES or size > expected >= 0:
            raise Refused("it is too large")
    if size != expected or hashing.hexdigest() != wanted:
        raise Refused("it is not the object that its name says")


def _inflate(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """What one zlib stream holds, in parts of bounded size. Raises Refused unless it is all there is."""
    inflater = zlib.decompressobj()
    try:
        for chunk in chunks:
            if inflater.eof and chunk:
                raise Refused("it has more than an object")
            while data := inflater.decompress(chunk, _INFLATE_BYTES):
                yield data
                chunk = inflater.unconsumed_tail
    except zlib.error:
        raise Refused("it is not an object") from None
    if not inflater.eof or inflater.unused_data:
        raise Refused("it is not one whole object")


def _digests(content: Content) -> tuple[bytes, bytes]:
    """The first bytes of a file, and its last ones as far as they are the checksum of all before; empty if not."""
    hashes = {SHA1_BYTES: hashlib.sha1(usedforsecurity=False), SHA256_BYTES: hashlib.sha256()}
    position, head, tail = 0, b"", b""
    ends = {length: content.size_bytes - length for length in hashes}
    for chunk in content.chunks():
        head = (head + chunk[:64])[:64] if len(head) < 64 else head
        tail = (tail + chunk)[-SHA256_BYTES:]
        for length, hashing in hashes.items():
            hashing.update(chunk[: max(0, ends[length] - position)])
        position += len(chunk)
    for length, hashing in hashes.items():
        if len(tail) >= length and hashing.digest() == tail[-length:]:
            return head, tail[-length:]
    return head, b""


def _check_summed(*signatures: bytes) -> Check:
    """A file that begins so, and ends with the checksum of all that is before."""

    def check(content: Content) -> None:
        head, checksum = _digests(content)
        if not head.startswith(signatures) or not checksum:
            raise Refused("its signature or its checksum is wrong")

    return check


def _check_pack_index(content: Content) -> None:
    """Also that it is the index of the pack beside it."""
    head, checksum = _digests(content)
    if not head.startswith(b"\xfftOc\x00\x00\x00\x02") or not checksum:
        raise Refused("its signature or its checksum is wrong")
    length = len(checksum)
    before = content.neighbour_tail(content.path, 2 * length)[:length]
    if content.neighbour_tail(content.path.removesuffix(b".idx") + b".pack", length) != before or len(before) != length:
        raise Refused("it is not the index of the pack beside it")


def _check_multi_pack_index(content: Content) -> None:
    """Also that it names packs of its own directory only: git opens what it names."""
    if content.size_bytes > _MAX_INDEX_BYTES:
        raise Refused("it is too large")
    _check_summed(b"MIDX\x01")(content)
    data = b"".join(content.chunks())
    try:
        chunks, bases, packs = struct.unpack_from(">BBI", data, 6)
        table = [struct.unpack_from(">4sQ", data, 12 + 12 * number) for number in range(chunks + 1)]
    except struct.error:
        raise Refused("it cannot be read") from None
    named = [(start, end) for (kind, start), (_, end) in itertools.pairwise(table) if kind == b"PNAM"]
    if bases or len(named) != 1:
        raise Refused("it cannot be read")
    names = data[named[0][0] : named[0][1]].rstrip(b"\0").split(b"\0")
    if len(names) != packs or not all(re.fullmatch(rb"%s\.idx" % _PACK, name) for name in names):
        raise Refused("it names something that is not a pack of its directory")


def _check_lfs_object(content: Content) -> None:
    first, second, name = content.path.split(b"/")[2:]
    hashing = hashlib.sha256()
    for chunk in content.chunks():
        hashing.update(chunk)
    if hashing.hexdigest().encode() != name or (first, second) != (name[:2], name[2:4]):
        raise Refused("it is not the object that its name says")


def _check_index(content: Content) -> None:
    if content.hash_bytes is None:
        raise Refused("the configuration does not say which kind of ids it has")
    if content.size_bytes > _MAX_INDEX_BYTES:
        raise Refused("it is too large")
    try:
        index = parse_index(b"".join(content.chunks()), content.hash_bytes)
    except IndexRefused as error:
        raise Refused(str(error)) from None
    hidden = index.hidden - content.hidden() if index.hidden else frozenset()
    if hidden:
        raise Refused(f"it hides changes of {min(hidden)[:200]!r}")


_OBJECTS = rb"objects/pack/%s" % _PACK
_FILES: tuple[tuple[re.Pattern[bytes], Check], ...] = tuple(
    (re.compile(pattern), check)
    for pattern, check in (
        (rb"objects/[0-9a-f]{2}/(?:[0-9a-f]{38}|[0-9a-f]{62})", _check_loose),
        (rb"HEAD", _check_reference),
        (rb"(?:ORIG|REBASE|CHERRY_PICK|REVERT|BISECT)_HEAD|AUTO_MERGE", _check_reference),
        (rb"MERGE_HEAD|shallow", _check_ids),
        (rb"FETCH_HEAD", _check_lines(_FETCHED)),
        (rb"packed-refs", _check_packed_refs),
        (rb"info/refs", _check_info_refs),
        (rb"logs/HEAD", _check_log),
        (rb"index", _check_index),
        (rb"COMMIT_EDITMSG|MERGE_MSG|SQUASH_MSG|TAG_EDITMSG|NOTES_EDITMSG|description", _check_message),
        (rb"MERGE_MODE", _check_lines(re.compile(rb"no-ff"))),
        (_OBJECTS + rb"\.pack", _check_summed(b"PACK\x00\x00\x00\x02", b"PACK\x00\x00\x00\x03")),
        (_OBJECTS + rb"\.idx", _check_pack_index),
        (_OBJECTS + rb"\.rev", _check_summed(b"RIDX\x00\x00\x00\x01")),
        (_OBJECTS + rb"\.mtimes", _check_summed(b"MTME\x00\x00\x00\x01")),
        (_OBJECTS + rb"\.bitmap", _check_summed(b"BITM\x00\x01")),
        (_OBJECTS + rb"\.keep", _check_message),
        (_OBJECTS + rb"\.promisor", _check_lines(_PROMISED)),
        (rb"objects/pack/multi-pack-index", _check_multi_pack_index),
        (rb"objects/pack/multi-pack-index-[0-9a-f]{40,64}\.bitmap", _check_summed(b"BITM\x00\x01")),
        (rb"objects/pack/multi-pack-index-[0-9a-f]{40,64}\.rev", _check_summed(b"RIDX\x00\x00\x00\x01")),
        (rb"objects/info/packs", _check_lines(_PACK_LIST)),
        (rb"objects/info/commit-graph", _check_summed(b"CGPH\x01")),
        (rb"objects/info/commit-graphs/graph-[0-9a-f]{40,64}\.graph", _check_summed(b"CGPH\x01")),
        (rb"objects/info/commit-graphs/commit-graph-chain", _check_ids),
        (rb"lfs/objects/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{64}", _check_lfs_object),
    )
)
_DIRECTORIES = re.compile(
    rb"|info|logs|objects(?:/[0-9a-f]{2}|/pack|/info|/info/commit-graphs)?|lfs(?:/objects(?:/[0-9a-f]{2}){0,2})?"
)
