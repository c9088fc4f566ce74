"""The law: whatever words a person types, ws does it or says in two lines what was wrong, with the agreed status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ws.cli import execution, group, main
from ws.cli.commands import exec_verb
from ws.cli.execution import ExecRequest, parse_plain
from ws.cli.lifecycle import pairs
from ws.errors import EngineUnavailable, InvalidRequest, WorkspaceError

WORDS = st.sampled_from(
    ["box", "-i", "--interactive", "--json", "--rollback-on-failure", "--timeout",
     "--timeout=5", "5", "1.5", "10m", "--env", "--env=A=1", "A=1",
     "B=", "--user", "root", "--user=1000", "--workdir", "/tmp", "--workdir=", "--", "ls", "-la", "--help", "-x", ""]
)  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("WS_DEBUG", raising=False)
    return tmp_path / "home"


def through_click(words: list[str]) -> ExecRequest | None:
    """The request that click makes of the same words, or None when it refuses them."""
    import click

    seen: dict[str, Any] = {}
    try:
        with exec_verb.make_context("exec", list(words)) as ctx:
            seen = dict(ctx.params)
        pairs(seen["env"])
        timeout_s = float(seen["timeout"]) if seen["timeout"] is not None else None
    except (click.exceptions.Exit, click.ClickException, InvalidRequest, ValueError):
        return None
    return ExecRequest(
        name=seen["name"],
        argv=seen["command"],
        timeout_s=timeout_s,
        workdir=seen["workdir"],
        env=seen["env"],
        user=seen["user"],
        interactive=seen["interactive"],
        as_json=seen["as_json"],
        rollback=seen["rollback_on_failure"],
    )


@given(st.lists(WORDS, max_size=9))
@example(["box", "--timeout", "5", "--env", "A=1", "--", "ls", "-la", "--", "x"])
@example(["--env", "--", "box", "--", "ls"])
def test_the_plain_parser_understands_what_click_does_or_leaves_it_to_click(words: list[str]) -> None:
    request = parse_plain(words)
    if request is not None:
        assert request == through_click(words)


def test_the_plain_parser_takes_what_is_usually_written() -> None:
    for words in (
        ["box", "--", "true"],
        ["--timeout", "5", "box", "--env", "A=b=c", "--", "sh", "-c", "x"],
        ["box", "--json", "-i", "--user=root", "--workdir", "/tmp", "--", "--", "x"],
    ):
        assert parse_plain(words) is not None
        assert parse_plain(words) == through_click(words)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["crate"], "ws has no verb 'crate'", "did you mean `ws create`?"),
        (["frobnicate"], "ws has no verb 'frobnicate'", "`ws --help` shows what there is"),
        (["exec", "box"], "no command is given; it follows `--`", None),
        (["exec", "box", "ls", "-la"], "no such option -l", "a command stands behind `--`: ws exec … -- CMD"),
        (["exec", "--timout", "3", "box", "--", "x"], "no such option --timout", "did you mean --timeout?"),
        (["exec", "box", "--timeout", "soon", "--", "x"], "'soon' is not a duration", None),
        (
            ["exec", "box", "--timeout", "0", "--", "x"],
            "--timeout must be a positive number of seconds",
            "leave it out for no limit",
        ),
        (["exec", "box", "--env", "A", "--", "x"], "--env takes K=V, not 'A'", "write it like --env DEBUG=1"),
        (["rm"], "say which workspaces", "ws rm NAME…, or ws rm --all"),
        (["rm", "box", "--all"], "say which workspaces", "ws rm NAME…, or ws rm --all"),
        (["create", "--memory", "lots"], "'lots' is not a size", "write it like 512m or 2g"),
        (["create", "--cpus", "0"], "cpus: 0.0 is too little", "ask for more than 0"),
        (["create", "--pids", "0"], "pids: 0 is too little", "ask for at least 16"),
        (["create", "--name", "No Good"], "'No Good' cannot be the name of a workspace", None),
        (
            ["completion", "tcsh"],
            "invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'",
            None,
        ),
    ],
)
def test_a_mistake_in_the_words_is_explained_in_two_lines_and_ends_with_2(
    words: list[str], message: str, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    first, second = printed.err.splitlines()
    assert first == f"error: {message}"
    assert second.startswith("hint: ")
    assert hint is None or second == f"hint: {hint}"


def test_with_json_an_error_is_one_json_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["rm", "--json", "\x1b[31mnobody\udcff"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    error = json.loads(printed.err)["error"]
    assert error["code"] == "workspace_not_found"
    assert "\x1b" not in printed.err
    assert set(error) == {"code", "message", "hint"}


def test_a_json_that_belongs_to_the_command_is_not_ours() -> None:
    assert main.wants_json(["exec", "box", "--json", "--", "x"])
    assert not main.wants_json(["exec", "box", "--", "x", "--json"])


def test_an_unknown_name_is_explained_with_the_one_that_was_meant(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["ls"]) == 0
    capsys.readouterr()
    os.symlink("0123456789ab", home / "names" / "parser")
    for words in (["show", "parsre"], ["rm", "parsre"], ["exec", "parsre", "--", "true"]):
        assert main.run(words) == 3
        assert capsys.readouterr().err.splitlines() == [
            "error: no workspace is called 'parsre'",
            "hint: did you mean 'parser'? `ws ls` shows them all",
        ]


def test_control_characters_in_an_error_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show", "evil\x1b]0;pwned\x07\n"]) == 3
    assert not any(letter in capsys.readouterr().err for letter in "\x1b\x07")


def test_no_error_text_can_pass_for_a_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    main.report("x", "build failed\nhint: rm -rf /\x1b[1A", None, status=1, as_json=False)
    assert capsys.readouterr().err == "error: build failed\n  hint: rm -rf /\\x1b[1A\n"


class Surprise(Exception):
    pass


@pytest.mark.parametrize(
    ("raised", "status", "lines"),
    [
        (
            EngineUnavailable("podman\x1b does not answer", hint="start it"),
            6,
            ["error: podman\\x1b does not answer", "hint: start it"],
        ),
        (KeyboardInterrupt(), 130, ["error: interrupted"]),
        (
            Surprise("oops"),
            1,
            ["error: unexpected Surprise: oops", "hint: this is a defect of ws; WS_DEBUG=1 shows where it happened"],
        ),
        (
            OSError(28, "No space left on device", "/state"),
            1,
            ["error: No space left on device: /state", "hint: WS_DEBUG=1 shows where it happened"],
        ),
        (SystemExit(143), 143, []),
    ],
)
def test_every_failure_ends_without_a_traceback_and_with_its_status(
    raised: BaseException,
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_words: list[str]) -> int:
        raise raised

    monkeypatch.setattr(group, "run_verb", fail)
    assert main.run(["ls"]) == status
    assert capsys.readouterr().err.splitlines() == lines


def test_debugging_shows_where_a_surprise_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_words: list[str]) -> int:
        raise Surprise("oops")

    monkeypatch.setattr(group, "run_verb", fail)
    monkeypatch.setenv("WS_DEBUG", "1")
    assert main.run(["ls"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_every_error_class_has_a_status_that_the_help_names() -> None:
    from ws.errors import all_errors

    assert {cls.exit_code for cls in all_errors().values()} <= {*group.STATUSES, 9}


def ws(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ws", *words], capture_output=True, text=True, timeout=60, **options)


def test_a_closed_pipe_ends_ws_quietly() -> None:
    words = [sys.executable, "-m", "ws", "create", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_output_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "ws", "ls"], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1
    assert done.stderr == b"error: the output could not be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_caller_may_close_the_standard_descriptors(closed: str) -> None:
    line = f'"{sys.executable}" -m ws exec nobody -- true {closed}'
    assert subprocess.run(["sh", "-c", line], stderr=subprocess.DEVNULL, timeout=60).returncode == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    assert "_WS_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "number", "found"),
    [
        ("ws cre", 1, {"create"}),
        ("ws show ", 2, {"parser", "printer"}),
        ("ws exec pa", 2, {"parser"}),
        ("ws rm parser pr", 3, {"printer"}),
        ("ws create --eng", 2, {"--engine"}),
        ("ws create --engine ", 3, {"podman", "docker", "none"}),
    ],
)
def test_verbs_options_and_names_are_completed(home: Path, line: str, number: int, found: set[str]) -> None:
    assert main.run(["ls"]) == 0
    for name in ("parser", "printer"):
        os.symlink("0123456789ab", home / "names" / name)
    env = {**os.environ, "_WS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(number)}
    answer = ws(env=env)
    assert {entry.partition(",")[2] for entry in answer.stdout.splitlines()} == found
    assert answer.stderr == ""


def test_ws_exec_imports_nothing_heavy() -> None:
    program = (
        "import sys; from ws.cli import main; status = main.run(['exec', 'nobody', '--', 'true']);"
        "print(status, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    status, *loaded = done.stdout.split()
    assert status == "3"
    heavy = {
        "click",
        "rich",
        "pydantic",
        "pygit2",
        "docker",
        "podman",
        "requests",
        "subprocess",
        "secrets",
        "ws.manager",
    }
    assert not heavy & set(loaded)


def test_a_result_becomes_the_status_that_a_shell_has() -> None:
    from ws.remote.results import ExecResult

    def status(**fields: Any) -> int:
        return execution.status_of(ExecResult(stdout_bytes=b"", stderr_bytes=b"", **fields))

    assert status(exit_code=0) == 0
    assert status(exit_code=77) == 77
    assert status(exit_code=137, timed_out=True) == 124


def test_a_workspace_error_is_its_own_exit_status() -> None:
    assert WorkspaceError("x").exit_code == 1
