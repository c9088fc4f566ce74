"""Every error has a stable code, an exit status, and the builtin that callers expect; the drawing is the tree."""

from __future__ import annotations

import re

import pytest

from ws import errors


def test_the_drawing_in_the_docstring_is_the_tree() -> None:
    drawn = {
        match[1]: (match[2], int(match[3]), match[4])
        for match in re.finditer(r"(\w+)(?: \((\w+)\))? +(\d+)  (\w+)$", errors.__doc__ or "", re.MULTILINE)
    }
    real = {}
    for code, cls in errors.all_errors().items():
        builtin = next((base.__name__ for base in cls.__bases__ if not base.__module__.startswith("ws")), None)
        real[cls.__name__] = (None if builtin == "Exception" else builtin, cls.exit_code, code)
    assert drawn == real


@pytest.mark.parametrize("cls", errors.all_errors().values(), ids=lambda cls: cls.__name__)
def test_every_error_says_what_happened_and_what_to_do(cls: type[errors.WorkspaceError]) -> None:
    error = cls("it happened", hint="do this")
    assert str(error) == "it happened"
    assert error.hint == "do this"
    assert cls.__doc__
    if cls is not errors.WorkspaceError:
        assert cls("it happened").hint, "a class says what to do where whoever raises it does not"


def test_codes_are_unique() -> None:
    classes: list[type[errors.WorkspaceError]] = [errors.WorkspaceError]
    for cls in classes:
        classes.extend(cls.__subclasses__())
    codes = [cls.code for cls in dict.fromkeys(classes)]
    assert len(codes) == len(set(codes))
