"""Run the mutations of `mutations`: copy the tree, apply one, run its tests; what no test notices survives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from mutations import Mutation, all_mutations, table

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "bench", "docs", "scripts", "images", "pyproject.toml", "README.md", "CHANGELOG.md")
PROCESSES = 2
TEST_TIMEOUT_S = 120
PAGE = ROOT / "docs" / "mutations.md"
INTRODUCTION = """# Mutations, and the tests that notice them

Each line takes one mechanism away: it drops a sync, swaps two steps, skips a lock, widens a check. `scripts/mutate`
applies each to a copy of the tree and runs the tests named beside it; one of them must fail. A mutation whose text is
no longer in the code fails `tests/unit/test_mutations.py`. This page is written by `scripts/mutate --table`.

"""


@dataclass(frozen=True)
class Outcome:
    mutation: Mutation | None  # None: the tests without any mutation
    verdict: str  # killed, survived, or why neither can be said
    seconds: float
    output: str


class Copies:
    """Copies of the tree, as many as there are processes; each serves one mutation at a time."""

    def __init__(self, top: Path) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._stamp = time.time()
        for number in range(PROCESSES):
            copy = top / str(number)
            copy.mkdir()
            for name in COPIED:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                elif (ROOT / name).exists():
                    shutil.copy(ROOT / name, copy / name)
            self._free.put(copy)

    def try_mutation(self, mutation: Mutation) -> Outcome:
        copy = self._free.get()
        path = copy / "src" / "ws" / mutation.file
        text = path.read_text()
        try:
            self._write(path, mutation.apply(text))
            return run_tests(copy, mutation, mutation.tests)
        except ValueError as error:
            return Outcome(mutation, str(error), 0, "")
        finally:
            self._write(path, text)
            self._free.put(copy)

    def try_nothing(self, tests: tuple[str, ...]) -> Outcome:
        copy = self._free.get()
        try:
            return run_tests(copy, None, tests)
        finally:
            self._free.put(copy)

    def _write(self, path: Path, text: str) -> None:
        """With a time that no compiled file has: Python compares it, in whole seconds."""
        path.write_text(text)
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))


def run_tests(copy: Path, mutation: Mutation | None, tests: tuple[str, ...]) -> Outcome:
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}/tests"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_TIMEOUT_S}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in tests)],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    verdicts = {0: "survived", 1: "killed"}
    # A mutation that breaks every import ends as an error of collection: that is no proof of anything.
    verdict = verdicts.get(done.returncode, f"pytest ended with {done.returncode}")
    return Outcome(mutation, verdict, time.monotonic() - begun, done.stdout[-3000:] + done.stderr[-1000:])


def main(words: list[str]) -> int:
    if words == ["--table"]:
        PAGE.write_text(INTRODUCTION + table())
        return 0
    chosen = [
        one
        for area, mutations in all_mutations().items()
        for one in mutations
        if not words or any(word in f"{area} {one.name}" for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="ws-mutate-") as top, ThreadPoolExecutor(PROCESSES) as pool:
        copies = Copies(Path(top))
        tests = tuple(sorted({test for one in chosen for test in one.tests}))
        sound = copies.try_nothing(tests)
        if sound.verdict != "survived":
            print(f"without a mutation: {sound.verdict}\n{sound.output}")
            return 1
        print(f"{len(tests)} tests pass without a mutation, {sound.seconds:.0f} s")
        outcomes = []
        for outcome in pool.map(copies.try_mutation, chosen):
            outcomes.append(outcome)
            assert outcome.mutation
            print(f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {outcome.mutation.name}", flush=True)
    bad = [outcome for outcome in outcomes if outcome.verdict != "killed"]
    print(f"{len(outcomes) - len(bad)} of {len(outcomes)} killed")
    for outcome in bad:
        assert outcome.mutation
        print(f"{outcome.mutation.name}: {outcome.verdict}; {outcome.mutation.promise}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
