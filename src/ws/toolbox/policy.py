"""Which commands are not run at all, whoever approves: a block list that the user configures.

It is a courtesy, not a boundary: it catches accidents, not intent, because a shell has more ways to say a
thing than a list has lines. What keeps a command from doing harm is the container. So it reads a line as a
shell would, as far as that is simple: programs stand where a command begins (behind `;`, `|`, `&&`, in a
substitution, in `sh -c`, behind `sudo`, `timeout` and their like); quoted text and here-documents are data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from ws.errors import ApprovalDenied

BLOCKED_PROGRAMS = frozenset({"halt", "mkfs", "poweroff", "reboot", "shutdown", "telinit", "wipefs"})
BLOCKED_PATTERNS = (
    r"^rm (?:\S+ )*(?:/+\.?|/\*|~/?|\$HOME/?|\$\{HOME\}/?)(?= |$)",  # the root, the home directory
    r"^rm .*--no-preserve-root\b",
    r"^dd .*\bof=/dev/(?!null\b|zero\b|stdout\b|stderr\b)",
    r"^mkfs\.\S+",
    r"^init [016](?= |$)",  # ends the machine; `init` alone is the name of many a script
    r"^chmod (?:-\S+ )*[0-7]*777 /(?= |$)",
    r">\s*/dev/(?:sd|nvme|vd|xvd|mmcblk|mem\b)",
    r":\s*\(\s*\)\s*\{.*:\s*\|\s*:.*\}",  # the fork bomb
)

_TOKENS = re.compile(
    r"""
      \# [^\n]*                                                                   # a comment
    | <<-? [ \t]* (?P<quote>['"\\]?) (?P<here>[A-Za-z_][\w.-]*) ['"]?             # opens a here-document
    | (?P<redirect> \d* (?: <<< | [<>]& | &>>? | >[>|]? | <>? ) )
    | (?P<word> (?: [^\s;|&()<>`'"\\]++ | \\. | '[^']*+' | "(?:[^"\\]++|\\.)*+" )++ )
    | (?P<end> [;|&()`\n] )
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTES = re.compile(r"""\\(.)|'([^']*+)'|"((?:[^"\\]++|\\.)*+)\"""", re.DOTALL)
_SUBSTITUTIONS = re.compile(r"\$\((.*?)\)|`([^`]*)`", re.DOTALL)

_KEYWORDS = frozenset({"!", "do", "elif", "else", "if", "then", "until", "while", "{"})
_WRAPPERS = {  # programs that run the rest of their line, and their options that take a value
    "builtin": "", "command": "", "doas": "Cu", "env": "CSu", "exec": "a", "ionice": "cn", "nice": "n",
    "nohup": "", "setsid": "", "stdbuf": "eio", "sudo": "CDRTghpru", "time": "fo", "timeout": "ks",
    "xargs": "EILPadns",
}  # fmt: skip
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_MAX_NESTING = 8


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """A block list: names of programs, and regular expressions.

    An expression that begins with `^` is held against each command of the line as the shell would run it: from the
    program's name on, without quotes, one space between words. Any other is looked for in the line as it is written.
    """

    programs: frozenset[str] = BLOCKED_PROGRAMS
    patterns: tuple[str, ...] = BLOCKED_PATTERNS

    def also(self, *, programs: Iterable[str] = (), patterns: Iterable[str] = ()) -> CommandPolicy:
        """The same list with more on it."""
        return CommandPolicy(self.programs | frozenset(programs), (*self.patterns, *patterns))

    def check(self, command: str) -> None:
        """Raises ApprovalDenied when the command is on the list."""
        commands = list(_commands(command))
        for program, *_ in commands:
            if program in self.programs:
                raise _blocked(f"the program {program}")
        texts = [" ".join(words) for words in commands]
        for pattern in self.patterns:
            for text in texts if pattern.startswith("^") else [command]:
                if match := re.search(pattern, text, re.DOTALL):
                    raise _blocked(repr(match[0]))


ALLOW_ALL = CommandPolicy(frozenset(), ())


def _commands(line: str, nesting: int = 0) -> Iterator[list[str]]:
    """The words of every command in a line, from the program's name on; a wrapper's, then what it wraps."""
    if nesting > _MAX_NESTING:
        return
    for words in _simple_commands(line):
        for raw in words:
            for _, _, quoted in _QUOTES.findall(raw):
                for inner in _SUBSTITUTIONS.findall(quoted):
                    yield from _commands("".join(inner), nesting + 1)
        plain = [_unquoted(word) for word in words]
        while plain := _from_program(plain):
            yield plain
            if plain[0] in _SHELLS or plain[0] == "eval":
                yield from _commands(_script(plain), nesting + 1)
            if plain[0] not in _WRAPPERS:
                break
            plain = _wrapped(plain)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Words as they are written, a list for each command; redirections and here-documents are left out."""
    line = line.replace("\\\n", " ")
    words: list[str] = []
    around: list[list[str]] = []  # the commands in which substitutions stand
    bodies: list[str] = []  # the marks that end the here-documents of this line
    at = 0
    target = False  # whether the next word is where a redirection leads
    while token := _TOKENS.search(line, at):
        at = token.end()
        if token["here"]:
            bodies.append(token["here"])
        elif token["redirect"]:
            target = True
            continue
        elif token["word"] and not target:
            words.append(token["word"])
        elif token["end"] == "(":
            inside = bool(words) and words[-1].endswith("$")
            around.append(words if inside else [])
            if not inside:
                yield words
            words = []
        elif token["end"]:
            yield words
            words = around.pop() if token["end"] == ")" and around else []
            if token["end"] == "\n":
                at = _behind(line, at, bodies)
        target = False
    yield words


def _behind(line: str, at: int, marks: list[str]) -> int:
    """Where the here-documents that begin at a place have ended; the marks are used up."""
    while marks:
        end = re.compile(rf"^\t*{re.escape(marks.pop(0))}$\n?", re.MULTILINE).search(line, at)
        at = end.end() if end else len(line)
    return at


def _unquoted(word: str) -> str:
    return _QUOTES.sub(lambda quoted: quoted[1] or quoted[2] or quoted[3] or "", word)


def _from_program(words: list[str]) -> list[str]:
    """The words without the keywords and assignments before the program, which loses the path to its directory.

    A relative path is a script of the project's own, whatever its name.
    """
    for at, word in enumerate(words):
        if word not in _KEYWORDS and not re.match(r"\w+=", word):
            return [os.path.basename(word) if word.startswith("/") else word, *words[at + 1 :]]
    return []


def _wrapped(words: list[str]) -> list[str]:
    """What a wrapper runs: the words behind its options and their values."""
    wrapper, rest = words[0], iter(words[1:])
    for word in rest:
        if word.startswith("-"):
            if word[1:2] in _WRAPPERS[wrapper] and len(word) == 2:
                next(rest, None)
        elif wrapper == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", word):
            continue
        else:
            return [word, *rest]
    return []


def _script(words: list[str]) -> str:
    """What a shell is told to run with `-c`, or `eval` with its words."""
    if words[0] == "eval":
        return " ".join(words[1:])
    for option, script in pairwise(words):
        if re.fullmatch(r"-\w*c", option):
            return script
    return ""


def _blocked(what: str) -> ApprovalDenied:
    return ApprovalDenied(
        f"the command policy does not let {what} run",
        hint="do it another way; what the policy blocks is set by the workspace's owner",
    )
