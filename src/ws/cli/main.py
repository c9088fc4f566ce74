"""The door of the command line, and how every failure ends.

`ws exec` and `ws tool` in their plain form go straight to their work: importing click costs twice what Python itself
takes to start, and a command in a running workspace must not wait for that. Everything else, and what the plain parsers
do not understand, goes through click, which then gives the help or the error.

    a WorkspaceError       error: and hint: on stderr, or one line of JSON; its own exit status
    a mistake in the words 2
    Ctrl-C, SIGTERM, HUP   128 + the signal, after what was begun has been undone
    a closed pipe          141, silently, as the shell shows it for any other program
    no memory, a limit     1, and which limit to raise
    anything else          1, one line; WS_DEBUG=1 shows the traceback
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from ws.cli import interrupts
from ws.cli.text import decodable, escape, paint, say
from ws.errors import ApplyConflict, WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and end the process with its status."""
    _fill_standard_descriptors()
    _keep_owners_rights()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        interrupts.install()
        status = run(words)
    except KeyboardInterrupt:  # between two steps of `run` itself
        status = report("interrupted", "interrupted", None, status=INTERRUPTED, as_json=wants_json(words))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        status = status or BROKEN_PIPE
    except OSError as error:
        reason = f"the output could not be written: {error.strerror}"
        status = report("output_lost", reason, None, status=1, as_json=wants_json(words))
    # Not sys.exit: tearing the interpreter down takes 5 ms, and would join a thread that still waits for input.
    os._exit(status)


def _fill_standard_descriptors() -> None:
    """A caller may have closed some of 0, 1 and 2; then a socket of ours would be taken for one of them.

    Python has None for a stream whose descriptor was closed, and what writes bytes to it would fail.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  for as long as the process lives


def _keep_owners_rights() -> None:
    """Keep of the umask what it denies to others: with 0777 an ordinary user could not open what it just made."""
    os.umask(os.umask(0o077) & 0o077)


def run(words: list[str]) -> int:
    """Run one command line; returns its exit status. Never raises."""
    as_json = wants_json(words)
    try:
        return _dispatch(words)
    except WorkspaceError as error:
        details = {"conflicts": error.conflicts} if isinstance(error, ApplyConflict) else {}
        return report(error.code, error.message, error.hint, status=error.exit_code, as_json=as_json, details=details)
    except KeyboardInterrupt:
        return report("interrupted", "interrupted", None, status=INTERRUPTED, as_json=as_json)
    except BrokenPipeError:
        # Whoever read us is gone. What is still buffered must not raise again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:  # noqa: BLE001  the last place that can say it in one line
        if os.environ.get("WS_DEBUG"):
            import traceback

            traceback.print_exc()
        code, message, hint, status = _explain(error)
        return report(code, message, hint, status=status, as_json=as_json)


def _explain(error: Exception) -> tuple[str, str, str, int]:
    """Code, message, hint and status of an error that is none of ours."""
    debug = "WS_DEBUG=1 shows where it happened"
    if isinstance(error, FileNotFoundError) and not _has_working_directory():
        return "invalid_request", "the working directory was removed", "cd to a directory that exists", 2
    if _lacks_memory(error):
        advice = "raise the limit on memory or threads (`ulimit -v`, `ulimit -u`), or free some"
        return "out_of_memory", f"there is not enough memory: {error}".removesuffix(": "), advice, 1
    if isinstance(error, UnicodeEncodeError):
        return (
            "invalid_request",
            "the request holds text that is not UTF-8",
            "only paths and commands may hold any bytes",
            2,
        )
    if isinstance(error, OSError) and error.errno:  # a full disk, no descriptor left: the machine's trouble
        from ws.durable import advice_for

        reason = f"{error.strerror}: {os.fsdecode(error.filename)}" if error.filename else str(error.strerror)
        return "os_error", reason, advice_for(error) or debug, 1
    if isinstance(error, ImportError) and (shortage := _shortage(str(error))):
        return "os_error", f"a module cannot be loaded: {error}", shortage, 1
    return "unexpected", f"unexpected {type(error).__name__}: {error}", f"this is a defect of ws; {debug}", 1


def _lacks_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out, in the shapes that CPython gives it.

    A thread whose stack cannot be mapped is a RuntimeError. Under RLIMIT_AS a failed allocation in an extension module
    can also surface as a SystemError without a message of its own.
    """
    if isinstance(error, SystemError):
        import resource

        return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _shortage(reason: str) -> str | None:
    """What to raise when the loader could not load a shared object; it gives a text and no errno."""
    import errno

    from ws.durable import advice_for

    texts = {"failed to map segment": errno.ENOMEM, os.strerror(errno.ENOMEM): errno.ENOMEM}
    texts[os.strerror(errno.EMFILE)] = errno.EMFILE
    found = next((number for text, number in texts.items() if text in reason), 0)
    return advice_for(OSError(found, ""))


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["exec"]:
        from ws.cli import execution

        request = execution.parse_plain(words[1:])
        if request is not None:
            return execution.run(request)
    if words[:1] == ["tool"]:
        from ws.cli import calling

        call = calling.parse_plain(words[1:])
        if call is not None:
            return calling.run(call)
    from ws.cli.group import run_verb

    return run_verb(words)


def wants_json(words: list[str]) -> bool:
    """Whether the caller asked for JSON, also when the rest of the words cannot be understood."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def report(
    code: str,
    message: str,
    hint: str | None,
    *,
    status: int,
    as_json: bool,
    details: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> int:
    """Say on stderr what went wrong and what to do about it; returns the status. `details` are for machines."""
    try:
        if as_json:
            import json

            error = {
                "code": code,
                "message": decodable(message),
                "hint": decodable(hint) if hint else None,
                **{key: [list(map(decodable, row)) for row in rows] for key, rows in (details or {}).items()},
            }
            say(json.dumps({"error": error}))
        else:
            say(f"{paint('error:', 'red', sys.stderr)} {_indented(message)}")
            if hint:
                say(f"{paint('hint:', 'yellow', sys.stderr)} {_indented(hint)}")
    except OSError:
        pass  # stderr is closed: the status says it
    return status


def _indented(text: str) -> str:
    """Escaped line by line; what follows the first is set in, so that no text can pass for a line of ours."""
    return "\n  ".join(escape(line) for line in text.split("\n"))
