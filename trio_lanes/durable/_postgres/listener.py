"""`Listener`: the notices of other instances, and a slow look that covers a lost notice.

The server sends a notice at the commit of its transaction: "look" for workers, and the ids of jobs
that have ended for tasks that wait for them. It is a hint. Every few seconds the listener compares
`deltas.notices` with the value that it has seen, so a lost notice costs seconds and nothing else.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, final

import psycopg
import trio
from psycopg import sql

from .batch import TABLE_LOCK
from .link import PostgresLink

logger: Final = logging.getLogger("trio_lanes.durable")

LOOKS_EVERY: Final = (2.0, 5.0)
"""Between which numbers of seconds a slow look follows the one before."""
REGISTERED_FOR: Final = 60.0
"""Seconds for which other instances send notices to a listener that does not look any more."""
COMMITTED_WITHIN: Final = 60.0
"""Seconds for which a commit is awaited that ends a job which is over at once."""
RECONNECT_AFTER: Final = 1.0
"""Seconds, at most, until a lost connection is made again."""


class Hint(Protocol):
    """What a listener calls."""

    def __call__(self, *, lock: bool) -> None: ...


@final
class Listener:
    """The notices of other instances, in one task.

    Args:
      named: puts the schema into a statement, as `schema.naming` does.
      me: the name of this instance on the channel: its own notices are ignored.
      hint: is called when another instance may have written; with ``lock`` when something waits
        that is done under the lock.
      look: is called when a worker should take a step.
      wake_waiters: is called with the ids of jobs with news; None: any job may have some.
    """

    def __init__(
        self,
        name: str,
        link: PostgresLink,
        named: Callable[[str], bytes],
        channel: str,
        me: str,
        hint: Hint,
        look: Callable[[], None],
        wake_waiters: Callable[[Iterable[int] | None], None],
    ) -> None:
        self._name: Final = name
        self._link: Final = link
        self._named: Final = named
        self._channel: Final = channel
        self._me: Final = me
        self._hint: Final = hint
        self._look: Final = look
        self._wake_waiters: Final = wake_waiters
        self._seen: tuple[int, bool] | None = None  # as `_slow_look` gave it
        # no ended job is over at this time or before: an old snapshot keeps their index entries
        self._none_over_until = -math.inf
        self._texts: Final[list[str]] = []

    async def listen(self) -> None:
        """Listen until cancelled; make the connection again when it is lost."""
        failing = False
        while True:
            try:
                await self._link.call(self._begin)
                self._look()  # notices may have been lost meanwhile
                self._wake_waiters(None)
                if failing:
                    logger.info("%s: the connection for notices is back", self._name)
                failing = False
                await self._notices()
            except psycopg.Error as error:
                if not failing:
                    logger.warning(
                        "%s: the connection for notices is lost, and is made again: %s",
                        self._name,
                        " ".join(str(error).split()),
                    )
                failing = True
                self._link.close()
                await trio.sleep(RECONNECT_AFTER * random.uniform(0.5, 1.0))

    def _begin(self) -> None:
        """Listen and register. Runs in a thread."""
        connection = self._link.connected()
        connection.add_notify_handler(lambda notice: self._texts.append(notice.payload))
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._none_over_until = -math.inf  # the server may have gone back to older data
        self._seen = self._slow_look()
        # wait for a commit that began before the registration: it sends no notice to this one
        connection.execute(f"SELECT pg_advisory_xact_lock_shared{TABLE_LOCK}", (self._channel,))

    def _slow_look(self) -> tuple[int, bool]:
        """Register for some time more. Runs in a thread.

        Return what changes with every notice, and whether something waits that nothing announces:
        submissions, or ended jobs to forget.
        """
        connection = self._link.connected()
        row = connection.execute(
            self._named(
                "WITH me AS (INSERT INTO main.listeners VALUES (%s, main.server_time() + %s)"
                " ON CONFLICT (id) DO UPDATE SET until = excluded.until"
                " WHERE listeners.until < excluded.until - %s),"
                " gone AS (DELETE FROM main.listeners WHERE until < main.server_time())"
                " SELECT (SELECT notices FROM main.deltas ORDER BY batch DESC LIMIT 1),"
                " EXISTS (SELECT FROM main.submissions), EXISTS (SELECT FROM main.jobs"
                " WHERE state IN ('succeeded', 'failed', 'cancelled', 'expired')"
                " AND due > %s AND due <= (SELECT main.store_time())), main.store_time()"
            ),
            (self._me, REGISTERED_FOR, REGISTERED_FOR / 3, self._none_over_until),
        ).fetchone()
        assert row is not None
        notices, is_submitted, is_over, now = row
        if not is_over:
            self._none_over_until = now - COMMITTED_WITHIN
        return notices, is_submitted or is_over

    async def _notices(self) -> None:
        while True:
            connection = self._link.connection
            assert connection is not None
            # first, since notices may have come with the answer of a look: the socket is read then
            while (notice := connection.pgconn.notifies()) is not None:
                self._texts.append(notice.extra.decode())
            texts = self._texts.copy()
            self._texts.clear()
            for text in texts:
                self._take_notice(text)
            with trio.move_on_after(random.uniform(*LOOKS_EVERY)) as waited:
                await trio.lowlevel.wait_readable(connection.fileno())
            if waited.cancelled_caught:
                seen = await self._link.call(self._slow_look)
                if seen != self._seen or seen[1]:  # [1]: a step has work that nothing announces
                    self._seen = seen
                    self._hint(lock=seen[1])
                    self._look()
                    self._wake_waiters(None)
            else:
                connection.pgconn.consume_input()

    def _take_notice(self, text: str) -> None:
        sender, _, rest = text.partition(" ")
        if sender == self._me:
            return
        look, _, ids = rest.partition(" ")
        self._hint(lock=not rest)  # a submission by SQL names no sender
        if look != "-":
            self._look()
        if ids == "*":
            self._wake_waiters(None)
        elif ids:
            self._wake_waiters(map(int, ids.split(",")))

    def forget(self) -> None:
        """Unregister, and close the connection. Runs in a thread."""
        with suppress(psycopg.Error):  # the registration ends by itself
            connection = self._link.connection
            if connection is not None and not connection.closed:
                connection.execute(
                    self._named("DELETE FROM main.listeners WHERE id = %s"), (self._me,)
                )
        self._link.close()
