"""What a caller may ask of a command, checked before anything is sent: words, variables, time, output, input.

`ws exec` imports this on its way: the standard library only.
"""

from __future__ import annotations

import os

from ws.errors import InvalidRequest, LimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO, Final

# The kernel's limits (execve(2)): MAX_ARG_STRLEN for one string, and a quarter of the stack for all of them.
MAX_WORD_BYTES: Final = 128 << 10
MAX_COMMAND_BYTES: Final = 2 << 20
MAX_TIMEOUT_S: Final = 1e9


def too_long(size_bytes: int) -> LimitExceeded:
    """The error for a command that the kernel would refuse with E2BIG."""
    return LimitExceeded(
        f"the words and variables of the command take {size_bytes:,} bytes; the kernel takes "
        f"{MAX_COMMAND_BYTES:,} in all and {MAX_WORD_BYTES:,} in one",
        hint="pass the rest on standard input or in a file",
    )


def encode_command(
    argv: Sequence[str | bytes], env: Mapping[str, str] | None, workdir: str | None
) -> tuple[int, int, bytes]:
    """The number of words, the number of variables, and the bytes in which the shim takes them.

    Raises InvalidRequest, LimitExceeded.
    """
    words = [_encode(word, "a word of the command") for word in argv]
    pairs = []
    for name, value in (env or {}).items():
        encoded = _encode(name, "the name of a variable")
        if not encoded or b"=" in encoded:
            raise InvalidRequest(
                f"{name!r} cannot be the name of an environment variable", hint="a name is not empty and has no `=`"
            )
        pairs.append(encoded + b"=" + _encode(value, f"the value of the variable {name}"))
    size_bytes = sum(len(string) + 1 for string in (*words, *pairs))
    longest = max(map(len, (*words, *pairs)), default=0)
    if size_bytes > MAX_COMMAND_BYTES or longest >= MAX_WORD_BYTES:
        raise too_long(max(size_bytes, longest))
    directory = _encode(workdir or "", "the working directory")
    return len(words), len(pairs), b"\0".join((*words, *pairs, directory))


def _encode(value: object, what: str) -> bytes:
    if not isinstance(value, str | bytes):
        raise InvalidRequest(f"{what} is {type(value).__name__}, not a string: {value!r:.80}")
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} cannot be encoded: {value!r:.80}") from None
    if b"\0" in encoded:
        raise InvalidRequest(f"{what} contains a zero byte: {value!r:.80}")
    return encoded


def check_timeout(timeout_s: float | None) -> float | None:
    """Seconds, or None for no limit, which infinity says too. Raises InvalidRequest."""
    if timeout_s is None or timeout_s == float("inf"):
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise InvalidRequest(
            f"the timeout is {timeout_s!r}", hint=f"a number of seconds from 0 to {MAX_TIMEOUT_S:,.0f}, or none"
        )
    return float(timeout_s)


def check_output_cap(max_output_bytes: int | None, default: int | None) -> int | None:
    """The cap of each stream; 0 keeps nothing. Raises InvalidRequest."""
    if max_output_bytes is None:
        return default
    if isinstance(max_output_bytes, bool) or not isinstance(max_output_bytes, int) or max_output_bytes < 0:
        raise InvalidRequest(f"max_output_bytes is {max_output_bytes!r}", hint="a number of bytes, 0 for none")
    return max_output_bytes


def check_input(stdin: bytes | str | BinaryIO | None) -> bytes | BinaryIO | None:
    """Input as bytes or a binary file; text is sent as UTF-8. Raises InvalidRequest."""
    if isinstance(stdin, str):
        return _encode_text(stdin)
    given: object = stdin  # callers without a type checker may send anything
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    if stdin is None or isinstance(stdin, bytes) or hasattr(given, "read"):
        return stdin
    raise InvalidRequest(f"stdin is {type(stdin).__name__}", hint="give bytes, text, or a file opened in binary mode")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidRequest("stdin is text that cannot be encoded as UTF-8", hint="give it as bytes") from None
