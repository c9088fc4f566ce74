"""The law: a call is validated, allowed, run, and told of; what goes wrong is a typed error for a program
and, for a model, a code, one sentence, and what to try next."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ws.errors import (
    ApprovalDenied,
    CommandTimeoutError,
    FsViolationError,
    InvalidRequest,
    OperationNotSupportedError,
    PatchApplyError,
    ToolValidationError,
)
from ws.fs.memory import MemoryFilesystem
from ws.toolbox.approval import ALLOW, Approval, ApprovalRequest, deny
from ws.toolbox.catalog import COMMANDS, TOOLS
from ws.toolbox.events import Event, EventLog, Events
from ws.toolbox.local import LocalBackend, open_local
from ws.toolbox.policy import ALLOW_ALL, CommandPolicy
from ws.toolbox.problems import explain
from ws.toolbox.router import Router
from ws.tools.context import ToolContext, ToolResult
from ws.tools.trash import Backups

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GREETING": "hello"}


def in_memory() -> LocalBackend:
    filesystem = MemoryFilesystem()
    return LocalBackend(ToolContext(filesystem, Backups(filesystem, MemoryFilesystem("/backups"))))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    root = tmp_path / "root"
    root.mkdir()
    backend = open_local(str(root), MemoryFilesystem("/backups"), env=ENV)
    yield backend
    backend.close()


def test_a_call_runs_the_tool_where_the_files_are() -> None:
    backend = in_memory()
    router = Router(backend)
    router.call("write_file", path="a.txt", content="one\n")
    router.call("str_replace", path="a.txt", old_str="one", new_str="two")
    assert router.call("read_file", path="a.txt").output == "two"
    assert backend.context.filesystem.read("a.txt") == "two\n"


def test_every_standard_tool_that_needs_no_machine_runs_in_memory() -> None:
    router = Router(in_memory())
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write_file", {"path": "d/a.txt", "content": "one\n"}),
        ("read_file", {"path": "d/a.txt"}),
        ("list_dir", {}),
        ("tree", {}),
        ("file_info", {"path": "d/a.txt"}),
        ("glob", {"pattern": "**/*.txt"}),
        ("grep", {"pattern": "one"}),
        ("str_replace", {"path": "d/a.txt", "old_str": "one", "new_str": "two"}),
        ("insert", {"path": "d/a.txt", "line": 0, "text": "zero"}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Add File: n\n+n\n*** End Patch"}),
        ("move", {"source": "n", "destination": "m"}),
        ("delete", {"path": "m"}),
        ("mkdir", {"path": "e"}),
        ("undo", {"path": "d/a.txt"}),
        ("redo", {"path": "d/a.txt"}),
        ("trash_list", {}),
        ("trash_purge", {}),
        ("read_bytes", {"path": "d/a.txt"}),
        ("read_text", {"path": "d/a.txt"}),
    ]
    for name, arguments in calls:
        advertised = name in router.dialect.tools
        result = router.call(name, **arguments) if advertised else router._session(name).run(name, **arguments)
        assert result.status == "ok", name
    name = router.call("trash_list").data["entries"][0]["name"]
    assert router.call("trash_restore", name=name).status == "ok"
    assert {name for name, _ in calls} | {"trash_restore"} | set(COMMANDS) == set(TOOLS)


def test_commands_are_not_supported_where_there_is_no_machine() -> None:
    with pytest.raises(OperationNotSupportedError, match="no commands run here"):
        Router(in_memory()).call("shell", command="ls")


def test_an_unknown_tool_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ToolValidationError, match=r"no tool 'reed_file' .*; did you mean read_file\?"):
        Router(in_memory()).call("reed_file", path="a")


# JSON and lines


def test_arguments_may_come_as_json(backend: LocalBackend) -> None:
    router = Router(backend)
    router.call_json("write_file", '{"path": "a", "content": "x"}')
    assert router.call_json("read_file", '{"path": "a"}').output == "x"
    assert router.call_json("list_dir", "").output == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the arguments are no JSON"),
        ("[1]", "the arguments are list, not an object"),
        ("5", "the arguments are int, not an object"),
        ("[" * 200_000, "nested too deeply"),
        ('{"path": 1}', "path: got 1, takes a string"),
    ],
)
def test_json_that_is_no_call_is_refused(backend: LocalBackend, text: str, message: str) -> None:
    with pytest.raises(ToolValidationError, match=message):
        Router(backend).call_json("read_file", text)


@pytest.mark.parametrize("given", [["a"], 5, {1: 2}, {"a"}], ids=repr)
def test_arguments_that_are_no_object_are_a_mistake_of_the_caller(backend: LocalBackend, given: Any) -> None:
    assert Router(backend).call_safely("list_dir", given).data["code"] == "tool_validation"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_dir", {"limit": 10**30}),
        ("read_file", {"path": "a", "offset": 10**30}),
        ("read_file", {"path": "a", "view_range": [1, 10**30]}),
        ("grep", {"pattern": "x", "max_matches": 10**30}),
        ("tree", {"depth": 1e300}),
        ("trash_purge", {"older_than_days": 2**53 - 1}),
    ],
)
def test_no_integer_is_too_large_to_be_refused(backend: LocalBackend, tool: str, arguments: dict[str, Any]) -> None:
    backend.context.filesystem.write("a", "x\n")
    assert Router(backend).call_safely(tool, arguments).data["code"] == "tool_validation"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_dir", {"limit": 2**53 - 1, "offset": 2**53 - 1}),
        ("read_file", {"path": "a", "offset": 2**53 - 1, "limit": 2**53 - 1}),
        ("read_file", {"path": "a", "view_range": [1, 2**53 - 1]}),
        ("grep", {"pattern": "x", "max_matches": 2**53 - 1}),
        ("glob", {"pattern": "*", "max_results": 2**53 - 1}),
        ("tree", {"depth": 2**53 - 1}),
        ("trash_list", {"limit": 2**53 - 1}),
        ("trash_purge", {"older_than_days": 36_500}),
    ],
)
def test_the_largest_integers_mean_all_there_is(backend: LocalBackend, tool: str, arguments: dict[str, Any]) -> None:
    backend.context.filesystem.write("a", "x\n")
    assert Router(backend).call_safely(tool, arguments).status == "ok"


def test_a_freeform_tool_takes_its_text_as_it_is(backend: LocalBackend) -> None:
    router = Router(backend)
    router.call_json("apply_patch", "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n")
    assert router.call("read_file", path="a").output == "x"
    router.call_json("apply_patch", json.dumps({"patch": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n"}))
    assert router.call("read_file", path="a").output == "y"


@pytest.mark.parametrize("line", ["!echo $GREETING", "$echo $GREETING", "  !  echo $GREETING"])
def test_a_line_with_a_prefix_runs_as_a_command(backend: LocalBackend, line: str) -> None:
    assert Router(backend).run_line(line).data["stdout"] == "hello\n"


def test_a_line_runs_in_every_dialect_and_under_the_same_policies(backend: LocalBackend) -> None:
    assert Router(backend, dialect="forge").run_line("!echo hi").output == "hi"
    with pytest.raises(ApprovalDenied, match="command policy"):
        Router(backend).run_line("!rm -rf /")
    with pytest.raises(ApprovalDenied, match="read-only"):
        Router(backend, approval="read-only").run_line("$ls")


@pytest.mark.parametrize("line", ["ls", "", "!", "$  "])
def test_a_line_without_a_command_is_refused(backend: LocalBackend, line: str) -> None:
    with pytest.raises(InvalidRequest, match="no command line"):
        Router(backend).run_line(line)


# commands


def test_a_command_that_fails_is_a_result(backend: LocalBackend) -> None:
    result = Router(backend).call("shell", command="echo out; echo err >&2; exit 3")
    assert result.status == "ok"
    assert result.data["exit_code"] == 3
    assert (result.data["stdout"], result.data["stderr"]) == ("out\n", "err\n")
    assert result.output == "out\nerr"


def test_what_a_model_reads_says_how_it_went_where_the_output_does_not(backend: LocalBackend) -> None:
    router = Router(backend)
    backend.context.filesystem.write("long", "line\n" * 500)
    assert router.call("shell", command="echo hi").text == "hi"
    assert router.call("shell", command="true").text == "exit status 0"
    assert router.call("shell", command="echo hi; exit 3").text == "hi\n[exit status 3]"
    assert router.call("shell", command="echo hi; kill -9 $$").text == "hi\n[ended by signal 9]"
    assert router.call("read_file", path="long", limit=1).text == (
        "line\n[lines 1-1 of 500; more is left, go on with `offset=1`]"
    )
    assert router.call("read_file", path="long", limit=500).text == "\n".join(["line"] * 500)
    assert "would be made" in router.call("write_file", path="n", content="x", dry_run=True).text
    refused = router.call_safely("read_file", {"path": "none"})
    assert refused.text == refused.output


def test_what_a_model_reads_names_the_session_it_can_go_on_with(backend: LocalBackend) -> None:
    router = Router(backend)
    begun = router.call("exec_command", cmd="echo hi; read a", yield_time_ms=200)
    session = begun.data["session_id"]
    assert begun.text == f"hi\n[session {session} is running]"
    assert "[exit status 0]" in router.call("write_stdin", session_id=session, chars="\n", yield_time_ms=5000).text
    bash = Router(backend, dialect="anthropic")
    assert bash.call("bash", command="echo hi; (exit 3)").text == "hi\n[exit status 3]"
    assert "the next command starts another" in bash.call("bash", command="echo bye; exit 0").text
    assert bash.call("bash", restart=True).text == "the shell was restarted"


def test_a_command_gets_the_environment_that_was_built_for_it_and_no_other(backend: LocalBackend) -> None:
    out = Router(backend).call("shell", command="env").data["stdout"].splitlines()
    names = {line.split("=")[0] for line in out} - {"PWD", "SHLVL", "_"}
    assert names == set(ENV)


def test_a_command_that_runs_out_of_time_keeps_what_it_wrote(backend: LocalBackend) -> None:
    begin = time.monotonic()
    with pytest.raises(CommandTimeoutError, match="200 ms") as caught:
        Router(backend).call("shell", command="echo so far; sleep 30", timeout_ms=200)
    assert time.monotonic() - begin < 10
    assert caught.value.output == "so far"
    told = Router(backend).call_safely("shell", {"command": "echo so far; sleep 30", "timeout_ms": 200})
    assert told.data["code"] == "command_timeout"
    assert "so far" in told.output


def test_both_streams_are_capped_each(backend: LocalBackend) -> None:
    result = Router(backend).call("shell", command="seq 1 5000; seq 1 300 >&2")
    assert result.truncated
    for stream, lines in (("stdout", 201), ("stderr", 201)):
        text = result.data[stream]
        assert text.endswith("[truncated]")
        assert len(text.splitlines()) == lines
    wide = Router(backend).call("shell", command="head -c 100000 /dev/zero | tr '\\0' x")
    assert wide.truncated
    assert len(wide.data["stdout"]) == 8192 + len("\n[truncated]")


def test_the_working_directory_stays_inside(backend: LocalBackend, tmp_path: Path) -> None:
    router = Router(backend)
    router.call("mkdir", path="sub")
    assert router.call("shell", command="pwd", workdir="sub").output == f"{tmp_path}/root/sub"
    for workdir in ("..", "/", "/etc", "sub/../.."):
        with pytest.raises((FsViolationError, InvalidRequest)):
            router.call("shell", command="pwd", workdir=workdir)
        with pytest.raises((FsViolationError, InvalidRequest)):
            router.call("exec_command", cmd="pwd", workdir=workdir)
    (tmp_path / "root" / "link").symlink_to("/etc")
    with pytest.raises(FsViolationError):
        router.call("shell", command="pwd", workdir="link")


def test_a_session_stays_between_calls_and_ends_with_its_input(backend: LocalBackend) -> None:
    router = Router(backend)
    begun = router.call("exec_command", cmd="read a; echo got $a; cat", yield_time_ms=50)
    session = begun.data["session_id"]
    assert begun.data["running"]
    said = router.call("write_stdin", session_id=session, chars="hi\n", yield_time_ms=300)
    assert "got hi" in said.output
    polled = router.call("write_stdin", session_id=session, chars="", yield_time_ms=0)
    assert polled.data["running"]
    ended = router.call("write_stdin", session_id=session, chars="\x04", yield_time_ms=5000)
    assert (ended.data["running"], ended.data["exit_code"], ended.data["session_id"]) == (False, 0, None)
    missing = router.call_safely("write_stdin", {"session_id": session, "chars": "x"})
    assert missing.data["code"] == "session_not_found"


def test_what_a_session_writes_comes_in_portions(backend: LocalBackend) -> None:
    router = Router(backend)
    first = router.call("exec_command", cmd="seq 1 1000; sleep 1", yield_time_ms=400, max_output_tokens=100)
    assert first.truncated
    assert first.output.endswith("[truncated]")
    assert len(first.output) <= 400 + len("\n[truncated]")
    assert first.data["running"]
    second = router.call("write_stdin", session_id=first.data["session_id"], yield_time_ms=2000)
    assert second.output.endswith("1000\n")


def test_no_look_at_a_session_cuts_a_character_or_a_line_ending_in_two(backend: LocalBackend) -> None:
    router = Router(backend)
    pieces = (r"a\303", r"\251\360\237", r"\230\200b\r", r"\nc\303")
    command = "stty -opost; " + " sleep 0.2;".join(f"printf '{piece}';" for piece in pieces)
    found = router.call("exec_command", cmd=command, yield_time_ms=20)
    said = [found.output]
    while found.data["running"]:
        found = router.call("write_stdin", session_id=found.data["session_id"], yield_time_ms=20)
        said.append(found.output)
    assert "".join(said) == "aé😀b\nc\ufffd"
    assert any(said[:-1])


def test_a_small_portion_of_a_session_ends_with_a_whole_character(backend: LocalBackend) -> None:
    router = Router(backend)
    found = router.call("exec_command", cmd="printf ééééééa", yield_time_ms=5000, max_output_tokens=1)
    said = [found.output]
    while found.data["running"]:
        found = router.call("write_stdin", session_id=found.data["session_id"], max_output_tokens=1)
        said.append(found.output)
    assert "".join(said).replace("\n[truncated]", "") == "ééééééa"


def test_a_terminal_has_no_pager_unless_its_environment_says_so(tmp_path: Path) -> None:
    for env, expected in (({}, "cat cat\n"), ({"PAGER": "less", "GIT_PAGER": "more"}, "less more\n")):
        backend = open_local(str(tmp_path), MemoryFilesystem("/backups"), env={**ENV, **env})
        found = Router(backend).call("exec_command", cmd="echo $PAGER $GIT_PAGER", yield_time_ms=5000)
        assert found.output == expected


# policy and approval


def test_blocked_commands_run_under_no_tool(backend: LocalBackend) -> None:
    router = Router(backend)
    session = router.call("exec_command", cmd="cat", yield_time_ms=0).data["session_id"]
    for name, arguments in (
        ("shell", {"command": "reboot"}),
        ("exec_command", {"cmd": "reboot"}),
        ("write_stdin", {"session_id": session, "chars": "reboot\n"}),
    ):
        with pytest.raises(ApprovalDenied, match="command policy"):
            router.call(name, **arguments)
    bash = Router(backend, dialect="anthropic")
    with pytest.raises(ApprovalDenied, match="command policy"):
        bash.call("bash", command="reboot")


def test_the_block_list_is_configured_at_the_router(backend: LocalBackend) -> None:
    strict = Router(backend, commands=CommandPolicy().also(programs=["echo"]))
    with pytest.raises(ApprovalDenied):
        strict.call("shell", command="echo hi")
    assert Router(backend, commands=ALLOW_ALL).call("shell", command="echo halt").output == "halt"


def test_the_handler_sees_the_diff_before_anything_changes(backend: LocalBackend) -> None:
    seen: list[ApprovalRequest] = []

    def handler(request: ApprovalRequest) -> Any:
        seen.append(request)
        assert not backend.context.filesystem.exists("a")
        return ALLOW

    router = Router(backend, approval=Approval("on-dangerous", handler))
    router.call("write_file", path="a", content="x\n")
    assert seen[0].preview == "--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+x\n"
    assert backend.context.filesystem.read("a") == "x\n"


def test_a_denial_reaches_the_model_with_its_reason_and_changes_nothing(backend: LocalBackend) -> None:
    router = Router(backend, approval=Approval("always", lambda _: deny("keep that file")))
    backend.context.filesystem.write("a", "x\n")
    told = router.call_safely("str_replace", {"path": "a", "old_str": "x", "new_str": "y"})
    assert told.status == "error"
    assert told.data["code"] == "approval_denied"
    assert "keep that file" in told.output
    assert backend.context.filesystem.read("a") == "x\n"


def test_nobody_is_asked_about_a_call_that_cannot_work(backend: LocalBackend) -> None:
    def handler(request: ApprovalRequest) -> Any:
        raise AssertionError("asked")

    router = Router(backend, approval=Approval("always", handler))
    with pytest.raises(PatchApplyError):
        router.call("apply_patch", patch="*** Begin Patch\n*** Delete File: missing\n*** End Patch")


def test_a_dry_run_needs_no_approval(backend: LocalBackend) -> None:
    router = Router(backend, approval="on-dangerous")
    assert "+x" in router.call("write_file", path="a", content="x", dry_run=True).output
    with pytest.raises(ApprovalDenied):
        router.call("write_file", path="a", content="x")


def test_a_read_only_router_reads_and_does_nothing_else(backend: LocalBackend) -> None:
    backend.context.filesystem.write("a", "x")
    router = Router(backend, approval="read-only")
    assert router.call("read_file", path="a").output == "x"
    for name, arguments in (
        ("write_file", {"path": "b", "content": ""}),
        ("str_replace", {"path": "a", "old_str": "x", "new_str": "y"}),
        ("delete", {"path": "a"}),
        ("shell", {"command": "true"}),
    ):
        with pytest.raises(ApprovalDenied):
            router.call(name, **arguments)


# events


@pytest.mark.parametrize(
    ("tool", "given"), [("nope", {}), ("nope", "{}"), ("read_file", "{bad"), ("read_file", [1]), ("read_file", {1, 2})]
)
def test_a_call_that_is_none_is_told_of_too(backend: LocalBackend, tmp_path: Path, tool: str, given: Any) -> None:
    events = Events(EventLog(str(tmp_path / "events.jsonl")))
    Router(backend, events=events).call_safely(tool, given)
    assert events.log is not None
    start, error = events.log.read()
    assert (start.event, error.event, error.tool, error.code) == ("start", "error", tool, "tool_validation")


def test_every_call_is_told_of_at_its_start_and_its_end(backend: LocalBackend, tmp_path: Path) -> None:
    events = Events(EventLog(str(tmp_path / "events.jsonl")))
    router = Router(backend, events=events, snapshot=lambda: "s7")
    router.call("write_file", path="a", content="x" * 1000)
    router.call("read_file", path="a")
    assert events.log is not None
    start, end, _, read = events.log.read()
    assert (start.event, start.tool, start.tier, start.dialect) == (
        "start",
        "write_file",
        "dangerous",
        "standard",
    )
    assert start.arguments["content"].endswith("… (1000 characters)")
    assert start.snapshot == "s7"
    assert end.call == start.call
    assert (end.event, end.files_touched, end.bytes_written) == ("end", ("a",), 1000)
    assert end.duration_ms is not None
    assert end.duration_ms > 0
    assert (read.event, read.lines, read.truncated) == ("end", 1, True)
    assert read.bytes is not None
    assert read.bytes > 400


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("read_file", {"path": "missing"}, "file_not_found"),
        ("read_file", {}, "tool_validation"),
        ("nonsense", {}, "tool_validation"),
        ("read_file", {"path": "/etc/passwd"}, "fs_violation"),
        ("shell", {"command": "reboot"}, "approval_denied"),
    ],
)
def test_every_failure_is_told_of(backend: LocalBackend, name: str, arguments: dict[str, Any], code: str) -> None:
    events = Events()
    seen: list[Event] = []
    events.subscribe(seen.append)
    Router(backend, events=events).call_safely(name, arguments)
    assert [event.event for event in seen] == ["start", "error"]
    assert (seen[1].code, seen[1].tool) == (code, name)
    assert seen[1].message


# what a model is told


def test_a_model_gets_a_code_a_sentence_and_what_to_try(backend: LocalBackend) -> None:
    told = Router(backend).call_safely("read_file", {"path": "missing.txt"})
    assert told.status == "error"
    assert told.message == "missing.txt: No such file or directory"
    assert told.output == (
        "error [file_not_found]: missing.txt: No such file or directory\ntry: list its directory to see what is there"
    )


def test_no_error_at_all_comes_out_as_a_traceback() -> None:
    class Broken:
        root = "/workspace"

        def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
            raise ZeroDivisionError("secret detail")

    told = Router(Broken()).call_safely("read_file", '{"path": "a"}')
    assert told.data["code"] == "internal"
    assert "Traceback" not in told.output
    assert "ZeroDivisionError" in told.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file", "a"), "file_not_found"),
        (IsADirectoryError(21, "Is a directory", "a"), "is_a_directory"),
        (NotADirectoryError(20, "Not a directory", "a"), "not_a_directory"),
        (FileExistsError(17, "File exists", "a"), "file_exists"),
        (PermissionError(13, "Permission denied", "a"), "permission"),
        (OSError(39, "Directory not empty", "a"), "not_empty"),
        (OSError(28, "No space left on device"), "no_space"),
        (OSError(40, "Too many levels of symbolic links", "a"), "link_loop"),
        (OSError(5, "Input/output error"), "os_error"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "unicode_decode"),
        (ValueError("bad"), "value"),
        (RuntimeError("gone"), "runtime"),
        (TimeoutError("late"), "timeout"),
        (ConnectionResetError("reset"), "unavailable"),
        (FsViolationError("out", hint="stay"), "fs_violation"),
    ],
)
def test_every_exception_of_the_protocol_has_its_code_and_its_hint(error: Exception, code: str) -> None:
    problem = explain(error)
    assert problem.code == code
    assert problem.hint
    assert "\n" not in problem.message


def test_a_router_is_imported_without_what_only_some_need() -> None:
    """`ws tool` from a shell has about 70 ms for everything."""
    heavy = ("pydantic", "difflib", "ws.fs.protocol", "ws.tools.trash", "ws.toolbox.specs", "subprocess", "asyncio")
    script = f"import sys, ws.toolbox.router; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sixteen_threads_may_call_at_once(backend: LocalBackend) -> None:
    events = Events()
    seen: list[Event] = []
    events.subscribe(seen.append)
    router = Router(backend, events=events)
    problems: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for step in range(10):
                router.call("write_file", path=f"d{n}/f{step}", content=f"{n} {step}\n")
                router.call("str_replace", path=f"d{n}/f{step}", old_str=f"{n} {step}", new_str="done")
                assert router.call("read_file", path=f"d{n}/f{step}").output == "done"
        except BaseException as error:  # noqa: BLE001 - told below, in the thread that can fail the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(seen) == 16 * 10 * 3 * 2
