"""One process of the churn: snapshot, restore, fork, exec, create and remove at random, over workspaces that all share.

`python -m bench.churner HOME ENGINE SECONDS POPULATION SEED SOURCE` prints what happened as JSON. A typed refusal is an
answer; any other exception is a failure, and is reported with its text.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from ws.errors import WorkspaceError
from ws.layout import EngineName
from ws.manager import Manager


class Churner:
    def __init__(self, manager: Manager, source: str, population: int, chance: random.Random) -> None:
        self.manager, self.source, self.population, self.chance = manager, source, population, chance
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.failed: list[str] = []
        self.containers: set[str] = set()

    def work(self, seconds: float) -> None:
        verbs: dict[str, tuple[int, Callable[[str], object]]] = {
            "exec": (8, self._exec),
            "snapshot": (6, lambda name: self.manager.open(name).snapshot()),
            "restore": (4, self._restore),
            "fork": (1, lambda name: self._keep(self.manager.fork(name).id)),
            "rm": (1, self.manager.remove),
        }
        weights = [weight for weight, _ in verbs.values()]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            names = [info.name for info in self.manager.list()]
            verb = self.chance.choices(list(verbs), weights)[0]
            if len(names) < self.population // 2 or (verb == "rm" and len(names) < self.population * 3 // 4):
                self._try("create", lambda _: self._keep(self.manager.create(self.source).id), "")
            elif verb == "fork" and len(names) >= self.population:
                self._try("rm", self.manager.remove, self.chance.choice(names))
            else:
                self._try(verb, verbs[verb][1], self.chance.choice(names))

    def _try(self, verb: str, action: Callable[[str], object], name: str) -> None:
        try:
            action(name)
            self.done[verb] += 1
        except WorkspaceError as error:
            self.refused[f"{verb}: {type(error).__name__}"] += 1
        except Exception as error:  # noqa: BLE001 - what is not a typed refusal is what the churn looks for
            self.failed.append(f"{verb} {name}: {type(error).__name__}: {error}")

    def _exec(self, name: str) -> None:
        with self.manager.open(name) as box:
            box.exec(["sh", "-c", f"echo {self.chance.random()} >> notes-{self.chance.randrange(5)}; sleep 0.01"])

    def _restore(self, name: str) -> None:
        with self.manager.open(name) as box:
            known = box.snapshots()
            box.restore(self.chance.choice(known) if known and self.chance.random() < 0.5 else None)

    def _keep(self, workspace_id: str) -> None:
        container = self.manager.open(workspace_id).info().container
        if container:
            self.containers.add(container)


def main() -> None:
    home, engine, seconds, population, seed, source = sys.argv[1:]
    name: EngineName = "docker" if engine == "docker" else "podman"
    with Manager(home=home, engine=name) as manager:
        churner = Churner(manager, source, int(population), random.Random(int(seed)))
        churner.work(float(seconds))
    json.dump(
        {
            "done": churner.done,
            "refused": churner.refused,
            "failed": churner.failed,
            "containers": sorted(churner.containers),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
