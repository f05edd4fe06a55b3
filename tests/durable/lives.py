"""Play simulated lives in a process of its own: ``python -m tests.durable.lives FIRST NUMBER``.

It prints each life in which something was wrong, made as small as it gets, and exits with 1.
"""

from __future__ import annotations

import logging
import sys

from trio_lanes.durable.testing import Life, shrink, simulate


def main() -> int:
    logging.disable(logging.CRITICAL)
    first, number = map(int, sys.argv[1:])
    bad = 0
    for seed in range(first, first + number):
        if simulate(Life(seed)):
            bad += 1
            smallest = shrink(Life(seed))
            print(smallest, *simulate(smallest), sep="\n    ", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
