"""What others have published of theirs. Quoted, not measured: other machines, other workloads, never in a ratio."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    system: str
    operation: str
    milliseconds: float


PUBLISHED = (
    Published("DeltaBox (arXiv 2605.22781)", "checkpoint", 10.8),
    Published("DeltaBox (arXiv 2605.22781)", "rollback", 1.9),
    Published("E2B", "create", 150),
    Published("Daytona", "create", 90),
    Published("CubeSandbox", "create", 48),
    Published("CubeSandbox", "snapshot with rollback", 82),
)
