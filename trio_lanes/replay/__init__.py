"""Replays: what went through lanes goes through them again, with other limits, in virtual time.

`trio_lanes.testing.LaneRecorder.save` writes the file that `read_recording` reads.
"""

from ._play import Replayed, Waits, as_recorded, replay
from ._recording import LimitChange, RecordedRun, Recording, RecordingError, read_recording

__all__ = [
    "LimitChange",
    "RecordedRun",
    "Recording",
    "RecordingError",
    "Replayed",
    "Waits",
    "as_recorded",
    "read_recording",
    "replay",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users find them
del _name
