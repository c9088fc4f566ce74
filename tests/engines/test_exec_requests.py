"""The law: what a caller asks of a command works, or is a typed error that says the limit; the workspace goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from workspaces import SharedWorkspaces
from ws.engine.base import Engine
from ws.errors import CommandNotStarted, InvalidRequest, LimitExceeded
from ws.workspace import Workspace


@pytest.fixture(scope="module")
def boxes(engine: Engine, shared: Callable[[str], SharedWorkspaces]) -> SharedWorkspaces:
    return shared(engine.name)


@pytest.fixture
def box(boxes: SharedWorkspaces) -> Workspace:
    return boxes.take()


def test_words_and_variables_may_be_as_long_as_the_kernel_takes_them(box: Workspace) -> None:
    words = ["x" * 100_000] * 14
    variables = {f"V{number}": "y" * 100_000 for number in range(4)}
    said = box.exec(["sh", "-c", 'echo $# ${#V3} "$1" | wc -c', "sh", *words], env=variables)
    assert (said.exit_code, int(said.stdout)) == (0, len("14 100000 ") + 100_001)


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (["echo", "x" * (128 << 10)], {}),
        (["echo"], {"V": "x" * (128 << 10)}),
        (["echo", *["x" * 100_000] * 22], {}),
        (["echo", *["x" * 100_000] * 400], {}),
        (["echo", *["x" * 100_000] * 15], {f"V{n}": "x" * 100_000 for n in range(7)}),
    ],
    ids=["word", "variable", "words", "many words", "both"],
)
def test_what_is_longer_is_refused_with_the_limit(box: Workspace, words: list[str], env: dict[str, str]) -> None:
    with pytest.raises(LimitExceeded, match="2,097,152 in all and 131,072 in one"):
        box.exec(words, env=env)
    assert box.exec(["true"])


@pytest.mark.parametrize(
    "asked",
    [
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A\0": "x"}},
        {"env": {"A": "x\0y"}},
        {"env": {"A": 3}},
        {"env": {"A": None}},
        {"timeout": float("nan")},
        {"timeout": -1},
        {"timeout": "3"},
        {"timeout": 1e300},
        {"max_output_bytes": -1},
        {"max_output_bytes": "3"},
        {"stdin": 3},
    ],
    ids=repr,
)
@pytest.mark.parametrize("user", [None, "root"])
def test_what_cannot_be_is_refused_before_anything_runs(
    box: Workspace, asked: dict[str, Any], user: str | None
) -> None:
    with pytest.raises(InvalidRequest):
        box.exec(["touch", "ran"], **asked, **({"user": user} if user and "stdin" not in asked else {}))
    assert not box.fs.exists("ran")


@pytest.mark.parametrize("timeout", [3e6, float("inf"), 1e9, 10**9])
def test_a_long_timeout_is_one(box: Workspace, timeout: float) -> None:
    assert box.exec(["sh", "-c", "sleep 0.1; echo done"], timeout=timeout).stdout == "done\n"


def test_a_timeout_of_nothing_ends_it_at_once(box: Workspace) -> None:
    assert box.exec(["sleep", "60"], timeout=0).timed_out


def test_input_may_be_text(box: Workspace) -> None:
    assert box.exec(["cat"], stdin="héllo\n").stdout == "héllo\n"
    assert box.exec(["cat"], stdin=bytearray(b"x")).stdout == "x"


def test_a_cap_of_nothing_keeps_nothing(box: Workspace) -> None:
    result = box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], max_output_bytes=0)
    assert (result.stdout, result.stderr, result.truncated, result.exit_code) == ("", "", True, 3)
    assert not box.exec(["true"], max_output_bytes=0).truncated


@pytest.mark.parametrize("size", [100_000, 200_000, 900_000])
@pytest.mark.parametrize("tool", ["shell", "exec_command"])
def test_a_shell_line_may_be_longer_than_a_word(box: Workspace, size: int, tool: str) -> None:
    line = f"x='{'é' * (size // 2)}'; [ $# = 0 ] && echo ${{#x}} \"a  b\""
    arguments: dict[str, Any] = {"command": line} if tool == "shell" else {"cmd": line, "yield_time_ms": 20_000}
    said = box.tools.call(tool, **arguments)
    assert said.output.split("\n")[0].endswith("a  b"), said.output[-200:]
    assert said.data["exit_code"] == 0


def test_a_user_that_is_not_there_is_one_error_on_both_engines(box: Workspace) -> None:
    for user in ("no-such-user", "no-such-user:0", "0:no-such-group"):
        with pytest.raises(InvalidRequest, match="the container knows no"):
            box.exec(["true"], user=user)


def test_one_thread_reads_a_terminal_while_others_send(box: Workspace) -> None:
    total, senders = 200_000, 4
    with box.terminal(["sh", "-c", "stty raw -echo; echo ready; head -c 200000 | wc -c; echo over"]) as terminal:
        seen = b""
        while b"ready" not in seen:
            seen += terminal.read(wait_s=10) or b""
        threads = [
            threading.Thread(target=lambda: [terminal.send(b"x" * 500) for _ in range(total // senders // 500)])
            for _ in range(senders)
        ]
        for thread in threads:
            thread.start()
        while (piece := terminal.read(wait_s=10)) is not None:
            assert piece, seen
            seen += piece
        for thread in threads:
            thread.join()
    assert b"200000" in seen
    assert b"over" in seen


class TestWhyNotStarted:
    @pytest.mark.parametrize(
        ("make", "word", "message"),
        [
            ("ln -s /opt/python3.99 venv", "./venv", "is a link to '/opt/python3.99', which is not in the container"),
            ("ln -s a b; ln -s /root/x/python a", "./b", "is a link to '/root/x/python', which is not"),
            ("printf '#!/opt/python3.99 -u\\n' > s; chmod +x s", "./s", "needs '/opt/python3.99', which is not"),
            ("printf 'echo x\\n' > plain", "./plain", "is not executable"),
            ("mkdir -p d", "./d", "is a directory"),
            ("head -c 100 /dev/zero > z; chmod +x z", "./z", "cannot be executed"),
            ("true", "./missing", "there is no command './missing'"),
            ("true", "no-such-command", "there is no command 'no-such-command'"),
        ],
        ids=lambda value: None if " " in value else value,
    )
    def test_the_error_names_what_is_missing(self, box: Workspace, make: str, word: str, message: str) -> None:
        assert box.exec(["sh", "-c", make])
        with pytest.raises(CommandNotStarted, match=message):
            box.exec([word])

    def test_a_program_without_its_loader(self, box: Workspace) -> None:
        box.exec(
            ["sh", "-c", "sed 's,/lib64/ld-linux-x86-64.so.2,/lib64/ld-no-such-64.so.2,' /bin/true > t; chmod +x t"]
        )
        if box.exec(["cmp", "-s", "t", "/bin/true"]).exit_code == 0:
            pytest.skip("/bin/true of this machine names another loader")
        with pytest.raises(CommandNotStarted, match=r"needs '/lib64/ld-no-such-64.so.2', which is not"):
            box.exec(["./t"])
