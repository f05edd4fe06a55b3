"""``python -m trio_lanes`` is ``trio-lanes``."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
