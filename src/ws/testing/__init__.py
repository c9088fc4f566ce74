"""The contracts of ws as checks that anyone's backend can be held against: `check_engine`,
`check_filesystem`.
"""

from ws.testing.engine import ENGINE_CHECKS, check_engine
from ws.testing.engine_bench import EngineBench
from ws.testing.filesystem import FILESYSTEM_CHECKS, MakeFilesystem, check_filesystem

__all__ = [
    "ENGINE_CHECKS",
    "FILESYSTEM_CHECKS",
    "EngineBench",
    "MakeFilesystem",
    "check_engine",
    "check_filesystem",
]
