"""Which commands are not run at all, whoever approves: a block list that the user configures.

It catches accidents, not intent: a shell has more ways to say a thing than a list has lines. What keeps a
command from doing harm is the container. Programs are looked for where a command begins (behind `;`, `|`,
`&&`, in a substitution, behind `sudo`, `env`, `xargs` and their like), patterns anywhere in the line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ws.errors import ApprovalDenied

BLOCKED_PROGRAMS = frozenset({"halt", "init", "mkfs", "poweroff", "reboot", "shutdown", "telinit", "wipefs"})
BLOCKED_PATTERNS = (
    r"\brm\s+(?:-\S+\s+)*(?:/|/\*|~/?|\$HOME/?|\$\{HOME\}/?)(?=\s|;|&|\||$)",  # the root, the home directory
    r"--no-preserve-root\b",
    r"\bdd\b.*\bof=/dev/(?!null\b|zero\b|stdout\b|stderr\b)",
    r">\s*/dev/(?:sd|nvme|vd|xvd|mmcblk|mem\b)",
    r":\s*\(\s*\)\s*\{.*:\s*\|\s*:.*\}",  # the fork bomb
    r"\bchmod\s+(?:-\S+\s+)*[0-7]*777\s+/(?=\s|$)",
)

_BEGINNINGS = re.compile(r"[;|&\n(){}`]")
_WORDS = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
_WRAPPERS = frozenset({"command", "doas", "env", "exec", "nice", "nohup", "sudo", "time", "xargs", "then", "do"})


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """A block list: names of programs, and regular expressions over the whole command."""

    programs: frozenset[str] = BLOCKED_PROGRAMS
    patterns: tuple[str, ...] = BLOCKED_PATTERNS

    def also(self, *, programs: Iterable[str] = (), patterns: Iterable[str] = ()) -> CommandPolicy:
        """The same list with more on it."""
        return CommandPolicy(self.programs | frozenset(programs), (*self.patterns, *patterns))

    def check(self, command: str) -> None:
        """Raises ApprovalDenied when the command is on the list."""
        for program in _programs(command):
            if program in self.programs or program.split(".")[0] in self.programs:
                raise _blocked(f"the program {program}")
        for pattern in self.patterns:
            if match := re.search(pattern, command, re.DOTALL):
                raise _blocked(repr(match[0]))


ALLOW_ALL = CommandPolicy(frozenset(), ())


def _programs(command: str) -> Iterable[str]:
    """What stands where a program's name stands, for every command in the line."""
    for piece in _BEGINNINGS.split(command):
        for word in _WORDS.findall(piece):
            plain = word.replace('"', "").replace("'", "").replace("\\", "")
            if re.match(r"\w+=", plain) or plain.startswith("-"):
                continue
            name = os.path.basename(plain)
            yield name
            if name not in _WRAPPERS:
                break


def _blocked(what: str) -> ApprovalDenied:
    return ApprovalDenied(
        f"the command policy does not let {what} run",
        hint="do it another way; what the policy blocks is set by the workspace's owner",
    )
