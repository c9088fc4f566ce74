"""The encoding of a text file: found before an edit, kept by it.

Tools edit UTF-8. A file in another encoding is converted to UTF-8 before the edit and back after it, so that a file
never holds two encodings. The encoding is taken from the byte order mark, else from the caller (`encoding=`), else it
is UTF-8. A file that does not decode cleanly is refused, and so is text that its encoding cannot represent.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ws.errors import ToolError, ToolValidationError
from ws.fs import search

MARKS: tuple[tuple[bytes, str], ...] = (  # UTF-32 before UTF-16, whose little-endian mark it begins with
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FAMILIES = ("utf-8", "utf-16", "utf-32")
# Codec names as `codecs.lookup` spells them. Codecs that are not character sets (idna, punycode, rot13, the escapes)
# are left out: their decoding interprets the text.
_PREFIXES = ("cp", "iso8859-", "iso2022_", "mac-", "euc_", "shift_jis", "koi8-", "gb", "big5", *_FAMILIES)
_NAMES = frozenset({"ascii", "hz", "johab", "tis-620", "ptcp154", "kz1048", "hp-roman8", "palmos"})
_SHOWN = {"utf-8": "UTF-8"}
_NAME_IT = "name the encoding that the file has as `encoding`, such as cp1252 or shift_jis"


@dataclass(frozen=True, slots=True)
class Text:
    """A file's text as UTF-8 bytes, and what it takes to write it back."""

    content: bytes
    """UTF-8 with lines that end with a line feed. A UTF-8 byte order mark stays in it; any other is kept apart."""
    encoding: str = "utf-8"
    mark: bytes = b""
    carriage_returns: bool = False
    """The lines of the file end with a carriage return alone, as on the first Macintosh."""

    @classmethod
    def of(cls, content: bytes, encoding: str = "utf-8", mark: bytes = b"") -> Text:
        alone = b"\n" not in content and b"\r" in content
        return cls(content.replace(b"\r", b"\n") if alone else content, encoding, mark, alone)

    def argument(self, text: str) -> bytes:
        """Text that a caller sent for this file, in the form of `content`. Raises ToolValidationError."""
        encoded = encode_argument(text)
        return encoded.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if self.carriage_returns else encoded

    def encoded(self, edited: bytes, path: str) -> bytes:
        """The bytes of the file after an edit. Raises ToolValidationError for a character the encoding lacks."""
        if self.carriage_returns:
            edited = edited.replace(b"\n", b"\r")
        if self.encoding == "utf-8":
            return edited
        return self.mark + _encode(edited.decode("utf-8"), self.encoding, path)


def is_binary(data: bytes) -> bool:
    """Whether a file is binary as `ws.fs.search` tests it, and has no UTF-16 or UTF-32 mark that says text."""
    return search.is_binary(data) and mark_of(data)[1] in ("", "utf-8")


def is_utf8(data: bytes) -> bool:
    """Whether bytes are valid UTF-8, ASCII among it."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def mark_of(data: bytes) -> tuple[bytes, str]:
    """The byte order mark of a file and the encoding it names; both empty without one."""
    return next(((mark, name) for mark, name in MARKS if data.startswith(mark)), (b"", ""))


def encode_argument(text: str) -> bytes:
    """Text that a caller sent, as UTF-8. Raises ToolValidationError for lone surrogates, which no file can hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolValidationError(
            f"the text has a lone surrogate at character {error.start}, which no encoding can represent",
            hint="send whole characters; change a file with damaged text by a command",
        ) from None


def encode_new(text: str, encoding: str | None, path: str) -> bytes:
    """The bytes of a new file in UTF-8, or in the encoding that the caller names. Raises ToolValidationError."""
    content = encode_argument(text)
    name = check_encoding(encoding) if encoding is not None else "utf-8"
    return content if name == "utf-8" else _encode(text, name, path)


def decode_file(data: bytes, path: str, encoding: str | None = None) -> Text:
    """The text of a file that is about to be edited, or read for a diff.

    Raises ToolError for a binary file, for one that is not UTF-8 when the caller names no encoding, and for one that
    does not decode cleanly in the encoding named; ToolValidationError for an encoding that does not exist or that
    contradicts the file.
    """
    named = check_encoding(encoding) if encoding is not None else ""
    mark, marked = mark_of(data)
    if marked:
        if named not in ("", marked, _family(marked)):
            raise ToolValidationError(
                f"{path}: its byte order mark says {marked}, `encoding` says {named}", hint="leave `encoding` out"
            )
        if marked == "utf-8":
            _decode(data, "utf-8", path)
            return Text.of(data)
        return Text.of(_decode(data[len(mark) :], marked, path).encode("utf-8"), marked, mark)
    if not named:
        if is_binary(data):
            raise _binary(path)
        _decode(data, "utf-8", path)
        return Text.of(data)
    if named in ("utf-16", "utf-32"):
        raise ToolValidationError(
            f"{path}: has no byte order mark, which {named} needs", hint=f"name {named}-le or {named}-be"
        )
    text = _decode(data, named, path)
    if named == "utf-8":
        return Text.of(data)
    if len(text) == len(data) and not data.isascii() and is_utf8(data):
        # Every byte is a character in a single-byte encoding, so that a clean decode says nothing there.
        raise ToolValidationError(
            f"{path}: is valid UTF-8, `encoding` says {named}", hint="leave `encoding` out, or name utf-8"
        )
    return Text.of(text.encode("utf-8"), named)


def decode_stream(chunks: Iterable[bytes], path: str, encoding: str | None = None) -> Text:
    """What `decode_file` finds of a large file, without its content, in the memory of a chunk. Raises the same."""
    text: Text | None = None
    decoder: codecs.IncrementalDecoder | None = None
    try:
        for chunk in chunks:
            if decoder is None:
                mark, marked = mark_of(chunk)
                named = marked or (check_encoding(encoding) if encoding is not None else "utf-8")
                if not marked and encoding is None and is_binary(chunk):
                    raise _binary(path)
                text = Text(b"", named, b"" if named == "utf-8" else mark)
                decoder = codecs.getincrementaldecoder(named)()
            decoder.decode(chunk)
        if decoder is not None:
            decoder.decode(b"", final=True)
    except UnicodeError:
        name = text.encoding if text else "utf-8"
        raise ToolError(f"{path}: is not {_SHOWN.get(name, name)} text", hint=_NAME_IT) from None
    return text or Text(b"")


def readable_text(data: bytes, encoding: str | None, path: str) -> tuple[str, str, bool]:
    """A file's text for display, its encoding, and whether bytes were replaced because it is not in that encoding.

    Raises ToolValidationError for an encoding that does not exist, ToolError when the one named does not fit.
    """
    mark, marked = mark_of(data)
    if encoding is not None and not marked:
        name = check_encoding(encoding)
        return _decode(data, name, path), name, False
    name = marked or "utf-8"
    try:
        return data[len(mark) :].decode(name), name, False
    except UnicodeDecodeError:
        return data[len(mark) :].decode(name, "replace"), name, True


def utf8_chunks(chunks: Iterable[bytes], encoding: str, path: str) -> Iterator[bytes]:
    """A stream in another encoding as UTF-8, in the memory of a chunk. Raises ToolError where it does not decode."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8")
        yield decoder.decode(b"", final=True).encode("utf-8")
    except UnicodeError:
        raise ToolError(f"{path}: is not {encoding} text", hint=_NAME_IT) from None


def _binary(path: str) -> ToolError:
    return ToolError(f"{path}: is a binary file", hint="text tools leave it alone; change it with a command")


def _family(name: str) -> str:
    return next((family for family in _FAMILIES if name.startswith(family)), name)


def check_encoding(encoding: str) -> str:
    """The codec's own name. Raises ToolValidationError."""
    try:
        name = codecs.lookup(encoding).name if encoding.isascii() and "\0" not in encoding else ""
    except LookupError:
        name = ""
    if name == "utf-8-sig":
        return "utf-8"
    if name.startswith(_PREFIXES) or name in _NAMES:
        return name
    raise ToolValidationError(
        f"`encoding` is {encoding[:40]!r}, which is not a known character encoding",
        hint="such as utf-8, utf-16, latin-1, cp1251, cp1252, shift_jis, euc-jp, gb18030 or big5",
    )


def _decode(data: bytes, encoding: str, path: str) -> str:
    """Strictly, and only what encodes back to the same bytes."""
    try:
        text = data.decode(encoding)
        clean = encoding == "utf-8" or text.encode(encoding) == data
        where = "" if clean else "it does not encode back to the same bytes"
    except UnicodeDecodeError as error:
        where = f"the bytes at offset {error.start} are not"
    except UnicodeError as error:  # UTF-16 without a mark, and the like
        where = str(error)
    if not where:
        return text
    raise ToolError(f"{path}: is not {_SHOWN.get(encoding, encoding)} text: {where}", hint=_NAME_IT)


def _encode(text: str, encoding: str, path: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise ToolValidationError(
            f"{path}: is {encoding}, which has no character {text[error.start]!r}",
            hint="write it without that character, or convert the file to UTF-8 with a command",
        ) from None
