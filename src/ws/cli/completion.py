"""completion: scripts with which a shell completes verbs, options and the names of workspaces.

The scripts call `ws` again with `_WS_COMPLETE` set; click answers from the same definitions that parse the words.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ws.cli.group import COMPLETE, Verb, cli, json_option
from ws.cli.render import print_json


@click.command(
    "completion",
    cls=Verb,
    statuses=(0, 1, 2),
    mounts=False,
    examples=[
        ("ws completion bash > ~/.local/share/bash-completion/completions/ws", "for bash, for good"),
        ('eval "$(ws completion zsh)"', "for zsh, in this shell"),
        ("ws completion fish > ~/.config/fish/completions/ws.fish", "for fish, for good"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion_verb(shell: str, *, as_json: bool) -> None:
    """Print the completion script for a shell.

    It completes verbs, options, and the names of workspaces.
    """
    found = get_completion_class(shell)
    assert found is not None  # the three that click knows by itself
    completer = found(cli, {}, "ws", COMPLETE)
    # Not completer.source(): it starts bash to complain about its age.
    script = completer.source_template % completer.source_vars()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        print(script)
