"""Start the shim: `python3 -I -S -B -m ws.shim --socket PATH --root DIR`, or this file by its path.

By its path it is faster: `-m` goes through runpy, which imports 8 ms worth of modules that nobody needs
here.
"""

from __future__ import annotations

import sys

from ws.shim.server import main

if __name__ == "__main__":
    main(sys.argv[1:])
