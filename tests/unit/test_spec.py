"""What a caller may ask for: good values are understood, bad ones named in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from ws.errors import InvalidName, InvalidRequest
from ws.spec import check_name, check_spec, default_name, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29), ("100", 100), ("4kb", 4096)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), ("250ms", 0.25)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "..", "a\n", "a" * 64, "ä", "a b", "a-"])
def test_a_name_that_is_no_file_name_label_and_hostname_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_name(name)


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"memory": "lots"}, "'lots' is not a size", "write it like 512m or 2g"),
        ({"memory": "1k"}, "memory: '1k' is too little", "ask for at least 32m"),
        ({"disk": "1k"}, "disk: '1k' is too little", "ask for at least 1m"),
        ({"cpus": 0}, "cpus: 0 is too little", "ask for more than 0"),
        ({"cpus": 2000}, "cpus: 2000 is too much", "ask for at most 1,024"),
        ({"pids": 1}, "pids: 1 is too little", "ask for at least 16"),
        ({"network": "host"}, "network: 'host' is none of the choices", "use 'none' or 'bridge'"),
        ({"engine": "lxc"}, "engine: 'lxc' is none of the choices", "use 'podman', 'docker' or 'none'"),
        ({"ttl": "soon"}, "'soon' is not a duration", "write it like 30s, 10m, 2h or 1d"),
        ({"ttl": "0"}, "ttl: '0' is too little", "ask for more than 0"),
        ({"name": "No"}, "'No' cannot be the name of a workspace", "use up to 63"),
        ({"colour": "red"}, "colour is nothing that can be asked for", "it is one of source, name"),
        ({"pids": "x"}, "pids: 'x' does not fit", "mend what the message names"),
    ],
)
def test_a_bad_request_names_the_field_and_what_would_do(fields: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_spec(**fields)
    assert caught.value.message.startswith(message)
    assert hint in (caught.value.hint or "")
    assert "\n" not in caught.value.message


def test_the_defaults_are_the_safe_ones() -> None:
    spec = check_spec()
    assert (spec.network, spec.read_write_root, spec.pids) == ("none", False, 512)


def test_a_name_that_nobody_chose_is_free() -> None:
    taken = {"app-1234", "app-12345678"}
    assert default_name("/x/App", "abcdef012345", taken.__contains__) == "app-abcd"
    assert default_name("/x/App", "123456780000", taken.__contains__) == "app-123456780000"
    assert default_name("/x/App", "1234567890ab", {"app-1234"}.__contains__) == "app-12345678"
    assert default_name(None, "abcdef012345", lambda _: True) == "abcdef012345"
