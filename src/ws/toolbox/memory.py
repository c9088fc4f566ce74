"""What a dialect remembers between calls, kept in a file, so that it outlives the process that made the call.

`ws tool NAME bash …` is a process for each call, and the shell it talks to must be the same one every time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import Any

from ws import durable
from ws.record_files import read_cached_json


class FileMemory(MutableMapping[str, Any]):
    """A small mapping in a JSON file. Commit point of every change: the rename of the new file over the old.

    Two processes that write at the same moment leave what one of them wrote: here that is a session's id, and the
    other session ends when nobody has asked for it in a long time.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __getitem__(self, key: str) -> Any:
        return self._load()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._save({**self._load(), key: value})

    def __delitem__(self, key: str) -> None:
        held = self._load()
        del held[key]
        self._save(held)

    def __iter__(self) -> Iterator[str]:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())

    def _load(self) -> dict[str, Any]:
        return read_cached_json(self._path) or {}  # missing or damaged: nothing is remembered

    def _save(self, held: dict[str, Any]) -> None:
        durable.write_file(self._path, json.dumps(held).encode())
