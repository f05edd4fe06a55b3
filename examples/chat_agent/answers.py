"""Stored answers, by the number of the message: one for each message, also after crashes.

A message is a durable job, and the records of its turn are one row, with the number of the job. A
repeated run replaces the row from the beginning; a run that finds the row complete has nothing to
do. The rows of a session, in the order of their numbers, are its transcript.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from trio_lanes.agents import Conversation, Message, ThreadLocks
from trio_lanes.durable import StoreError

Commit = list[dict[str, Any]]

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS turns (
    job INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    answered INTEGER NOT NULL,  -- whether the answer is complete
    said TEXT NOT NULL          -- what a conversation has written, as JSON
)
"""


@attrs.frozen(eq=False)
class Answers:
    """The table of answers. SQLite blocks, so it is used in a worker thread, one at a time."""

    _db: sqlite3.Connection
    _turn: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Answers]:
        """Open the answers in the file at ``path``; a missing file is created.

        Raises:
          OSError, StoreError: if the file cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                stack.callback(db.close)
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(SCHEMA)
            except sqlite3.Error as error:
                raise StoreError(f"{path}: {error}") from error
            yield cls(db)

    async def find(self, job: int) -> bool | None:
        """Return whether the message is answered; None if it has no row."""
        rows = await self._ask("SELECT answered FROM turns WHERE job = ?", job)
        return bool(rows[0][0]) if rows else None

    def conversation(self, job: int, session: str) -> Conversation:
        """Open the conversation of the message; it begins with all earlier messages."""
        return Conversation(session, _OneTurn(self, job, session))

    async def transcript(self, session: str) -> list[Message]:
        """Return all messages of a session."""
        return await self.conversation(2**62, session).messages()

    async def said_before(self, job: int, session: str) -> list[Commit]:
        """Return the records of the earlier messages of the session."""
        rows = await self._ask(
            "SELECT said FROM turns WHERE session = ? AND job < ? ORDER BY job", session, job
        )
        return [json.loads(said) for (said,) in rows]

    async def keep(self, job: int, session: str, said: Commit) -> None:
        """Store the records in place of the records of an earlier run of the same message."""
        answered = said[-1]["op"] == "finish"
        await self._ask(
            "REPLACE INTO turns VALUES (?, ?, ?, ?)", job, session, answered, json.dumps(said)
        )

    async def _ask(self, query: str, *values: object) -> list[Any]:
        def in_thread() -> list[Any]:
            return self._db.execute(query, values).fetchall()

        return await trio.to_thread.run_sync(in_thread, limiter=self._turn)


class _OneTurn:
    """A `TranscriptStore` for one run of one message: it writes one row, and reads earlier rows."""

    def __init__(self, answers: Answers, job: int, session: str) -> None:
        self.locks: Final = ThreadLocks()
        self.live: Final[set[str]] = set()
        self._answers: Final = answers
        self._job: Final = job
        self._session: Final = session
        self._before: list[Commit] | None = None
        self._said: list[Commit] = []

    def check(self, thread_id: str) -> None:
        """Accept every session name."""

    async def load(self, thread_id: str, start: int = 0) -> Sequence[Commit]:
        if self._before is None:
            self._before = await self._answers.said_before(self._job, self._session)
        else:
            await trio.lowlevel.checkpoint()
        return [*self._before, *self._said][start:]

    async def append(self, thread_id: str, commit: Commit) -> None:
        said = [*self._said, commit]
        together = [record for one in said for record in one]
        await self._answers.keep(self._job, self._session, together)
        self._said = said
