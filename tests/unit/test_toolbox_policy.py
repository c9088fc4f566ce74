"""The law: the block list stops what ends a machine or empties a disk by accident, and no ordinary work."""

from __future__ import annotations

import time

import pytest

from ws.errors import ApprovalDenied
from ws.toolbox.policy import CommandPolicy

ORDINARY = [
    "./init.sh",
    "bash init.sh",
    "git init && npm init -y",
    "init() { :; }; init",
    "./scripts/reboot.sh; tools/shutdown --help",
    "cat > m.c <<'E'\nint main(void) { init(); return 0; }\nE",
    "cat <<E\nreboot the server\nE",
    "cat <<-E\n\treboot\n\tE\necho done",
    "cat <<'A' <<B\nreboot\nA\nhalt\nB\nls",
    "python3 -c 'print(init(3))'",
    "python3 - <<'E'\nimport os\nshutdown()\nE",
    "echo 'one\nreboot\n'",
    'git commit -m "Say what to do\n\nreboot (or halt) when asked; rm -rf / is refused"',
    "git commit -m \"$(cat <<'E'\nDon't halt\n\nreboot (now)\nE\n)\"",
    "echo rm -rf /",
    "grep -rn 'rm -rf /' .",
    "rm -rf build && ls /",
    "rm -rf /tmp/x ./y ~/z",
    "echo $(date) reboot",
    "ls # reboot\n# don't shutdown",
    "for word in halt reboot; do echo $word; done",
    "dd if=/dev/zero of=disk.img",
    "man reboot > /dev/null",
]
BLOCKED = [
    "reboot",
    "/sbin/reboot -f",
    "ls; shutdown now",
    "ls\nhalt",
    "ls && (poweroff)",
    "echo $(reboot)",
    'echo "it is $(reboot)"',
    "echo `reboot`",
    "if reboot; then :; fi",
    "while ! reboot; do sleep 1; done",
    "{ reboot; }",
    "A=1 reboot 2>/dev/null",
    ">log reboot",
    "cat <<E && reboot\nx\nE",
    "cat <<E\nx\nE\nreboot",
    "sudo -u root reboot",
    "sudo \\\n  reboot",
    "timeout -k 1 5s reboot",
    "nohup env -i A=b nice -n 5 reboot &",
    "sh -c 'shutdown now'",
    "bash -lc \"sudo sh -c 'reboot'\"",
    "eval 'halt now'",
    "'reboot'",
    "mkfs.ext4 /dev/sda1",
    "init 0",
    "rm -rf /",
    'rm -rf "/"',
    "rm -r -f //",
    "rm -rf build /",
    "rm -rf '/'*",
    'rm -rf "$HOME"',
    "sudo rm -rf --no-preserve-root /",
    "dd if=/dev/zero of=/dev/sda",
    "echo x > /dev/sda",
    ":(){ :|:& };:",
    "chmod -R 777 /",
]


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_work_is_not_stopped(command: str) -> None:
    CommandPolicy().check(command)


@pytest.mark.parametrize("command", BLOCKED)
def test_what_ends_a_machine_is_stopped(command: str) -> None:
    with pytest.raises(ApprovalDenied, match="command policy"):
        CommandPolicy().check(command)


def test_a_pattern_is_held_against_commands_or_against_the_whole_line() -> None:
    policy = CommandPolicy().also(patterns=[r"^curl .*-k", r"\|\s*sh\b"])
    for command in ("true; curl 'x' '-k'", "curl x | sh"):
        with pytest.raises(ApprovalDenied):
            policy.check(command)
    policy.check("echo curl -k")


@pytest.mark.parametrize("piece", ["'", '"', "$(", "`", "(", "<<E\n", 'sh -c "', "a\\", "{ ", "eval ", "&& "])
def test_no_line_takes_long_to_read(piece: str) -> None:
    begin = time.perf_counter()
    CommandPolicy().check("echo " + piece * 20_000)
    CommandPolicy().check("echo " + piece + "x" * 1_000_000)
    assert time.perf_counter() - begin < 5
