"""The events of one response in a file, for a process that goes on with it and for other readers.

A record is written by one call in front of any reader of the event, so a killed process has told no
event that the file lacks. The system keeps what a killed process has written; only the request
itself is also on the disk before it is accepted.

Each run of the response writes under a number of its own, its fence, which is greater than those
before it. Readers ignore what an older run writes after a newer one has begun, so the numbers of
the events have no gap and no double, also if a process that was given up goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

Json = dict[str, Any]


@attrs.define
class Found:
    """What the file has: the request, the greatest fence, and the events in order."""

    request: Json | None = None
    fence: int = 0
    events: list[Json] = attrs.field(factory=list)


class EventLog:
    """One file. The methods use the file system at once, without a checkpoint."""

    def __init__(self, folder: Path, id: str) -> None:
        self._path: Final = folder / f"{id}.jsonl"

    def __bool__(self) -> bool:
        """Whether there is such a response."""
        return self._path.exists()

    def create(self, request: Json) -> None:
        """Write the request to the disk.

        Raises:
          OSError: if that is not possible.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write(0, {"request": request}, sync=True)

    def delete(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def begin(self) -> tuple[Found, Callable[[Json], None]]:
        """Begin a run. Return what the file has, and a function that adds an event."""
        fence = self.read().fence + 1
        self._write(fence, {})
        return self.read(), partial(self._write, fence)

    def read(self) -> Found:
        """Return what the file has now; nothing if there is no file."""
        found = Found()
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return found
        for line in lines:
            try:
                fence, record = json.loads(line)
            except ValueError:  # the end of a record that was torn by a full disk
                continue
            if fence < found.fence:
                continue
            found.fence = fence
            if "request" in record:
                found.request = record["request"]
            elif record.get("sequence_number") == len(found.events):
                found.events.append(record)
        return found

    def _write(self, fence: int, record: Json, sync: bool = False) -> None:
        # The line feed in front keeps a record whole if the one before it was torn.
        data = b"\n" + json.dumps([fence, record], separators=(",", ":")).encode()
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, data)
            if sync:
                os.fsync(file)
        finally:
            os.close(file)
