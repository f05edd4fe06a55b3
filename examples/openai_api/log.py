"""The events of one response in a file, for a process that goes on with it and for other readers.

A record is written by one call in front of any reader of the event, so no client has an event of a
killed process that the file lacks. The system keeps what a killed process has written; only the
request itself is also on the disk before it is accepted.

Each run of the response writes under a number of its own, its fence, which is greater than those
before it. Readers ignore what an older run writes after a newer one has begun, so the numbers of
the events have no gap and no double, also if a process that was given up goes on.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from .wire import Answer, Json, stem_of


@attrs.define
class Found:
    """What the file has: the request, the greatest fence, and the events in order."""

    request: Json | None = None
    fence: int = 0
    job: int | None = None  # the number of its durable job
    events: list[Json] = attrs.field(factory=list)
    size: int = 0  # bytes that were read


class EventLog:
    """One file. The methods use the file system at once, without a checkpoint."""

    def __init__(self, folder: Path, id: str) -> None:
        self._path: Final = folder / f"{stem_of(id)}.jsonl"

    def create(self, request: Json, events: Sequence[Json] = (), sync: bool = True) -> None:
        """Write the request, and the events so far: all of them or nothing.

        Args:
          sync: whether to wait until they are on the disk.

        Raises:
          FileExistsError: if there is the file.
          OSError: if that is not possible.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{secrets.token_hex(4)}")
        with open(new, "xb", opener=partial(os.open, mode=0o600)) as file:
            try:
                file.writelines(_line(0, record) for record in ({"request": request}, *events))
                file.flush()
                if sync:
                    os.fsync(file.fileno())
                os.link(new, self._path)
            finally:
                new.unlink()

    def delete(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def record(self, answer: Answer) -> None:
        """Begin a run: write the events of the response from now on, and those that it has.

        First the response learns those that it lacks: another process may have written more.
        """
        found = self.read()
        for event in found.events[answer.feed.last + 1 :]:
            answer.learn(event)
        fence = found.fence + 1
        try:
            self._write(fence, {})
        except FileNotFoundError:  # the response was deleted
            return
        answer.record = partial(self._write, fence)
        for event in answer.feed.since(len(found.events) - 1):
            answer.record(event)

    def note(self, job: int) -> None:
        """Note the number of the durable job; without the file, its request was refused."""
        with suppress(FileNotFoundError):
            self._write(self.read().fence, {"job": job})

    def read(self, found: Found | None = None) -> Found:
        """Return what the file has now; nothing if there is no file.

        Args:
          found: what was read before; only what was added since is read.
        """
        found = Found() if found is None else found
        try:
            with open(self._path, "rb") as file:
                file.seek(found.size)
                data = file.read()
        except FileNotFoundError:
            return found
        data = data[: data.rfind(b"\n") + 1]  # whole lines
        found.size += len(data)
        for line in data.split(b"\n"):
            try:
                fence, record = json.loads(line)
            except ValueError:  # no record, or one that was torn by a full disk
                continue
            if fence < found.fence:
                continue
            found.fence = fence
            if "request" in record:
                found.request = record["request"]
            elif "job" in record:
                found.job = record["job"]
            elif record.get("sequence_number") == len(found.events):
                found.events.append(record)
        return found

    def _write(self, fence: int, record: Json) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, _line(fence, record))
        finally:
            os.close(file)


def _line(fence: int, record: Json) -> bytes:
    # The line feed in front keeps a record whole if the one before it was torn.
    return b"\n" + json.dumps([fence, record], separators=(",", ":")).encode() + b"\n"
