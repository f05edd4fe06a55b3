"""The command ``trio-lanes``: runs workers, and inspects and controls a store.

It needs the extra ``command``; the library never imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

NEEDS = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``trio-lanes`` with arguments, by default of this process. Return the exit code."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        print(
            f"trio-lanes: this needs {' and '.join(missing)}: pip install 'trio-lanes[command]'",
            file=sys.stderr,
        )
        return 2
    from ._cli import run

    return run(arguments)
