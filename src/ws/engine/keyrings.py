"""How many containers podman can run at once, as far as the kernel's keyrings go.

runc makes a session keyring for each container, and a user who is not root may have 200 keys, of 20,000 bytes in all.
Where containers have their ids in common, root in every one of them is the same user: the 201st does not start.
"""

from __future__ import annotations

RAISE = "as root: sysctl kernel.keys.maxkeys=20000 kernel.keys.maxbytes=2000000"
_KEYS = "/proc/sys/kernel/keys"
_KEYRING_BYTES = 70  # what one counts for


def max_keyrings() -> int:
    """For how many containers there are keyrings."""
    try:
        return min(_read("maxkeys"), _read("maxbytes") // _KEYRING_BYTES)
    except (OSError, ValueError):
        return 200


def _read(name: str) -> int:
    with open(f"{_KEYS}/{name}", encoding="ascii") as file:
        return int(file.read())
