"""Replay a file with one change, in a process of its own: for the monitor, which must not be held.

``python -m trio_lanes.replay FILE '{"main": 6}'`` prints the figures of the recording, of a replay
as it was, and of a replay with the change, as JSON.
"""

from __future__ import annotations

import json
import sys

import attrs

from ._play import as_recorded, replay
from ._recording import read_recording


def main(path: str, limits: str) -> None:
    """Print the figures."""
    recording = read_recording(path)
    runs = {
        "recorded": as_recorded(recording),
        "replayed": replay(recording),
        "changed": replay(recording, json.loads(limits)),
    }
    print(json.dumps({name: attrs.asdict(run.total) for name, run in runs.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
