"""The law: the two tools that Anthropic's models know behave as those models expect: an editor with five commands, both
generations of its parameters, and one shell that stays between calls, whatever shell the image has."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ws.errors import ApprovalDenied, CommandTimeoutError, TextAmbiguousError, ToolValidationError
from ws.fs.memory import MemoryFilesystem
from ws.toolbox.approval import ALLOW, Approval, ApprovalRequest
from ws.toolbox.dialects.persistent_shell import PersistentShell
from ws.toolbox.local import LocalBackend, open_local
from ws.toolbox.memory import FileMemory
from ws.toolbox.router import Router
from ws.tools.context import ToolResult

EDITOR = "str_replace_based_edit_tool"
SHELLS = [shell for shell in ("/bin/bash", "/bin/dash", "/bin/sh", "/bin/zsh") if os.access(shell, os.X_OK)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def open_backend(root: Path, shell: str) -> LocalBackend:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SHELL": shell, "HOME": str(root)}
    return open_local(str(root), MemoryFilesystem("/backups"), env=env)


@pytest.fixture(params=SHELLS)
def backend(request: pytest.FixtureRequest, root: Path) -> Iterator[LocalBackend]:
    backend = open_backend(root, request.param)
    yield backend
    backend.close()


@pytest.fixture
def router(root: Path) -> Iterator[Router]:
    backend = open_backend(root, "/bin/sh")
    yield Router(backend, dialect="anthropic")
    backend.close()


def edit(router: Router, command: str, path: str, **arguments: Any) -> ToolResult:
    return router.call(EDITOR, command=command, path=path, **arguments)


# the editor


def test_create_view_replace_insert_undo(router: Router, root: Path) -> None:
    edit(router, "create", "d/a.txt", file_text="one\ntwo\n")
    edit(router, "str_replace", "d/a.txt", old_str="one", new_str="1")
    edit(router, "insert", "d/a.txt", insert_line=1, insert_text="between")
    assert (root / "d/a.txt").read_text() == "1\nbetween\ntwo\n"
    edit(router, "undo_edit", "d/a.txt")
    assert (root / "d/a.txt").read_text() == "1\ntwo\n"


def test_view_shows_line_numbers_and_ranges(router: Router) -> None:
    edit(router, "create", "a", file_text="".join(f"line {n}\n" for n in range(1, 701)))
    whole = edit(router, "view", "a").output.splitlines()
    assert len(whole) == 700
    assert whole[0].split("\t") == ["     1", "line 1"]
    assert edit(router, "view", "a", view_range=[2, 3]).output == "     2\tline 2\n     3\tline 3"
    assert edit(router, "view", "a", view_range=[700, -1]).output == "   700\tline 700"


def test_view_of_a_directory_goes_two_levels_down(router: Router, root: Path) -> None:
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/f").touch()
    assert edit(router, "view", ".").output.splitlines() == ["a/", "a/b/", "a/f"]
    (root / "link").symlink_to("a")
    assert "b/" in edit(router, "view", "link").output
    with pytest.raises(ToolValidationError, match="is a directory"):
        edit(router, "view", "a", view_range=[1, 2])


def test_create_replaces_a_file_that_exists(router: Router, root: Path) -> None:
    edit(router, "create", "a", file_text="old")
    edit(router, "create", "a", file_text="new")
    assert (root / "a").read_text() == "new"


def test_a_replacement_without_new_text_removes(router: Router, root: Path) -> None:
    edit(router, "create", "a", file_text="keep drop")
    edit(router, "str_replace", "a", old_str=" drop")
    assert (root / "a").read_text() == "keep"


def test_insert_takes_its_text_under_either_name(router: Router, root: Path) -> None:
    edit(router, "create", "a", file_text="x\n")
    edit(router, "insert", "a", insert_line=0, new_str="older name")
    edit(router, "insert", "a", insert_line=0, insert_text="newer name")
    assert (root / "a").read_text() == "newer name\nolder name\nx\n"


@pytest.mark.parametrize(
    ("command", "arguments", "missing"),
    [
        ("create", {}, "file_text"),
        ("str_replace", {"new_str": "x"}, "old_str"),
        ("insert", {"insert_text": "x"}, "insert_line"),
        ("insert", {"insert_line": 0}, "insert_text"),
    ],
)
def test_what_a_command_needs_is_named(router: Router, command: str, arguments: dict[str, Any], missing: str) -> None:
    edit(router, "create", "a", file_text="x\n")
    with pytest.raises(ToolValidationError, match=f"{missing}: missing"):
        edit(router, command, "a", **arguments)


def test_an_unknown_command_is_refused_with_those_there_are(router: Router) -> None:
    with pytest.raises(ToolValidationError, match="takes one of 'view', 'create'"):
        edit(router, "rename", "a")


def test_the_editor_asks_for_what_its_commands_do_and_not_for_what_they_show(root: Path) -> None:
    asked: list[str] = []

    def handler(request: ApprovalRequest) -> Any:
        asked.append(request.tool)
        return ALLOW

    backend = open_backend(root, "/bin/sh")
    router = Router(backend, dialect="anthropic", approval=Approval("on-dangerous", handler))
    edit(router, "create", "a", file_text="x x\n")
    edit(router, "view", "a")
    with pytest.raises(TextAmbiguousError):
        edit(router, "str_replace", "a", old_str="x", new_str="y")
    assert asked == ["write_file"]


# the shell


def test_directory_variables_functions_and_jobs_stay_between_calls(backend: LocalBackend, root: Path) -> None:
    router = Router(backend, dialect="anthropic")
    router.call("bash", command="mkdir sub; cd sub; X='a  b'; f() { echo f:$1; }; sleep 60 & J=$!")
    result = router.call("bash", command='pwd; echo "$X"; f 1; kill -0 $J && echo alive')
    assert result.output == f"{root}/sub\na  b\nf:1\nalive\n"
    assert result.data["exit_code"] == 0


@pytest.mark.parametrize(
    "command",
    [
        "echo 'single' \"double\" `echo back` $(echo sub)",
        "printf '%s %d\\n' x 3; printf '100%%\\n'",
        "echo ünïcödé → ☃",
        "cat <<'EOF'\nhere $HOME `x` \\n\n  document\nEOF",
        "for i in 1 2 3\ndo\n  echo $i\ndone",
        "echo '\x01\t!bang ^C'",
        "echo 'trailing newline'\n\n",
        "printf 'no newline at the end'",
        "echo out; echo err >&2",
        "# only a comment",
        "x='" + "y" * 9000 + "'; echo ${#x}",
    ],
)
def test_a_command_arrives_as_it_was_written(backend: LocalBackend, root: Path, command: str) -> None:
    """What the persistent shell prints is what a shell of its own prints."""
    expected = backend.commands.shell(command=f"{{ {command}\n}} 2>&1" if not command.startswith("#") else "")  # type: ignore[union-attr]
    result = Router(backend, dialect="anthropic").call("bash", command=command)
    assert result.output == expected.data["stdout"]
    assert result.data["exit_code"] == 0


def test_no_pager_waits_for_keys(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    commit = "git -c user.name=n -c user.email=e commit -q --allow-empty -m"
    router.call("bash", command=f"git init -q . && for n in $(seq 40); do {commit} c$n; done")
    assert len(router.call("bash", command="git -c core.pager=less log --oneline").output.splitlines()) == 40
    assert router.call("bash", command="seq 100 | $PAGER").output.splitlines()[-1] == "100"


def test_the_exit_status_is_the_commands_own(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    assert router.call("bash", command="(exit 3)").data["exit_code"] == 3
    assert router.call("bash", command="true").data["exit_code"] == 0


def test_a_syntax_error_is_a_result(backend: LocalBackend) -> None:
    result = Router(backend, dialect="anthropic").call_safely("bash", {"command": "if then"})
    assert result.data["exit_code"] != 0
    assert result.output


def test_a_shell_that_was_told_to_exit_ends_and_the_next_command_starts_another(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    router.call("bash", command="X=1")
    ended = router.call("bash", command="echo bye; exit 7")
    assert (ended.output.strip(), ended.data) == ("bye", {"exit_code": 7, "shell_ended": True})
    assert router.call("bash", command="echo [$X]").output == "[]\n"


def test_a_restart_ends_what_hangs(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    shell = PersistentShell(router._session("bash"), timeout_s=0.3)
    begin = time.monotonic()
    with pytest.raises(CommandTimeoutError) as caught:
        shell.run("echo begun; sleep 60")
    assert caught.value.output == "begun\n"
    assert "restart" in (caught.value.hint or "")
    router.call("bash", restart=True)
    assert router.call("bash", command="echo again").output == "again\n"
    assert time.monotonic() - begin < 10


def test_a_command_that_reads_its_input_finds_it_empty(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    assert router.call("bash", command="cat; echo after").output == "after\n"


def test_a_flood_is_cut_and_the_shell_lives_on(backend: LocalBackend) -> None:
    router = Router(backend, dialect="anthropic")
    result = router.call("bash", command="seq 1 100000")
    assert result.truncated
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("[truncated]")
    assert len(result.output) < 40_000
    assert router.call("bash", command="echo fine").output == "fine\n"


def test_it_is_quick(router: Router) -> None:
    router.call("bash", command="true")
    begin = time.monotonic()
    for _ in range(10):
        router.call("bash", command="true")
    assert (time.monotonic() - begin) / 10 < 0.2


def test_one_shell_serves_several_processes_through_a_memory_on_disk(root: Path, tmp_path: Path) -> None:
    backend = open_backend(root, shutil.which("bash") or "/bin/sh")
    path = str(tmp_path / "memory.json")
    Router(backend, dialect="anthropic", memory=FileMemory(path)).call("bash", command="X=kept")
    again = Router(backend, dialect="anthropic", memory=FileMemory(path))
    assert again.call("bash", command="echo $X").output == "kept\n"
    backend.close()


def test_a_session_that_is_gone_is_replaced(root: Path) -> None:
    backend = open_backend(root, "/bin/sh")
    memory: dict[str, Any] = {"shell": 12345}
    router = Router(backend, dialect="anthropic", memory=memory)
    assert router.call("bash", command="echo hi").output == "hi\n"
    assert memory["shell"] != 12345
    backend.close()


def test_the_handler_sees_the_command_itself(root: Path) -> None:
    seen: list[ApprovalRequest] = []

    def handler(request: ApprovalRequest) -> Any:
        seen.append(request)
        return ALLOW

    backend = open_backend(root, "/bin/sh")
    router = Router(backend, dialect="anthropic", approval=Approval("on-dangerous", handler))
    router.call("bash", command="echo one")
    assert [(request.tool, request.arguments["command"]) for request in seen] == [("shell", "echo one")]
    with pytest.raises(ApprovalDenied):
        Router(backend, dialect="anthropic", approval="read-only").call("bash", command="ls")
    backend.close()


def test_a_call_without_a_command_is_refused(router: Router) -> None:
    with pytest.raises(ToolValidationError, match="command: missing"):
        router.call("bash")
    assert router.call("bash", restart=True).message == "the shell was restarted"


def test_a_memory_on_disk_remembers_forgets_and_survives_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    memory = FileMemory(str(path))
    assert dict(memory) == {}
    memory["a"] = 1
    memory["b"] = 2
    del memory["a"]
    assert dict(FileMemory(str(path))) == {"b": 2}
    assert len(memory) == 1
    path.write_text("rubbish")
    assert memory.get("b") is None
