"""The verbs of ws: which there are, where they live, and how their help reads.

A verb's module is imported when the verb is called, so `ws ls` does not pay for `ws doctor`. The table below is what
`ws --help` shows; a test compares it with the verbs themselves.

Every verb is a `Verb`: its help ends with examples and with the exit statuses it can have. A `CommandVerb` also takes a
command after `--`, which click never sees: its options are the command's own business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

from ws.cli import session
from ws.cli.text import closest
from ws.errors import InvalidRequest

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Workspaces": {
        "create": ("lifecycle", "Make a workspace from a source directory, or an empty one."),
        "ls": ("lifecycle", "List the workspaces."),
        "show": ("lifecycle", "Show all that is known of a workspace."),
        "rm": ("lifecycle", "Remove workspaces with all their files."),
        "prune": ("lifecycle", "Remove expired workspaces, and what crashes left behind."),
    },
    "Commands": {
        "exec": ("commands", "Run a command in a workspace."),
        "shell": ("commands", "Open a terminal in a workspace."),
        "run": ("commands", "Make a workspace, run a command in it, remove it."),
    },
    "Tools": {
        "tool": ("tools", "Call a tool in a workspace."),
        "tools": ("tools", "Show the tools that models may call."),
        "events": ("tools", "Show what tools did in a workspace."),
        "trash": ("tools", "See, bring back and remove what tools deleted."),
    },
    "History": {
        "snapshot": ("history", "Keep a workspace as it is now."),
        "log": ("history", "List the snapshots of a workspace, newest first."),
        "diff": ("diffs", "Show what changed in a workspace."),
        "restore": ("history", "Bring a workspace back to a snapshot, all of it or nothing."),
        "undo": ("history", "Take the last restore of a workspace back."),
        "fork": ("history", "Make a new workspace that begins as another one is, or was."),
    },
    "In and out": {
        "cp": ("files", "Copy files and directories into a workspace, or out of one."),
        "apply": ("transfer", "Bring a workspace's changes back to its source directory."),
        "export": ("transfer", "Write a workspace out: as a patch, a directory or a bundle."),
        "import": ("transfer", "Make a workspace from a bundle that `ws export` wrote."),
    },
    "Upkeep": {
        "verify": ("upkeep", "Read everything back that is kept, and check it."),
        "gc": ("upkeep", "Remove what nothing needs, beside running workspaces."),
    },
    "Set-up": {
        "pool": ("pool", "Keep containers warm, so that creating takes milliseconds."),
        "image": ("images", "Build the default image of workspaces."),
        "doctor": ("doctor", "Check this machine: kernel, state, engines, image."),
        "completion": ("completion", "Print the completion script for a shell."),
    },
}
VERBS = {name: place for verbs in SECTIONS.values() for name, place in verbs.items()}

INTERRUPTED = 130
STATUSES = {
    0: "done",
    1: "an unexpected error; WS_DEBUG=1 shows where",
    2: "the request cannot be understood or contradicts itself",
    3: "no such workspace or image",
    4: "the name is taken",
    5: "another operation holds the workspace",
    6: "the engine, the container or the kernel refused",
    7: "what lies under WS_HOME cannot be used",
    8: "the source kept changing while it was read",
    9: "a limit was exceeded",
    10: "the command could not be started",
    124: "the command ran out of time",
    INTERRUPTED: "interrupted",
}
# Parameters that are paths without click knowing it, and names, which are looked up: there is none with other bytes.
ANY_BYTES = frozenset(("exclude", "source", "target", "paths", "name", "names"))
COMPLETE = "_WS_COMPLETE"  # set by the script of `ws completion`
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Verb(click.Command):
    """A click command whose help ends with examples and exit statuses.

    `mounts` says that it works on workspaces, for which an ordinary user needs a user namespace. Paths and
    patterns may hold any bytes; all other text must be UTF-8.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        statuses: Sequence[int] = (0, 1, 2),
        mounts: bool = True,
        own_statuses: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, **kwargs})
        self.examples = examples
        self.statuses = {str(number): STATUSES[number] for number in statuses} | (own_statuses or {})
        self.mounts = mounts

    def invoke(self, ctx: click.Context) -> Any:
        for parameter in self.params:
            if not isinstance(parameter.type, click.Path) and parameter.name not in ANY_BYTES:
                _check_text(parameter, ctx.params.get(parameter.name or ""))
        if self.mounts:
            session.enter_userns(ctx.params.get("engine"))
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Examples"):
            write_examples(formatter, self.examples)
        with formatter.section("Exit status"):
            formatter.write_dl(list(self.statuses.items()))


def _check_text(parameter: click.Parameter, value: object) -> None:
    """Python spells a byte that is not UTF-8 as half a surrogate pair, which nothing that sends text accepts."""
    for text in value if isinstance(value, list | tuple) else (value,):
        if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
            shown = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name
            raise InvalidRequest(f"{shown} is not UTF-8", hint="only paths and commands may hold any bytes")


class CommandVerb(Verb):
    """A verb with a command behind `--`; the callback gets it as `command`."""

    def __init__(self, *args: Any, command_needed: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.command_needed = command_needed

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        tail = "-- CMD..." if self.command_needed else "[-- CMD...]"
        return [*super().collect_usage_pieces(ctx), tail]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        command = tuple(args[split + 1 :])
        rest = super().parse_args(ctx, args[:split])
        if self.command_needed and not command and not ctx.resilient_parsing:
            raise click.UsageError("no command is given; it follows `--`", ctx)
        ctx.params["command"] = command
        return rest


class VerbGroup(click.Group):
    """Verbs behind one word; its help says of each what it does, and how it is called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, "invoke_without_command": True, **kwargs})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl([(name, (verb.help or "").partition("\n")[0]) for name, verb in self.commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Examples"):
            for verb in self.commands.values():
                if isinstance(verb, Verb):
                    write_examples(formatter, verb.examples)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[tuple[str, str]]) -> None:
    for words, meaning in examples:
        formatter.write(f"  {words}\n      {meaning}\n")


class Verbs(click.Group):
    """The group of all verbs, each loaded when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = import_module(f"ws.cli.{VERBS[cmd_name][0]}")
        found: click.Command = getattr(module, f"{cmd_name}_verb")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in VERBS and not word.startswith("-") and not ctx.resilient_parsing:
            near = closest(word, list(VERBS))
            hint = f"did you mean `ws {near}`?" if near else "`ws --help` shows what there is"
            raise InvalidRequest(f"ws has no verb {word!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, meaning) for name, (_, meaning) in verbs.items()])


@click.group(cls=Verbs, invoke_without_command=True, context_settings=CONTEXT)
@click.version_option(package_name="ws", message="ws %(version)s", help="Show the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Disposable, rewindable workspaces for coding agents.

    A workspace is a container whose /workspace is a copy-on-write overlay of a project. What is done in it never
    touches the project.

    Results go to stdout. Errors go to stderr as `error:` and `hint:`. Every verb has --json: then the result is one
    JSON value, and an error one line {"error": {"code", "message", "hint"}}.

    WS_HOME is where state lies, WS_ENGINE the engine, WS_IMAGE the image.
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, errors too.")


def complete_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of workspaces that begin so. Reads one directory; makes nothing, asks no engine."""
    from ws.layout import Home, default_home

    return [name for name in session.names(Home(default_home())) if name.startswith(incomplete)]


def complete_snapshots(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Tags and ids of the workspace named before, and `base`. Reads references alone, and makes nothing."""
    from ws.layout import Home, default_home, resolve_name
    from ws.store.references import all_refs
    from ws.store.repository import Store

    home = Home(default_home())
    # While the value of an option is typed, click has not come to the arguments: they lie there as they were written.
    words = [ctx.params.get("name"), *ctx.args]
    workspace_id = next((known for word in words if word and (known := resolve_name(home, str(word)))), None)
    found = ["base"]
    if workspace_id and os.path.exists(os.path.join(home.store, "HEAD")):
        prefix = f"refs/workspaces/{workspace_id}/"
        with Store(home.store) as store:
            for name, commit in sorted(all_refs(store).items()):
                if name.startswith(f"{prefix}tags/"):
                    found.append(name.removeprefix(f"{prefix}tags/"))
                elif name.startswith(prefix):
                    found.append(commit[:12])
    return [word for word in found if word.startswith(incomplete)]


def name_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", metavar="NAME", shell_complete=complete_names)(function)


def run_verb(words: list[str]) -> int:
    """Run a command line through click; returns its exit status. Raises InvalidRequest for words that do not fit.

    Not through click's own `main`, which makes an exit status of 1 out of a closed pipe.
    """
    asked = os.environ.get(COMPLETE)
    if asked:
        return shell_complete(cli, {}, "ws", COMPLETE, asked)
    try:
        with cli.make_context("ws", list(words)) as ctx:
            result = cli.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        _explain(error, words)
    except click.ClickException as error:
        raise InvalidRequest(error.format_message()) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


def _explain(error: click.UsageError, words: list[str]) -> NoReturn:
    message = " ".join(error.format_message().split())
    hint = "`ws --help` shows what there is"
    if error.ctx is not None:
        usage = " ".join(error.ctx.get_usage().removeprefix("Usage: ").split())
        hint = f"{usage} (--help tells more)"
    if isinstance(error, click.NoSuchOption):
        message = f"no such option {error.option_name}"
        if error.possibilities:
            hint = f"did you mean {sorted(error.possibilities)[0]}?"
        elif "--" not in words and error.ctx is not None and isinstance(error.ctx.command, CommandVerb):
            hint = f"a command stands behind `--`: {error.ctx.command_path} … -- CMD"
    raise InvalidRequest(message[:1].lower() + message[1:].rstrip("."), hint=hint) from None
