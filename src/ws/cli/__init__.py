"""The command line: the only part of ws that prints, asks and exits.

    main.py        the door: `ws exec` and `ws tool` past click, everything else through it; how every failure ends
    group.py       the verbs, loaded when they are called; help with examples and exit statuses
    lifecycle.py   create, ls, show, rm, prune
    commands.py    exec, shell, run
    execution.py   `ws exec` itself, without click
    tools.py       tool, tools, events, trash
    calling.py     `ws tool` itself, without click
    files.py       cp
    history.py     snapshot, log, restore, undo, fork
    diffs.py       diff
    transfer.py    apply, export, import
    upkeep.py      verify, gc
    shell.py       a terminal of ours tied to one in the workspace
    images.py      image build
    doctor.py      doctor; checks.py looks, doctor.py shows
    completion.py  completion
    session.py     the state directory and engines that verbs work on; root in a user namespace
    text.py        words for people: escaped, sized, aged, coloured
    render.py      tables, JSON, progress bars

stdout is data, stderr is for people. With `--json` a result is one JSON value on stdout, and an error is one line
`{"error": {"code", "message", "hint"}}` on stderr.
"""
